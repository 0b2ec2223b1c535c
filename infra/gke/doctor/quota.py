"""Checks that the project's free quota suffices for a stack on Google Cloud at full size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.config import StackConfig
from infra.facts import load
from infra.features import features
from infra.finding import Finding, ok, problem, unchecked
from infra.gke.doctor.google_client import Google, NoAnswer
from infra.gke.keys import FLEX_HOURS, SYSTEM_DISK_GIB, SYSTEM_DISK_TYPE, GkeConfig, GkeNodes, GkeStorage, kinds
from infra.gke.machines import machines
from infra.machine import Machine
from infra.stackfiles import is_marked

#: Series -> the quota that its CPUs count against; None: only the machine's accelerators are limited.
CPU_QUOTAS = load(Path(__file__).parent.parent / "machines.yaml")["cpu_quotas"]
#: All others are of a region.
OF_THE_PROJECT = ("GPUS_ALL_REGIONS",)
LOCAL_SSD_GIB = 375

#: Quota -> (limit, usage).
Limits = dict[str, tuple[float, float]]


def checks(google: Google, config: StackConfig, stack: str) -> Iterator[Finding]:
    gke, nodes = config.section(GkeConfig), config.section(GkeNodes)
    if _is_up(google, config, stack):
        yield unchecked("quota", f"stack {stack} is up, and what it runs counts as used: not compared")
        return
    regional = _limits(google.get("compute", f"projects/{gke.project}/regions/{gke.region}"))
    overall = _limits(google.get("compute", f"projects/{gke.project}"))
    if nodes.consumption == "reservation":
        yield ok("quota", f"of the workers: reservation {nodes.reservation} has it already")
    for metric, amount in _at_full_size(config, regional).items():
        limits, region = (overall, "") if metric in OF_THE_PROJECT else (regional, gke.region)
        yield _enough(metric, amount, limits, region, gke.project)
    storage = config.section(GkeStorage)
    if storage.kind == "filestore":
        yield unchecked(
            "quota of Filestore",
            f"is not among Compute Engine's; {storage.size_gib} GiB {storage.tier} are needed",
            f"https://console.cloud.google.com/iam-admin/quotas?service=file.googleapis.com&project={gke.project}",
        )


def _is_up(google: Google, config: StackConfig, stack: str) -> bool:
    gke = config.section(GkeConfig)
    try:
        cluster = google.get("container", f"projects/{gke.project}/locations/{gke.zone}/clusters/{config.name}")
    except NoAnswer:
        return False
    return is_marked(cluster.get("resourceLabels"), stack)


def _at_full_size(config: StackConfig, limits: Limits) -> Counter[str]:
    """Quota -> what the stack takes of it."""
    gke, nodes = config.section(GkeConfig), config.section(GkeNodes)
    workers: Counter[str] = Counter()
    for kind in kinds(config):  # Any of these pools may get all nodes.
        workers |= _taken(config, config.machine, kind, nodes.max, limits)
    system_nodes = _taken(config, machines()[gke.system_machine_type], "on_demand", gke.system_nodes, limits)
    storage = config.section(GkeStorage)
    new_disk = storage.kind != "filestore" and not storage.disk
    volume = _disk(storage.disk_type, storage.size_gib) if new_disk else Counter[str]()
    return workers + system_nodes + volume


def _taken(config: StackConfig, machine: Machine, kind: str, count: int, limits: Limits) -> Counter[str]:
    """Quota -> what nodes take of it that are had in one way; those of a reservation, only their boot disks."""
    nodes = config.section(GkeNodes)
    disk, gib = (SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB) if machine.system else (nodes.disk_type, nodes.disk_gib)
    taken = _disk(disk, gib)
    if kind != "reservation":
        ways = _prefixes(nodes, kind)
        if machine.accelerator:
            metric = features("gke")[machine.accelerator].quotas[0]
            taken[_granted([way + metric for way in ways], limits)] += machine.accelerators
            taken["GPUS_ALL_REGIONS"] += machine.accelerators
        if cpus := CPU_QUOTAS.get(machine.family.split("-")[0]):
            taken[_granted(["PREEMPTIBLE_CPUS", cpus] if kind == "spot" else [cpus], limits)] += machine.vcpus
        if nodes.local_ssds and not machine.bundled_ssds and not machine.system:
            names = {"": "LOCAL_SSD_TOTAL_GB", "PREEMPTIBLE_": "PREEMPTIBLE_LOCAL_SSD_GB"}
            taken[_granted([names[way] for way in ways], limits)] += nodes.local_ssds * LOCAL_SSD_GIB
    return Counter({metric: count * amount for metric, amount in taken.items()})


def _prefixes(nodes: GkeNodes, kind: str) -> list[str]:
    """Beginnings of the quotas that nodes of one kind may take from (features.yaml)."""
    if kind in ("flex_start", "queued"):
        return ["PREEMPTIBLE_"]
    limited = nodes.max_run_hours is not None and nodes.max_run_hours <= FLEX_HOURS
    return ["PREEMPTIBLE_", ""] if kind == "spot" or limited else [""]


def _granted(metrics: list[str], limits: Limits) -> str:
    """The first of these quotas that the project has at all: Google counts against it and no other."""
    return next((metric for metric in metrics if limits.get(metric, (0, 0))[0]), metrics[0])


def _disk(kind: str, gib: int) -> Counter[str]:
    metric = {"pd-standard": "DISKS_TOTAL_GB", "hyperdisk-balanced": ""}.get(kind, "SSD_TOTAL_GB")
    return Counter({metric: gib} if metric else {})


def _limits(answer: dict[str, Any]) -> Limits:
    """Metric -> (limit, usage)."""
    return {item["metric"]: (item.get("limit", 0), item.get("usage", 0)) for item in answer.get("quotas", [])}


def _enough(metric: str, amount: float, limits: Limits, region: str, project: str) -> Finding:
    where = f" in {region}" if region else ""
    if metric not in limits:
        return unchecked(f"quota {metric}", f"is not listed{where}; {amount:g} are needed")
    limit, usage = limits[metric]
    if limit - usage >= amount:
        return ok(f"quota {metric}", f"{amount:g} of {limit - usage:g} free{where}")
    scope = "-per-project-region" if region else "-per-project"
    dimensions = f" --dimensions=region={region}" if region else ""
    return problem(
        f"quota {metric}",
        f"{limit - usage:g} of {limit:g} free{where}, {amount:g} are needed",
        f"gcloud beta quotas preferences create --service compute.googleapis.com --project {project} "
        f"--quota-id {metric.replace('_', '-')}{scope} --preferred-value {usage + amount:g}{dimensions}",
    )
