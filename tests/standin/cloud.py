"""What exists in the cloud of a test, in one file that several plugin processes share, and what it refuses.

The refusals are those by which a wrong order shows: the real cloud answers with them too, after minutes.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.plugin.errors import PluginError

from .gcp import unmet

#: Seconds that an operation takes, so that two in a wrong order overlap.
DURATION = 0.05
CLUSTER, POOL, REPOSITORY = (
    "gcp:container/cluster:Cluster",
    "gcp:container/nodePool:NodePool",
    "gcp:artifactregistry/repository:Repository",
)
CLUSTERS = (CLUSTER, "aws:eks/cluster:Cluster")
POOLS = (POOL, "aws:eks/nodeGroup:NodeGroup")
REPOSITORIES = (REPOSITORY, "aws:ecr/repository:Repository")
#: What the cloud deletes with its cluster, beside the Kubernetes objects. EKS deletes no cluster that has node groups.
OF_CLUSTER = (
    POOL,
    "aws:eks/addon:Addon",
    "aws:eks/accessEntry:AccessEntry",
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
    "aws:eks/podIdentityAssociation:PodIdentityAssociation",
)
#: What cannot be deleted while one of these refers to it.
HELD_BY = {
    "gcp:compute/network:Network": (
        "gcp:compute/subnetwork:Subnetwork",
        "gcp:compute/router:Router",
        "gcp:compute/firewall:Firewall",
        "gcp:filestore/instance:Instance",
        CLUSTER,
    ),
    "gcp:compute/subnetwork:Subnetwork": (CLUSTER, "gcp:compute/routerNat:RouterNat"),
    "gcp:compute/resourcePolicy:ResourcePolicy": (POOL,),
    "gcp:serviceaccount/account:Account": (POOL,),
    # Mounted through a volume, by a pod: the node holds it.
    "gcp:compute/disk:Disk": ("kubernetes:core/v1:PersistentVolume",),
    "gcp:filestore/instance:Instance": ("kubernetes:core/v1:PersistentVolume",),
    "aws:efs/fileSystem:FileSystem": ("kubernetes:core/v1:PersistentVolume",),
    "aws:efs/accessPoint:AccessPoint": ("kubernetes:core/v1:PersistentVolume",),
}
#: Kinds that Pulumi waits for, which need a node to run on.
NEEDS_NODES = ("kubernetes:apps/v1:Deployment", "kubernetes:apps/v1:StatefulSet")


@dataclass(frozen=True)
class Thing:
    """One resource that exists."""

    type: str
    name: str
    id: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    def refers_to(self, other: Thing) -> bool:
        """Whether its inputs name the other by id, link or name."""
        names = {other.id, other.outputs.get("selfLink"), other.outputs.get("name"), other.outputs.get("email")}
        # Filestore is known to Kubernetes by its address.
        names |= {address for network in other.outputs.get("networks") or [] for address in network["ipAddresses"]}
        # EFS volumes name a file system and an access point of it: fs-1::fsap-2.
        return any(part in names for text in _strings(self.inputs) for part in (text, *text.split("::")))


class Cloud:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        with self.path.with_suffix(".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            content = json.loads(self.path.read_text()) if self.path.exists() else {"living": {}, "journal": []}
            yield content
            self.path.write_text(json.dumps(content))

    def things(self) -> dict[str, Thing]:
        """What exists, by URN."""
        with self._locked() as content:
            return {urn: Thing(**value) for urn, value in content["living"].items()}

    def id_of(self, urn: str) -> str:
        """The id of what exists under a URN. Raises PluginError when nothing does."""
        prefix = f"{urn}#"
        for key in self.things():
            if key.startswith(prefix):
                return key.removeprefix(prefix)
        raise PluginError(f"{urn} does not exist any more")

    def journal(self) -> list[tuple[str, str]]:
        """Every operation so far: (create, update, delete, delete-old or gone, "TYPE NAME")."""
        with self._locked() as content:
            return [(entry[0], entry[1]) for entry in content["journal"]]

    def create(self, urn: str, thing: Thing) -> None:
        """Raises PluginError where the cloud would."""
        with self._locked() as content:
            living = {key: Thing(**value) for key, value in content["living"].items()}
            _allow_create(thing, list(living.values()))
        time.sleep(DURATION)
        with self._locked() as content:
            # A replacement made before the old one goes has the same URN.
            content["living"][f"{urn}#{thing.id}"] = vars(thing)
            content["journal"].append(("create", f"{thing.type} {thing.name}"))

    def update(self, urn: str, thing: Thing) -> None:
        time.sleep(DURATION)
        with self._locked() as content:
            key = f"{urn}#{thing.id}"
            if key not in content["living"]:
                raise PluginError(f"{thing.type} {thing.name} does not exist any more")
            content["living"][key] = vars(thing)
            content["journal"].append(("update", f"{thing.type} {thing.name}"))

    def delete(self, urn: str, id_: str) -> None:
        """Raises PluginError where the cloud would."""
        key = f"{urn}#{id_}"
        with self._locked() as content:
            living = {other: Thing(**value) for other, value in content["living"].items()}
            if key not in living:
                return
            thing = living.pop(key)
            _allow_delete(thing, list(living.values()))
        time.sleep(DURATION)
        with self._locked() as content:
            thing = Thing(**content["living"].pop(key))
            if _is_kept(thing):
                content["living"][key] = vars(thing)
                content["journal"].append(("keep", f"{thing.type} {thing.name}"))
                return
            content["journal"].append(("delete", f"{thing.type} {thing.name}"))
            if thing.type in CLUSTERS:
                for other in [k for k, v in content["living"].items() if _goes_with_cluster(Thing(**v), thing)]:
                    gone = Thing(**content["living"].pop(other))
                    content["journal"].append(("gone", f"{gone.type} {gone.name}"))


def _allow_create(thing: Thing, living: list[Thing]) -> None:
    what = f"{thing.type} {thing.name}"
    # To enable an API that is enabled is no error, nor to patch an object a second time.
    fixed = thing.type != "gcp:projects/service:Service" and not thing.type.endswith("Patch")
    if fixed and any(other.type == thing.type and other.id == thing.id for other in living):
        raise PluginError(f"{what}: 409 already exists: {thing.id}")
    if reason := unmet(thing.type, thing.inputs, [(other.type, other.inputs) for other in living]):
        raise PluginError(f"{what}: {reason}")
    clusters = [other for other in living if other.type in CLUSTERS]
    pools = [other for other in living if other.type in POOLS]
    if thing.type.startswith("kubernetes:") and not clusters:
        raise PluginError(f"{what}: the API server does not answer: there is no cluster")
    if thing.type in NEEDS_NODES and not any(_always_has_nodes(pool) for pool in pools):
        raise PluginError(f"{what}: timed out: no node to run on")
    if thing.type == "docker-build:index:Image":
        target = next(iter(thing.inputs.get("tags") or [""]))
        if not any(target.startswith(_image_prefix(other)) for other in living if other.type in REPOSITORIES):
            raise PluginError(f"{what}: push of {target} failed: 404 repository not found")


def _allow_delete(thing: Thing, living: list[Thing]) -> None:
    what = f"{thing.type} {thing.name}"
    if thing.type.startswith("kubernetes:") and not any(other.type in CLUSTERS for other in living):
        raise PluginError(f"{what}: the API server does not answer: its cluster was deleted before")
    if thing.inputs.get("deletionProtection") is True or thing.inputs.get("deletionProtectionEnabled") is True:
        raise PluginError(f"{what}: deletion protection is on; set it to false, `pulumi up`, then destroy")
    for other in living:
        if other.type in HELD_BY.get(thing.type, ()) and other.refers_to(thing):
            raise PluginError(f"{what}: 400 resourceInUseByAnotherResource: used by {other.type} {other.name}")


def _is_kept(thing: Thing) -> bool:
    return thing.type == "gcp:projects/service:Service" and thing.inputs.get("disableOnDestroy") is False


def _goes_with_cluster(thing: Thing, cluster: Thing) -> bool:
    return thing.type.startswith("kubernetes:") or (thing.type in OF_CLUSTER and thing.refers_to(cluster))


def _always_has_nodes(pool: Thing) -> bool:
    scaling = pool.inputs.get("autoscaling") or pool.inputs.get("scalingConfig") or {}
    sizes = [scaling.get(key) for key in ("totalMinNodeCount", "minNodeCount", "minSize")]
    return any(size > 0 for size in (*sizes, pool.inputs.get("nodeCount")) if size)


def _image_prefix(repository: Thing) -> str:
    return repository.outputs.get("repositoryUrl") or f"{repository.outputs['registryUri']}/"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
