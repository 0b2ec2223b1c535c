"""Creates the recorded resource graph of a stack in an emulated AWS account and deletes it again.

References in the record hold values that review/computed.py made up; each is replaced by what AWS answered when the
resource was created. The order is the worst that the graph allows, so that the order in which the program happens to be
written hides no missing dependency.
"""

from __future__ import annotations

import random
import re
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from review import computed
from review.recording import Recorded, Recording
from tests.standin.aws.account import Account
from tests.standin.aws.provider import AwsResources
from tests.standin.cloud import Cloud
from tests.standin.naming import Urn

#: Characters from which on a value does not occur by chance, so that it can be replaced inside texts.
DISTINCT = 12


@dataclass
class Built:
    """The resources of a stack that exist in an account."""

    package: AwsResources
    folder: tempfile.TemporaryDirectory[str]
    """Where the package keeps its state; removed with this object."""
    ids: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """URN -> (id, outputs)"""
    real: dict[str, str] = field(default_factory=dict)
    """Value in the record -> value in AWS."""

    @property
    def account(self) -> Account:
        return self.package.account

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

    def inputs(self, item: Recorded, **changes: Any) -> dict[str, Any]:
        """Inputs with AWS's values, and with the provider's own name where the program gives none."""
        return self.package.check(Urn(item.urn), {}, {**self.resolved(item.inputs), **changes}, b"")

    def create(self, item: Recorded) -> None:
        """Create a resource. Raises PluginError where AWS refuses."""
        id_, outputs = self.package.create(Urn(item.urn), self.inputs(item), 0, preview=False)
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
        """Delete a resource. Raises PluginError where AWS refuses."""
        id_, outputs = self.ids[item.urn]
        if not item.retain_on_delete:
            self.package.delete(Urn(item.urn), id_, outputs, 0)
        del self.ids[item.urn]


def of_aws(recording: Recording) -> list[Recorded]:
    return [item for item in recording.resources if item.type.startswith("aws:")]


def order(recording: Recording, seed: int) -> list[Recorded]:
    """The worst order that the graph allows: only their dependencies come before clusters and node groups.

    In reverse, they outlive everything but those. The seed varies what the graph leaves open.
    """
    everything = {item.urn: item for item in of_aws(recording)}
    needs = {urn: recording.earlier(item) & everything.keys() for urn, item in everything.items()}
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


def empty(account: Account) -> Built:
    folder = tempfile.TemporaryDirectory()
    cloud = Cloud(Path(folder.name) / "cloud.json", duration=0)
    return Built(AwsResources(cloud, account.region, account), folder)


def up(recording: Recording, account: Account, seed: int = 0) -> Built:
    """Create everything. Raises PluginError where AWS refuses."""
    built = empty(account)
    for item in order(recording, seed):
        built.create(item)
    return built


def up_to(recording: Recording, account: Account, item: Recorded) -> Built:
    """Create one resource after its dependencies only. Raises PluginError where AWS refuses."""
    wanted = recording.earlier(item) | {item.urn}
    built = empty(account)
    for other in order(recording, seed=0):
        if other.urn in wanted:
            built.create(other)
    return built


def down(recording: Recording, built: Built, seed: int = 0) -> None:
    """Delete as the engine would, without what goes with another resource. Raises PluginError where AWS refuses."""
    for item in reversed(order(recording, seed)):
        if item.deleted_with:
            built.ids.pop(item.urn, None)
        elif item.urn in built.ids:
            built.delete(item)


def without(recording: Recording, missing: str) -> Recording:
    """The record without the AWS resources of a name, or of a kind and a name."""
    left = [
        item
        for item in recording.resources
        if not item.type.startswith("aws:") or missing not in (item.name, f"{item.kind} {item.name}")
    ]
    assert len(left) < len(recording.resources), f"the test changes nothing: there is no {missing}"
    return Recording(left, recording.outputs)


def unordered(recording: Recording, group: str, before: str) -> Recording:
    """The record without the dependencies of a node group on all resources of a kind."""
    dropped = {item.urn for item in recording.resources if item.kind == before}

    def one(item: Recorded) -> Recorded:
        if (item.kind, item.name) != ("NodeGroup", group):
            return item
        return replace(item, dependencies=item.dependencies - dropped)

    after = [one(item) for item in recording.resources]
    assert after != recording.resources, "the test changes nothing: there is no such dependency"
    return Recording(after, recording.outputs)
