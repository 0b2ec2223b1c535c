"""The recorded resource graph of a stack, made in an emulated AWS account and deleted again.

References in the record are to values that review/computed.py made up; here each is replaced by what AWS answered when
the resource was made. The order is the worst that the graph allows, so that a dependency that is missing is found out,
and not hidden by the order in which the program happens to be written.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

from review import computed
from review.recording import Recorded, Recording
from tests.infra.recorded import earlier
from tests.standin.aws import resources
from tests.standin.aws.account import Account

#: Values that the record cannot have by chance, and so can be looked for inside of texts.
DISTINCT = 12


@dataclass
class Built:
    """What of a stack exists in an account."""

    account: Account
    ids: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """URN -> (id, outputs)"""
    real: dict[str, str] = field(default_factory=dict)
    """Value in the record -> value in AWS."""

    def resolved(self, value: Any) -> Any:
        """Inputs of the record with AWS's values."""
        if isinstance(value, dict):
            return {key: self.resolved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        if isinstance(value, str) and self.real:
            known = sorted(self.real, key=len, reverse=True)
            return re.sub("|".join(map(re.escape, known)), lambda found: self.real[found.group()], value)
        return value

    def create(self, item: Recorded) -> None:
        """Raises Refused, as AWS does."""
        inputs = resources.named(item.type, self.resolved(item.inputs), item.name)
        id_, outputs = resources.create(self.account, item.type, inputs)
        self.ids[item.urn] = id_, outputs
        fake_id, fake_outputs = computed.outputs(item.type, item.name, item.inputs, self.account.region)
        self._learn(fake_id, id_)
        self._learn({key: fake_outputs[key] for key in fake_outputs if key not in item.inputs}, outputs)
        self._learn({key: fake_outputs[key] for key in item.inputs if isinstance(fake_outputs[key], dict)}, outputs)

    def _learn(self, recorded: Any, real: Any) -> None:
        if isinstance(recorded, dict) and isinstance(real, dict):
            for key in recorded.keys() & real.keys():
                self._learn(recorded[key], real[key])
        elif isinstance(recorded, list) and isinstance(real, list):
            for pair in zip(recorded, real, strict=False):
                self._learn(*pair)
        elif isinstance(recorded, str) and isinstance(real, str) and recorded != real and len(recorded) >= DISTINCT:
            self.real[recorded] = real

    def delete(self, item: Recorded) -> None:
        """Raises Refused, as AWS does."""
        id_, outputs = self.ids.pop(item.urn)
        if not item.retain_on_delete:
            resources.delete(self.account, item.type, id_, outputs)


def of_aws(recording: Recording) -> list[Recorded]:
    return [item for item in recording.resources if item.type.startswith("aws:")]


def order(recording: Recording, seed: int) -> list[Recorded]:
    """The worst order that the graph allows: clusters and node groups with nothing before them but what they depend on.

    Backwards, they outlive everything but that. Other seeds give other orders of what the graph leaves open.
    """
    everything = {item.urn: item for item in of_aws(recording)}
    needs = {urn: earlier(recording, item) & everything.keys() for urn, item in everything.items()}
    choice = random.Random(seed)
    ordered: dict[str, Recorded] = {}
    for kind in ("Cluster", "NodeGroup", ""):
        of_kind = [urn for urn, item in everything.items() if kind in ("", item.kind)]
        waiting = set(of_kind).union(*(needs[urn] for urn in of_kind)) - ordered.keys()
        while waiting:
            ready = sorted(urn for urn in waiting if needs[urn] <= ordered.keys())
            urn = choice.choice(ready)
            waiting.remove(urn)
            ordered[urn] = everything[urn]
    return list(ordered.values())


def up(recording: Recording, account: Account, seed: int = 0) -> Built:
    """Everything made. Raises Refused, as AWS does."""
    built = Built(account)
    for item in order(recording, seed):
        built.create(item)
    return built


def up_to(recording: Recording, account: Account, item: Recorded) -> Built:
    """One resource, with nothing made before it but what it depends on. Raises Refused, as AWS does."""
    wanted = earlier(recording, item) | {item.urn}
    built = Built(account)
    for other in order(recording, seed=0):
        if other.urn in wanted:
            built.create(other)
    return built


def down(recording: Recording, built: Built, seed: int = 0) -> None:
    """Everything deleted but what goes with something else, as the engine would. Raises Refused, as AWS does."""
    for item in reversed(order(recording, seed)):
        if item.deleted_with:
            built.ids.pop(item.urn, None)
        elif item.urn in built.ids:
            built.delete(item)


def unordered(recording: Recording, kind: str, name: str, before: str) -> Recording:
    """The record without the dependencies of one resource on all resources of a kind."""
    dropped = {item.urn for item in recording.resources if item.kind == before}

    def one(item: Recorded) -> Recorded:
        if (item.kind, item.name) != (kind, name):
            return item
        return replace(item, dependencies=item.dependencies - dropped)

    after = [one(item) for item in recording.resources]
    assert after != recording.resources, "the test changes nothing: there is no such dependency"
    return Recording(after, recording.outputs)
