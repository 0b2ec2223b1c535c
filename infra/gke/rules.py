"""What Google Cloud refuses: checked before anything is created.

The API would refuse most of it too, an hour into `pulumi up`; the rest it accepts, and the nodes never come. The rules
follow the preconditions of Google's cluster-toolkit (modules/compute/gke-node-pool) and each feature's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.config import Rule, StackConfig, breaks
from infra.gke.keys import FLEX_HOURS, ORDER, GkeConfig, GkeNodes, GkeStorage, band, bands
from infra.machine import refuse_reference

#: Machines whose network needs GPUDirect-TCPX (four more networks, an installer), which GKE does not set up by itself:
#: with one interface and plain TCP, nodes exchange gradients at a fraction of the speed (cluster-toolkit,
#: examples/gke-a3-highgpu, read 2026-11-22).
ONE_NODE_ONLY = ("a3-highgpu-8g",)


@breaks(
    "gcp-a100",
    {"nodes": {"machineType": "a3-highgpu-8g"}},
    "workers.count: 2 workers on a3-highgpu-8g, whose nodes would exchange gradients over one interface",
)
def _network(config: StackConfig) -> Iterator[str]:
    nodes, workers = config.section(GkeNodes), config.workers
    if nodes.machine_type in ONE_NODE_ONLY and workers.count + workers.spares > 1:
        yield (
            f"workers.count: {workers.count + workers.spares} workers on {nodes.machine_type}, whose nodes would "
            "exchange gradients over one interface with plain TCP, at a fraction of its speed; allowed: 1, or another "
            "machine type"
        )


@breaks(
    "gcp-c3",
    {"nodes": {"diskType": "pd-standard"}},
    "nodes.diskType: pd-standard cannot be attached to c3-highmem-8; allowed: pd-balanced, pd-ssd, hyperdisk",
)
def _disk(config: StackConfig) -> Iterator[str]:
    machine, nodes = config.machine, config.section(GkeNodes)
    if nodes.disk_type not in machine.boot_disks:
        yield (
            f"nodes.diskType: {nodes.disk_type} cannot be attached to {machine.name}; "
            f"allowed: {', '.join(machine.boot_disks)}"
        )


@breaks(
    "gcp-a100",
    {"nodes": {"threadsPerCore": 1}},
    "nodes.threadsPerCore: a2-highgpu-8g has a fixed number of threads per core; remove it",
)
def _threads(config: StackConfig) -> Iterator[str]:
    if config.section(GkeNodes).threads_per_core and not config.machine.threads_selectable:
        yield f"nodes.threadsPerCore: {config.machine.name} has a fixed number of threads per core; remove it"


@breaks(
    "gcp-a100",
    {"nodes": {"compactPlacement": True, "consumption": "queued"}, "check": {"enabled": False}},
    "nodes.compactPlacement: cannot be combined with nodes.consumption queued; allowed with: on_demand, spot, reser",
)
@breaks(
    "gcp-a100",
    {
        "nodes": {"machineType": "n1-standard-8", "compactPlacement": True, "localSsds": 0},
        "training": {"precision": "fp16"},
    },
    "nodes.compactPlacement: not offered for n1-standard-8",
)
def _placement(config: StackConfig) -> Iterator[str]:
    nodes = config.section(GkeNodes)
    if not nodes.compact_placement:
        return
    if nodes.consumption in ("queued", "flex_start"):
        yield (
            f"nodes.compactPlacement: cannot be combined with nodes.consumption {nodes.consumption}; "
            "allowed with: on_demand, spot, reservation"
        )
    if not config.machine.compact:
        yield f"nodes.compactPlacement: not offered for {config.machine.name}; remove it"


@breaks(
    "gcp-a100",
    {"nodes": {"consumption": "queued"}},
    "check.enabled: with nodes.consumption queued, nodes are provisioned only for the training; remove it",
)
@breaks("gcp-a100", {"nodes": {"consumption": "reservation"}}, "nodes.reservation: missing; consumption reservation")
@breaks(
    "gcp-a100",
    {"nodes": {"consumption": "flex_start", "maxRunHours": 200}},
    "nodes.maxRunHours: 200 with consumption flex_start, which gives nodes for 7 days at most; allowed: at most 168",
)
@breaks(
    "gcp-c3",
    {"nodes": {"consumption": "queued"}},
    "nodes.consumption: queued is offered for accelerators only, not for c3-highmem-8",
)
def _consumption(config: StackConfig) -> Iterator[str]:
    nodes = config.section(GkeNodes)
    if nodes.consumption == "reservation" and not nodes.reservation:
        yield (
            "nodes.reservation: missing; consumption reservation needs its name (`gcloud compute reservations list`)"
        )
    if nodes.consumption == "queued" and config.check.enabled:
        yield "check.enabled: with nodes.consumption queued, nodes are provisioned only for the training; remove it"
    if nodes.consumption in ("flex_start", "queued"):
        if nodes.max_run_hours and nodes.max_run_hours > FLEX_HOURS:
            yield (
                f"nodes.maxRunHours: {nodes.max_run_hours:g} with consumption {nodes.consumption}, which gives nodes "
                f"for 7 days at most; allowed: at most {FLEX_HOURS}"
            )
        if not config.machine.accelerators:
            yield (
                f"nodes.consumption: {nodes.consumption} is offered for accelerators only, not for "
                f"{nodes.machine_type}; allowed: on_demand, spot, reservation"
            )


@breaks(
    "gcp-a100",
    {"nodes": {"consumption": "on_demand", "fallback": "flex_start"}},
    "nodes.fallback: flex_start with consumption on_demand on a2-highgpu-8g; allowed: none",
)
@breaks(
    "gcp-c3",
    {"nodes": {"consumption": "spot", "fallback": "flex_start"}},
    "nodes.fallback: flex_start with consumption spot on c3-highmem-8; allowed: none, on_demand",
)
@breaks(
    "gcp-a100",
    {"nodes": {"consumption": "spot", "fallback": "on_demand", "compactPlacement": True}},
    "nodes.fallback: nodes of several pools are not placed together",
)
def _fallback(config: StackConfig) -> Iterator[str]:
    nodes = config.section(GkeNodes)
    if nodes.fallback != "none":
        later = ORDER[ORDER.index(nodes.consumption) + 1 :] if nodes.consumption in ORDER else ()
        if config.node_machine is not None and not config.machine.accelerators:
            later = tuple(kind for kind in later if kind != "flex_start")
        if nodes.fallback not in later:
            allowed = ", ".join(["none", *later])
            yield (
                f"nodes.fallback: {nodes.fallback} with consumption {nodes.consumption} on {nodes.machine_type}; "
                f"allowed: {allowed}"
            )
        if nodes.compact_placement:
            yield (
                "nodes.fallback: nodes of several pools are not placed together; remove nodes.compactPlacement or "
                "nodes.fallback"
            )


@breaks(
    "gcp-a100",
    {"nodes": {"zones": ["us-east1-b"]}},
    "nodes.zones: 'us-east1-b' is not a zone of us-central1, where gke.zone is",
)
@breaks(
    "gcp-a100",
    {"nodes": {"zones": ["us-central1-a", "us-central1-b"], "compactPlacement": True}},
    "nodes.zones: 2 zones with nodes.compactPlacement, which is in one; allowed: 1 zone",
)
def _zones(config: StackConfig) -> Iterator[str]:
    nodes, gke = config.section(GkeNodes), config.section(GkeConfig)
    for zone in nodes.zones:
        if not re.fullmatch(rf"{gke.region}-[a-z]", zone):
            yield f"nodes.zones: '{zone}' is not a zone of {gke.region}, where gke.zone is; give one such as {gke.zone}"
    for key, used in (("compactPlacement", nodes.compact_placement), ("reservation", nodes.reservation)):
        if used and len(nodes.zones) > 1:
            yield f"nodes.zones: {len(nodes.zones)} zones with nodes.{key}, which is in one; allowed: 1 zone"


@breaks("gcp-c3", {"nodes": {"gpuDriver": "daemonset"}}, "nodes.gpuDriver: c3-highmem-8 has no accelerator; remove it")
@breaks("gcp-c3", {"nodes": {"gpuDriverVersion": "LATEST"}}, "nodes.gpuDriverVersion: c3-highmem-8 has no accelerator")
def _driver(config: StackConfig) -> Iterator[str]:
    given = config.section(GkeNodes).model_fields_set
    for key, field in (("gpuDriver", "gpu_driver"), ("gpuDriverVersion", "gpu_driver_version")):
        if field in given and not config.machine.accelerators:
            yield f"nodes.{key}: {config.machine.name} has no accelerator; remove it"


@breaks(
    "gcp-a100",
    {"storage": {"kind": "filestore", "sizeGib": 12000}},
    "storage.sizeGib: 12000 with filestore tier ZONAL; allowed: 100 to 10239 or 10240 to 102400 in steps",
)
@breaks(
    "gcp-a100",
    {"storage": {"kind": "filestore", "sizeGib": 1024, "retain": True}},
    "storage.retain: a Filestore instance lives in the stack's network and goes with it",
)
@breaks(
    "gcp-a100",
    {"image": {"builder": "prebuilt", "ref": "x@sha256:" + "0" * 64}},
    "storage.serverImage: missing; builder prebuilt needs the image as name@sha256:",
)
def _storage(config: StackConfig) -> Iterator[str]:
    storage = config.section(GkeStorage)
    volume = storage.tier if storage.kind == "filestore" else storage.kind
    if band(volume, storage.size_gib) is None:
        what = f"filestore tier {volume}" if storage.kind == "filestore" else "nfs, whose disk it is"
        allowed = " or ".join(map(str, bands(volume)))
        yield f"storage.sizeGib: {storage.size_gib} with {what}; allowed: {allowed}"
    if storage.kind == "filestore":
        if storage.retain:
            yield (
                "storage.retain: a Filestore instance lives in the stack's network and goes with it; use storage.kind "
                "nfs to keep the disk, or copy the data out first"
            )
        return
    yield from refuse_reference("storage.serverImage", storage.server_image, config.image)
    if storage.disk and not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", storage.disk):
        yield f"storage.disk: '{storage.disk}' is no name of a disk; `gcloud compute disks list` shows them"


RULES: tuple[Rule, ...] = (
    _network,
    _disk,
    _threads,
    _placement,
    _consumption,
    _fallback,
    _zones,
    _driver,
    _storage,
)
