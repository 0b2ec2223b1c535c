"""What Google Cloud refuses, said before anything is created.

Most of these the API would refuse too, an hour into `pulumi up`; some it accepts, and the nodes never come. They follow
the preconditions of Google's cluster-toolkit (modules/compute/gke-node-pool) and the documentation of each feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.catalog import FILESTORE_TIERS, MACHINES, SYSTEM_MACHINES, nearest
from infra.gke import offered
from infra.gke.pools import ORDER
from infra.sections import GkeConfig, ImageConfig, NodesConfig, StorageConfig, WorkersConfig

#: flex_start and queued nodes are given for this long (cloud.google.com/kubernetes-engine/docs/concepts/dws).
FLEX_HOURS = 7 * 24


def _zone(gke: GkeConfig | None, nodes: NodesConfig | None) -> Iterator[str]:
    # With credentials Google itself is asked, once the program runs (infra/gke/stack.py).
    if gke is not None and nodes is not None and not offered.has_credentials():
        yield from offered.by_table(gke, nodes)


#: Machines whose network needs what GKE does not set up by itself (GPUDirect-TCPX: four more networks, an installer):
#: with one interface and plain TCP, nodes exchange gradients at a fraction of the speed (cluster-toolkit,
#: examples/gke-a3-highgpu, read 2026-11-22).
ONE_NODE_ONLY = ("a3-highgpu-8g",)


def _network(nodes: NodesConfig | None, workers: WorkersConfig) -> Iterator[str]:
    if nodes is not None and nodes.machine_type in ONE_NODE_ONLY and workers.count + workers.spares > 1:
        yield (
            f"workers.count: {workers.count + workers.spares} workers on {nodes.machine_type}, whose nodes would talk "
            "through one interface and plain TCP, at a fraction of its speed; allowed: 1, or another machine type"
        )


def _system_pool(gke: GkeConfig | None) -> Iterator[str]:
    if gke is not None and gke.system_machine_type not in SYSTEM_MACHINES:
        known = nearest(gke.system_machine_type, SYSTEM_MACHINES)
        yield f"gke.systemMachineType: '{gke.system_machine_type}' is not known; allowed: {known}"


def _disks(nodes: NodesConfig | None) -> Iterator[str]:
    machine = MACHINES.get(nodes.machine_type) if nodes else None
    if nodes is None or machine is None:
        return
    if nodes.disk_type not in machine.boot_disks:
        yield (
            f"nodes.diskType: {nodes.disk_type} cannot be attached to {machine.name}; "
            f"allowed: {', '.join(machine.boot_disks)}"
        )
    if nodes.local_ssds is not None and nodes.local_ssds not in machine.local_ssds:
        allowed = ", ".join(map(str, machine.local_ssds))
        yield f"nodes.localSsds: {machine.name} does not take {nodes.local_ssds} local SSDs; allowed: {allowed}"


def _threads(nodes: NodesConfig | None) -> Iterator[str]:
    machine = MACHINES.get(nodes.machine_type) if nodes else None
    if nodes is not None and machine is not None and nodes.threads_per_core and not machine.threads_selectable:
        yield f"nodes.threadsPerCore: {machine.name} does not let it be chosen; remove it"


def _placement(nodes: NodesConfig | None) -> Iterator[str]:
    if nodes is None or not nodes.compact_placement:
        return
    machine = MACHINES.get(nodes.machine_type)
    if nodes.consumption in ("queued", "flex_start"):
        yield (
            f"nodes.compactPlacement: cannot be combined with nodes.consumption {nodes.consumption}; "
            "allowed with: on_demand, spot, reservation"
        )
    if machine is not None and not machine.compact:
        yield f"nodes.compactPlacement: not offered for {machine.name}; remove it"


def _consumption(nodes: NodesConfig | None) -> Iterator[str]:
    if nodes is None:
        return
    if nodes.consumption == "reservation" and not nodes.reservation:
        yield (
            "nodes.reservation: missing; consumption reservation needs its name (`gcloud compute reservations list`)"
        )
    if nodes.reservation and nodes.consumption != "reservation":
        yield (
            f"nodes.reservation: cannot be combined with nodes.consumption {nodes.consumption}, which takes no "
            "reservation; set nodes.consumption: reservation, or remove it"
        )
    if nodes.consumption in ("flex_start", "queued"):
        machine = MACHINES.get(nodes.machine_type)
        if machine is not None and not machine.accelerators:
            yield (
                f"nodes.consumption: {nodes.consumption} is offered for accelerators only, not for {machine.name}; "
                "allowed: on_demand, spot, reservation"
            )
        if nodes.max_run_hours and nodes.max_run_hours > FLEX_HOURS:
            yield (
                f"nodes.maxRunHours: {nodes.max_run_hours:g} with consumption {nodes.consumption}, which gives nodes "
                f"for 7 days at most; allowed: at most {FLEX_HOURS}"
            )


def _fallback(gke: GkeConfig | None, nodes: NodesConfig | None) -> Iterator[str]:
    if nodes is None:
        return
    if nodes.fallback != "none":
        later = ORDER[ORDER.index(nodes.consumption) + 1 :] if nodes.consumption in ORDER else ()
        machine = MACHINES.get(nodes.machine_type)
        if machine is not None and not machine.accelerators:
            later = tuple(kind for kind in later if kind != "flex_start")
        if nodes.fallback not in later:
            allowed = ", ".join(["none", *later])
            yield (
                f"nodes.fallback: {nodes.fallback} with consumption {nodes.consumption} on {nodes.machine_type}; "
                f"allowed: {allowed}"
            )
        if nodes.compact_placement:
            yield "nodes.fallback: nodes of several pools are not placed together; remove nodes.compactPlacement, or it"
    if gke is None or not nodes.zones:
        return
    region = gke.zone.rsplit("-", 1)[0]
    for zone in nodes.zones:
        if not re.fullmatch(rf"{region}-[a-z]", zone):
            yield f"nodes.zones: '{zone}' is not a zone of {region}, where gke.zone is; give one such as {region}-a"
    if len(set(nodes.zones)) != len(nodes.zones):
        yield f"nodes.zones: {', '.join(nodes.zones)} names a zone twice; remove it"
    for key, used in (("compactPlacement", nodes.compact_placement), ("reservation", nodes.reservation)):
        if used and len(nodes.zones) > 1:
            yield f"nodes.zones: {len(nodes.zones)} zones with nodes.{key}, which is in one; allowed: 1 zone"


def _driver(nodes: NodesConfig | None) -> Iterator[str]:
    machine = MACHINES.get(nodes.machine_type) if nodes else None
    if nodes is not None and machine is not None and not machine.accelerators and nodes.gpu_driver == "daemonset":
        yield f"nodes.gpuDriver: {machine.name} has no accelerator; remove it"


def _storage(storage: StorageConfig) -> Iterator[str]:
    if storage.access_mode == "ReadWriteOnce":
        yield "storage.accessMode: the nodes share the volume; allowed: ReadWriteMany, or remove it"
    if storage.kind == "filestore":
        smallest, largest = FILESTORE_TIERS[storage.tier]
        if not smallest <= storage.size_gib <= largest:
            yield (
                f"storage.sizeGib: {storage.size_gib} with filestore tier {storage.tier}; "
                f"allowed: {smallest} to {largest}"
            )
        if storage.retain:
            yield (
                "storage.retain: a Filestore instance lives in the stack's network and goes with it; use storage.kind "
                "nfs to keep the disk, or copy the data out first"
            )
        if storage.disk:
            yield "storage.disk: only used with storage.kind nfs; set storage.kind, or remove the disk"
        return
    if storage.disk and storage.retain:
        yield "storage.retain: a disk that storage.disk names is never deleted; remove retain"


def _registry(image: ImageConfig) -> Iterator[str]:
    if image.registry:
        yield (
            "image.registry: the stack makes an Artifact Registry repository that its nodes may read; remove it, or "
            "use image.builder prebuilt with an image that they can pull"
        )


RULES = (
    _zone,
    _network,
    _system_pool,
    _disks,
    _threads,
    _placement,
    _consumption,
    _fallback,
    _driver,
    _storage,
    _registry,
)
