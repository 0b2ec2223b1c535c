"""The section `gke` of a stack's configuration, and what follows from it and `nodes`: the ways to obtain the nodes that
train, and their zones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from infra.config import StackConfig
from infra.effect import Impossible, OnlyWith, Replaces, changed, smaller
from infra.facts import load
from infra.sections import Hours, NodesConfig, StorageConfig, VolumeGib, has_been
from trainer.config.base import Section

#: Ways to obtain nodes between which `nodes.fallback` chooses, the cheapest first.
ORDER = ("spot", "flex_start", "on_demand")
#: Maximum life of flex_start and queued nodes, hours (cloud.google.com/kubernetes-engine/docs/concepts/dws).
FLEX_HOURS = 7 * 24
#: Boot disk of the system pool's nodes.
SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB = "pd-balanced", 100
#: Where the environment has a ready token for Google's APIs, and a file of credentials.
TOKEN, FILE = "GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"
#: Key of the label and taint that mark the pools of a compute class; our class's name, which may not begin with `gke`.
COMPUTE_CLASS, CLASS = "cloud.google.com/compute-class", "trainyard-workers"


@cache
def channels() -> dict[str, dict[str, Any]]:
    """Release channel of GKE -> the version that it gave, and when."""
    return load(Path(__file__).with_name("versions.yaml"))["channels"]


if TYPE_CHECKING:
    Channel = str
else:
    Channel = Literal[tuple(channels())]


def _past(text: str) -> str:
    """A time behind us in UTC, as GKE spells it; it refuses an exclusion that begins later, when the cluster is half
    made."""
    try:
        when = datetime.fromisoformat(text)
        spelled = when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        when, spelled = None, ""
    if when is None or when.tzinfo is None or when.microsecond:
        raise ValueError(f"'{text}' is no time with its zone; give one such as 2026-11-01T00:00:00Z")
    return has_been(spelled, when)


@dataclass(frozen=True)
class Band:
    """Sizes that the cloud gives, GiB."""

    smallest: int
    largest: int
    step: int

    def __contains__(self, gib: int) -> bool:
        return gib in range(self.smallest, self.largest + 1, self.step)

    def __str__(self) -> str:
        return f"{self.smallest} to {self.largest}{f' in steps of {self.step}' if self.step > 1 else ''}"


@cache
def bands(volume: str) -> tuple[Band, ...]:
    """The sizes of `nfs` or of a tier of Filestore."""
    return tuple(Band(*each) for each in load(Path(__file__).parent / "volumes.yaml")["sizes"][volume])


def band(volume: str, gib: int) -> Band | None:
    """The band of `nfs` or of a tier of Filestore that has the size; None: no volume is so large."""
    return next((each for each in bands(volume) if gib in each), None)


def out_of_its_band(old: int, new: int) -> bool:
    return band("ZONAL", old) != band("ZONAL", new)


#: What is made anew under a name that is taken (terraform-provider-google resource_compute_disk.go, IsDiskShrinkage,
#: and resource_filestore_instance.go at e03b762, read 2026-11-22). What of Filestore grows and shrinks:
#: cloud.google.com/filestore/docs/editing-instances, read 2026-11-22; docs.cloud.google.com/filestore/docs/
#: service-tiers-zonal (limits), read 2026-11-28.
_ITS_NAME = "and a new one cannot have its name while it is there"


class GkeConfig(Section):
    project: Annotated[
        str,
        StringConstraints(pattern=r"^[a-z][-a-z0-9]{4,28}[a-z0-9]$"),
        Impossible(changed, "what is in one project cannot be deleted by a provider of another"),
    ]
    """Id of the Google Cloud project, which must exist and have billing."""
    zone: Annotated[str, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$"), Replaces("cluster, data")]
    """Zone of everything: accelerators are zonal, and a zonal control plane starts faster at the same price."""
    release_channel: Channel = "REGULAR"
    """Release channel from which a new cluster has its version, and GKE upgrades the control plane."""
    no_upgrades_since: Annotated[str, AfterValidator(_past)] | None = "2026-11-01T00:00:00Z"
    """From this time until the version's end of support, GKE upgrades neither the minor version nor the nodes, which
    would restart a training. null: upgrades come with the channel."""
    system_machine_type: str = "e2-standard-4"
    """Machine type of the nodes for etcd, the dataset Job, TensorBoard and the NFS server: on demand, without
    accelerators."""
    system_nodes: int = Field(default=3, ge=1, le=10)
    """Maximum number of nodes of the system pool; one runs at rest."""

    @property
    def region(self) -> str:
        return self.zone.rsplit("-", 1)[0]


class GkeNodes(NodesConfig):
    consumption: Annotated[Literal["on_demand", "spot", "flex_start", "queued", "reservation"], Replaces("workers")] = (
        "on_demand"
    )
    """How the nodes are obtained. `on_demand`: now or not at all. `spot`: 40 to 70 % cheaper, but taken back at any
    time. `flex_start`: when there is capacity, one by one, for 7 days at most. `queued`: like flex_start, but all nodes
    together. `reservation`: from `nodes.reservation`."""
    fallback: Literal["none", "flex_start", "on_demand"] = "none"
    """What to do when no zone has such a machine. `none`: wait, or continue with the workers that are there.
    `on_demand`: try flex_start for 15 minutes, then add the same machine at full price until its pod ends.
    `flex_start`: only try that."""
    zones: tuple[str, ...] = Field(default=(), max_length=8)
    """Zones of the region that the nodes may come from. Default: `gke.zone`, where all else stays."""
    reservation: Annotated[str | None, Replaces("workers"), OnlyWith("nodes.consumption", "reservation")] = None
    """Name of the reservation that the nodes come from."""
    disk_type: Literal["pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"] = "pd-balanced"
    """Type of the boot disk."""
    threads_per_core: Annotated[Literal[1, 2] | None, Replaces("workers")] = None
    """1 switches hyperthreading off, which halves the CPUs that pods can ask for. Default: the machine type's own."""
    max_run_hours: Annotated[Hours | None, Replaces("workers")] = None
    """Remove a node after this time, whatever runs on it: a guard against a forgotten run. The training resumes on a
    new node; `job.maxHours` ends it."""
    gpu_driver: Annotated[Literal["managed", "daemonset"], Replaces("workers")] = "managed"
    """Who installs the accelerators' driver. `managed`: GKE, at the node's start. `daemonset`: a DaemonSet of the
    stack."""
    gpu_driver_version: Annotated[
        Literal["DEFAULT", "LATEST"], Replaces("workers"), OnlyWith("nodes.gpuDriver", "managed")
    ] = "LATEST"
    """Driver version of the node's image. LATEST, because torch's CUDA libraries need a recent one."""


WITH_NFS = OnlyWith("storage.kind", "nfs")


class GkeStorage(StorageConfig):
    kind: Annotated[Literal["nfs", "filestore"], Replaces("data")] = "nfs"
    """`nfs`: a disk behind an NFS server in the cluster. `filestore`: Google's NFS service."""
    retain: bool = False
    """With nfs: the disk stays when the stack is destroyed, and is still billed; `storage.disk` brings it back."""
    disk: Annotated[str | None, Replaces("data"), WITH_NFS] = None
    """Name of an existing disk in the zone to use, which is never deleted."""
    disk_type: Annotated[
        Literal["pd-ssd", "pd-balanced", "pd-standard"],
        Impossible(changed, f"a disk keeps its type, {_ITS_NAME}", on=("nfs",)),
        WITH_NFS,
    ] = "pd-balanced"
    """Type of the disk. pd-ssd costs 70 % more and serves no faster: the NFS server's machine, an
    e2-standard-4, is the limit with either."""
    tier: Annotated[
        Literal["ZONAL", "BASIC_SSD", "BASIC_HDD"],
        Impossible(changed, f"an instance keeps its tier, {_ITS_NAME}", on=("filestore",)),
        OnlyWith("storage.kind", "filestore"),
    ] = "ZONAL"
    """The service tier."""
    size_gib: Annotated[
        VolumeGib,
        Impossible(smaller, f"a disk does not shrink, {_ITS_NAME}", on=("nfs",)),
        Impossible(smaller, "a basic Filestore instance only grows", on=("filestore BASIC_HDD", "filestore BASIC_SSD")),
        Impossible(
            out_of_its_band,
            "an instance keeps the range of sizes that it was made in, below 10240 GiB or from there on",
            on=("filestore ZONAL",),
        ),
    ] = 10
    """Size of the volume, GiB; it can grow, on filestore's tier ZONAL within its range."""
    server_image: Annotated[str | None, WITH_NFS, OnlyWith("image.builder", "prebuilt")] = None
    """The NFS server's image, by digest."""


def kinds(config: StackConfig) -> tuple[str, ...]:
    """The ways to obtain the nodes that train, the preferred first."""
    nodes = config.section(GkeNodes)
    if nodes.fallback == "none" or nodes.consumption not in ORDER:
        return (nodes.consumption,)
    accelerated = config.machine.accelerators > 0
    between = ORDER[ORDER.index(nodes.consumption) : ORDER.index(nodes.fallback) + 1]
    return tuple(kind for kind in between if kind != "flex_start" or accelerated)


def pool_name(config: StackConfig, kind: str) -> str:
    """Name of the node pool for one of the `kinds`."""
    return "workers" if kind == config.section(GkeNodes).consumption else f"workers-{kind.replace('_', '-')}"


def zones(config: StackConfig) -> tuple[str, ...]:
    """The zones of the nodes that train."""
    return config.section(GkeNodes).zones or (config.section(GkeConfig).zone,)
