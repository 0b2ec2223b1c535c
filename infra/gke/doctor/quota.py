"""Checks that the project's free quota suffices for a stack on Google Cloud at full size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.config import StackConfig
from infra.doctor.finding import Finding, ok, or_unchecked, problem, unchecked
from infra.gke.doctor.google_client import Google
from infra.gke.machines import system
from infra.gke.section import FLEX_HOURS, SYSTEM_DISK_GIB, GkeConfig, kinds
from infra.needs import features, load
from infra.sections import NodesConfig

#: Series -> the quota that its CPUs count against; None: only the machine's accelerators are limited.
CPU_QUOTAS = load(Path(__file__).parent.parent / "machines.yaml")["cpu_quotas"]


@or_unchecked("quota")
def checks(google: Google, config: StackConfig) -> Iterator[Finding]:
    gke, nodes = config.section(GkeConfig), config.section(NodesConfig)
    project, region = gke.project, gke.region
    regional = _limits(google.get("compute", f"projects/{project}/regions/{region}"))
    overall = _limits(google.get("compute", f"projects/{project}"))
    if nodes.consumption == "reservation":
        yield ok("quota", f"of the workers: reservation {nodes.reservation} has it already")
    else:
        for metrics, amount in _worker_demand(config):
            # Report a quota that suffices, else the first.
            enough = [_enough(metric, amount, regional, region, project) for metric in metrics]
            yield next((finding for finding in enough if finding.level == "ok"), enough[0])
        if config.machine.accelerators:
            yield _enough("GPUS_ALL_REGIONS", nodes.max * config.machine.accelerators, overall, "", project)
    for metric, amount in _system_demand(config).items():
        yield _enough(metric, amount, regional, region, project)
    for metric in ("NETWORKS", "ROUTERS"):
        yield _enough(metric, 1, overall, "", project)
    if config.storage.kind == "filestore":
        yield unchecked(
            "quota of Filestore",
            f"is not among Compute Engine's; {config.storage.size_gib} GiB {config.storage.tier} are needed",
            f"https://console.cloud.google.com/iam-admin/quotas?service=file.googleapis.com&project={project}",
        )


def _worker_demand(config: StackConfig) -> list[tuple[list[str], float]]:
    """(quotas of the region, any of which will do; the demand of a pool at full size)."""
    nodes, machine = config.section(NodesConfig), config.machine
    ways = list(dict.fromkeys(tuple(_prefixes(nodes, kind)) for kind in kinds(config)))
    demand: list[tuple[list[str], float]] = []
    if machine.accelerator:
        metric = features("gke")[machine.accelerator].quotas[0]
        demand += [([prefix + metric for prefix in way], nodes.max * machine.accelerators) for way in ways]
    cpus = CPU_QUOTAS.get(machine.family.split("-")[0])
    # Preemptible CPUs count against the same quota, unless the project has been given PREEMPTIBLE_CPUS.
    if cpus:
        demand.append(([cpus], nodes.max * machine.vcpus))
    if nodes.local_ssds and not machine.bundled_ssds:
        names = {"": "LOCAL_SSD_TOTAL_GB", "PREEMPTIBLE_": "PREEMPTIBLE_LOCAL_SSD_GB"}
        demand += [([names[prefix] for prefix in way], nodes.max * nodes.local_ssds * 375) for way in ways]
    return demand


def _prefixes(nodes: NodesConfig, kind: str) -> list[str]:
    """Prefixes of the quotas that nodes of one kind count against: either one for nodes limited to a week."""
    if kind in ("spot", "flex_start", "queued"):
        return ["PREEMPTIBLE_"]
    limited = nodes.max_run_hours is not None and nodes.max_run_hours <= FLEX_HOURS
    return ["PREEMPTIBLE_", ""] if limited else [""]


def _system_demand(config: StackConfig) -> dict[str, float]:
    gke, nodes = config.section(GkeConfig), config.section(NodesConfig)
    boots = nodes.max * nodes.disk_gib if nodes.disk_type != "hyperdisk-balanced" else 0
    ssd: float = gke.system_nodes * SYSTEM_DISK_GIB
    hdd: float = 0
    if nodes.disk_type == "pd-standard":
        hdd += boots
    else:
        ssd += boots
    if config.storage.kind != "filestore" and not config.storage.disk:
        if config.storage.disk_type == "pd-standard":
            hdd += config.storage.size_gib
        else:
            ssd += config.storage.size_gib
    cpus = gke.system_nodes * system()[gke.system_machine_type].vcpus
    demand = {"CPUS": float(cpus), "SSD_TOTAL_GB": ssd, "DISKS_TOTAL_GB": hdd, "IN_USE_ADDRESSES": 1.0}
    return {metric: amount for metric, amount in demand.items() if amount}


def _limits(answer: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Metric -> (limit, usage)."""
    return {item["metric"]: (item.get("limit", 0), item.get("usage", 0)) for item in answer.get("quotas", [])}


def _enough(metric: str, amount: float, limits: dict[str, tuple[float, float]], region: str, project: str) -> Finding:
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
