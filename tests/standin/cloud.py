"""The cloud of a test: its resources, in one file that several plugin processes share, and its refusals.

The refusals reveal a wrong order. The real clouds refuse the same, but only after minutes. The facts come from
infra/{gke,eks}/order.yaml and features.yaml.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from infra.facts import load
from infra.stackfiles import ROOT

from . import gcp
from .aws import rules
from .naming import PluginError

#: Seconds of an operation, so that two in a wrong order overlap.
DURATION = 0.05
CLUSTERS = ("gcp:container/cluster:Cluster", "aws:eks/cluster:Cluster")
POOLS = ("gcp:container/nodePool:NodePool", "aws:eks/nodeGroup:NodeGroup")
REPOSITORIES = ("gcp:artifactregistry/repository:Repository", "aws:ecr/repository:Repository")
SERVICE, ADDON, IMAGE = "gcp:projects/service:Service", "aws:eks/addon:Addon", "docker-build:index:Image"
#: Kinds that Pulumi awaits and that need a node to run on.
AWAITED = ("kubernetes:apps/v1:Deployment", "kubernetes:apps/v1:StatefulSet")

#: A cloud's answer to a creation: (id, outputs).
Made = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Thing:
    """One resource that exists."""

    type: str
    name: str
    id: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.type} {self.name}"

    def refers_to(self, other: Thing) -> bool:
        """Whether its inputs name the other by id, link, name or address."""
        known = [other.id, *(other.outputs.get(key) for key in ("selfLink", "name", "email"))]
        # Kubernetes volumes name a Filestore instance by its address.
        known += [address for network in other.outputs.get("networks") or [] for address in network["ipAddresses"]]
        return self.mentions(*known)

    def mentions(self, *values: str | None) -> bool:
        return any(name in values for text in _strings(self.inputs) for name in _names(text))


@cache
def order(section: str) -> dict[str, Any]:
    """Return one section of both clouds' order.yaml, merged."""
    files = [load(path).get(section) or {} for path in sorted((ROOT / "infra").glob("*/order.yaml"))]
    return {key: value for content in files for key, value in content.items()}


@cache
def listed(section: str) -> list[str]:
    """List the words of a section of both clouds' order.yaml."""
    return [word for path in (ROOT / "infra").glob("*/order.yaml") for word in load(path).get(section, "").split()]


class Cloud:
    """The resources and the journal. Every operation takes `duration` seconds between its checks and the change."""

    def __init__(self, path: Path, duration: float = DURATION, api: str = "") -> None:
        """`api`: the address of a real API server, at which a cluster of GKE is then reached."""
        self.path, self._duration, self.api = path, duration, api

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        with self.path.with_suffix(".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            content = json.loads(self.path.read_text()) if self.path.exists() else {"living": {}, "journal": []}
            yield content
            self.path.write_text(json.dumps(content))

    def things(self) -> dict[str, Thing]:
        """Map "URN#ID" to each resource. The URN alone is ambiguous: a replacement may exist beside the old one."""
        with self._locked() as content:
            return {key: Thing(**value) for key, value in content["living"].items()}

    def id_of(self, urn: str) -> str:
        """Return the id of the resource with a URN. Raises PluginError if there is none."""
        for key in self.things():
            if key.startswith(f"{urn}#"):
                return key.removeprefix(f"{urn}#")
        raise PluginError(f"{urn} does not exist any more")

    def journal(self) -> list[tuple[str, str]]:
        """List every operation so far: (create, update, delete, keep or gone, "TYPE NAME")."""
        with self._locked() as content:
            return [(entry[0], entry[1]) for entry in content["journal"]]

    def create(self, urn: str, thing: Thing, make: Callable[[], Made] | None = None) -> Thing:
        """Create a thing, elsewhere too with `make`; return it. Raises PluginError where the cloud would refuse."""
        _allow_create(thing, list(self.things().values()))
        time.sleep(self._duration)
        if make:
            id_, outputs = make()
            thing = replace(thing, id=id_, outputs=outputs)
        with self._locked() as content:
            content["living"][f"{urn}#{thing.id}"] = vars(thing)
            content["journal"].append(("create", thing.title))
        return thing

    def update(self, urn: str, thing: Thing) -> None:
        time.sleep(self._duration)
        with self._locked() as content:
            key = f"{urn}#{thing.id}"
            if key not in content["living"]:
                raise PluginError(f"{thing.title} does not exist any more")
            content["living"][key] = vars(thing)
            content["journal"].append(("update", thing.title))

    def delete(self, urn: str, id_: str, unmake: Callable[[Thing], None] | None = None) -> None:
        """Delete a resource if it exists. Raises PluginError where the cloud would refuse."""
        key = f"{urn}#{id_}"
        living = self.things()
        if key not in living:
            return
        thing = living.pop(key)
        _allow_delete(thing, list(living.values()))
        time.sleep(self._duration)
        if unmake:
            unmake(thing)
        with self._locked() as content:
            if thing.type == SERVICE and thing.inputs.get("disableOnDestroy") is False:
                content["journal"].append(("keep", thing.title))
                return
            del content["living"][key]
            content["journal"].append(("delete", thing.title))
            if thing.type in CLUSTERS:
                for other in [k for k, value in content["living"].items() if _goes_with(Thing(**value), thing)]:
                    content["journal"].append(("gone", Thing(**content["living"].pop(other)).title))


def _allow_create(thing: Thing, living: list[Thing]) -> None:
    # Neither enabling an API twice nor patching an object twice is an error.
    once = thing.type != SERVICE and not thing.type.endswith("Patch")
    if once and any(other.type == thing.type and other.id == thing.id for other in living):
        raise PluginError(f"{thing.title}: 409 already exists: {thing.id}")
    if thing.type.startswith("aws:"):
        reason = rules.unmet(thing.type, thing.inputs, living)
    else:
        reason = gcp.unmet(thing.type, thing.inputs, [(other.type, other.inputs) for other in living])
    if reason:
        raise PluginError(f"{thing.title}: {reason}")
    if thing.type.startswith("kubernetes:") and not any(other.type in CLUSTERS for other in living):
        raise PluginError(f"{thing.title}: the API server does not answer: there is no cluster")
    waits = thing.type in AWAITED or (thing.type == ADDON and thing.inputs["addonName"] in listed("on_nodes"))
    if waits and not any(other.type in POOLS and _always_has_nodes(other) for other in living):
        raise PluginError(f"{thing.title}: timed out: no node to run on")
    if thing.type == IMAGE:
        target = next(iter(thing.inputs.get("tags") or [""]))
        if not any(target.startswith(_image_prefix(other)) for other in living if other.type in REPOSITORIES):
            raise PluginError(f"{thing.title}: push of {target} failed: 404 repository not found")


def _allow_delete(thing: Thing, living: list[Thing]) -> None:
    if thing.type.startswith("kubernetes:") and not any(other.type in CLUSTERS for other in living):
        raise PluginError(f"{thing.title}: the API server does not answer: its cluster was deleted before")
    if thing.inputs.get("deletionProtection") is True or thing.inputs.get("deletionProtectionEnabled") is True:
        raise PluginError(f"{thing.title}: deletion protection is on; set it to false, `pulumi up`, then destroy")
    for user in living:
        if user.type in order("in_use").get(thing.type, "").split() and user.refers_to(thing):
            raise PluginError(f"{thing.title}: 400 resourceInUseByAnotherResource: used by {user.title}")
        shared = order("beside").get(thing.type, {})
        if any(user.type in types.split() and user.mentions(thing.inputs[key]) for key, types in shared.items()):
            raise PluginError(f"{thing.title}: {user.title} works with it")
        if user.type in order("needed").get(thing.type, "").split():
            raise PluginError(f"{thing.title}: {user.title} works with it")


def _goes_with(thing: Thing, cluster: Thing) -> bool:
    return thing.type.startswith("kubernetes:") or (thing.type in listed("with_cluster") and thing.refers_to(cluster))


def _always_has_nodes(pool: Thing) -> bool:
    if pool.inputs.get("taints"):
        return False
    scaling = pool.inputs.get("autoscaling") or pool.inputs.get("scalingConfig") or {}
    sizes = [scaling.get(key) for key in ("totalMinNodeCount", "minNodeCount", "minSize")]
    return any(size > 0 for size in (*sizes, pool.inputs.get("nodeCount")) if size)


def _image_prefix(repository: Thing) -> str:
    return repository.outputs.get("repositoryUrl") or f"{repository.outputs['registryUri']}/"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _names(text: str) -> list[str]:
    """List what a text may name: an EFS volume names a file system and an access point (fs-1::fsap-2), and an ARN ends
    in a name or an id."""
    return [text, *text.split("::"), *([text.rpartition("/")[2]] if text.startswith("arn:") else [])]
