"""What a stack on Google Cloud needs: a project that bills, rights, APIs, machines in the zone, quota, free names.

Everything is asked of Google's REST APIs with the credentials that the provider would use; what cannot be asked is
said, and the rest goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

from infra.catalog import MACHINES
from infra.config import StackConfig
from infra.doctor import everywhere, images
from infra.doctor.finding import Finding, ok, problem, unchecked, warning
from infra.doctor.google import LOGIN, Google, NoAnswer, connect
from infra.gke.cost import SYSTEM_DISK_GIB
from infra.gke.services import needed
from infra.machine import Machine
from infra.owner import is_marked
from infra.sections import GkeConfig, NodesConfig

#: A right that `pulumi up` uses of each API -> the role that has it.
PERMISSIONS = {
    "serviceusage.services.enable": "roles/serviceusage.serviceUsageAdmin",
    "compute.networks.create": "roles/compute.networkAdmin",
    "compute.disks.create": "roles/compute.storageAdmin",
    "container.clusters.create": "roles/container.admin",
    "container.clusters.connect": "roles/container.admin",
    "iam.serviceAccounts.create": "roles/iam.serviceAccountAdmin",
    "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser",
    "resourcemanager.projects.setIamPolicy": "roles/resourcemanager.projectIamAdmin",
    "artifactregistry.repositories.create": "roles/artifactregistry.admin",
}
#: GKE's accelerator names -> the end of their quota's name.
GPU_QUOTAS = {
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
}
#: Series whose CPUs have a quota of their own; the others share CPUS.
CPU_QUOTAS = {"a2": "A2_CPUS", "a3": "A3_CPUS", "c3": "C3_CPUS", "g2": None, "e2": "CPUS", "n1": "CPUS"}
#: Consumption modes that take from the quota of preemptible machines.
PREEMPTIBLE = ("spot", "flex_start", "queued")
#: What stands in a stack file until somebody writes his own.
PLACEHOLDER = "your-project"


def checks(config: StackConfig, stack: str, login: Callable[[], Google] = connect) -> Iterator[Finding]:
    """All of them, those that need no cloud first."""
    assert config.gke is not None
    assert config.nodes is not None
    yield from _plugin()
    yield from everywhere.kubectl("gcloud components install kubectl")
    region = config.gke.zone.rsplit("-", 1)[0]
    yield from images.builder(config.image)
    if config.image.builder in (None, "buildkit"):
        host = f"{region}-docker.pkg.dev"
        yield from everywhere.push_credentials(host, f"gcloud auth configure-docker {host}")
    if config.gke.project == PLACEHOLDER:
        yield problem(
            "gke.project",
            f"is still the placeholder {PLACEHOLDER}",
            f"pulumi config set --stack {stack} --path gke.project ID   # gcloud projects list",
        )
    try:
        google = login()
    except NoAnswer as reason:
        yield problem("credentials", str(reason), LOGIN)
        yield unchecked(
            f"project {config.gke.project}",
            "project, rights, APIs, machine types, quota and names were not looked at, for want of credentials",
        )
        return
    yield ok("credentials", google.identity)
    yield from _project(google, config.gke)
    yield from _rights(google, config.gke.project)
    yield from _apis(google, config)
    yield from _offered(google, config.gke, config.nodes)
    yield from _quotas(google, config)
    yield from _names(google, config, stack)


def _plugin() -> Iterator[Finding]:
    if shutil.which("gke-gcloud-auth-plugin"):
        yield ok("gke-gcloud-auth-plugin", "is on PATH")
    else:
        yield problem(
            "gke-gcloud-auth-plugin",
            "is not on PATH; the cluster's credentials come from it",
            "gcloud components install gke-gcloud-auth-plugin",
        )


def _unanswered(subject: str, reason: NoAnswer, project: str) -> Finding:
    fix = f"gcloud services enable {reason.disabled_api} --project {project}" if reason.disabled_api else ""
    return unchecked(subject, str(reason), fix)


def _project(google: Google, gke: GkeConfig) -> Iterator[Finding]:
    name = f"project {gke.project}"
    try:
        state = google.get("cloudresourcemanager", f"projects/{gke.project}").get("lifecycleState")
    except NoAnswer as reason:
        if reason.disabled_api or reason.status not in (403, 404):
            yield _unanswered(name, reason, gke.project)
        else:
            yield problem(
                name,
                f"does not exist, or {google.identity} may not see it",
                "gcloud projects list   # then: pulumi config set --path gke.project ID",
            )
        return
    if state != "ACTIVE":
        yield problem(name, f"is {str(state).lower().replace('_', ' ')}", f"gcloud projects undelete {gke.project}")
        return
    yield ok(name, "is active")
    try:
        billing = google.get("cloudbilling", f"projects/{gke.project}/billingInfo")
    except NoAnswer as reason:
        yield _unanswered("billing", reason, gke.project)
        return
    if billing.get("billingEnabled"):
        yield ok("billing", f"on {billing.get('billingAccountName', 'an account')}")
    else:
        yield problem(
            "billing",
            "the project has no billing account",
            f"gcloud billing projects link {gke.project} --billing-account ACCOUNT   # gcloud billing accounts list",
        )


def _rights(google: Google, project: str) -> Iterator[Finding]:
    body = {"permissions": list(PERMISSIONS)}
    try:
        answer = google.post("cloudresourcemanager", f"projects/{project}:testIamPermissions", body)
    except NoAnswer as reason:
        yield _unanswered("rights", reason, project)
        return
    missing = [name for name in PERMISSIONS if name not in answer.get("permissions", [])]
    if not missing:
        yield ok("rights", "all that are needed")
    for role in sorted({PERMISSIONS[name] for name in missing}):
        lacking = ", ".join(name for name in missing if PERMISSIONS[name] == role)
        yield problem(
            "rights",
            f"{lacking} missing",
            f"gcloud projects add-iam-policy-binding {project} --member user:YOU --role {role}",
        )


def _apis(google: Google, config: StackConfig) -> Iterator[Finding]:
    assert config.gke is not None
    project, names = config.gke.project, needed(config)
    query = [f"projects/{project}/services/{name}" for name in names]
    try:
        answer = google.get("serviceusage", f"projects/{project}/services:batchGet", names=query)
    except NoAnswer as reason:
        yield _unanswered("APIs", reason, project)
        return
    enabled = {
        service["name"].rsplit("/", 1)[1] for service in answer.get("services", []) if service.get("state") == "ENABLED"
    }
    if missing := [name for name in names if name not in enabled]:
        yield warning(
            "APIs",
            f"{', '.join(missing)} not enabled yet; `pulumi up` does it, and what needs them cannot be checked before",
            f"gcloud services enable {' '.join(missing)} --project {project}",
        )
    else:
        yield ok("APIs", f"all {len(names)} are enabled")


def _offered(google: Google, gke: GkeConfig, nodes: NodesConfig) -> Iterator[Finding]:
    """Machine, disk and accelerator types in the zone."""
    machine = MACHINES[nodes.machine_type]
    wanted = [
        ("machineTypes", nodes.machine_type, "machine-types"),
        ("machineTypes", gke.system_machine_type, "machine-types"),
        ("diskTypes", nodes.disk_type, "disk-types"),
    ]
    if machine.accelerator:
        wanted.append(("acceleratorTypes", machine.accelerator, "accelerator-types"))
    for kind, name, command in wanted:
        try:
            google.get("compute", f"projects/{gke.project}/zones/{gke.zone}/{kind}/{name}")
        except NoAnswer as reason:
            if reason.status != 404:
                yield _unanswered(f"zone {gke.zone}", reason, gke.project)
                return
            yield problem(
                name,
                f"is not offered in {gke.zone}",
                f"gcloud compute {command} list --filter name={name} --project {gke.project}   # then set gke.zone",
            )
        else:
            yield ok(name, f"is offered in {gke.zone}")


def _quotas(google: Google, config: StackConfig) -> Iterator[Finding]:
    assert config.gke is not None
    assert config.nodes is not None
    project, region = config.gke.project, config.gke.zone.rsplit("-", 1)[0]
    machine = MACHINES[config.nodes.machine_type]
    try:
        regional = _limits(google.get("compute", f"projects/{project}/regions/{region}"))
        overall = _limits(google.get("compute", f"projects/{project}"))
    except NoAnswer as reason:
        yield _unanswered("quota", reason, project)
        return
    if config.nodes.consumption == "reservation":
        yield ok("quota", f"of the workers: reservation {config.nodes.reservation} has it already")
    else:
        for metric, amount in _worker_demand(config.nodes, machine).items():
            yield _enough(metric, amount, regional, region, project)
        if machine.accelerators:
            yield _enough("GPUS_ALL_REGIONS", config.nodes.max * machine.accelerators, overall, "", project)
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


def _worker_demand(nodes: NodesConfig, machine: Machine) -> dict[str, float]:
    """What the pool at full size takes of the region's quotas."""
    first = "PREEMPTIBLE_" if nodes.consumption in PREEMPTIBLE else ""
    demand: dict[str, float] = {}
    if machine.accelerator:
        demand[first + GPU_QUOTAS[machine.accelerator]] = nodes.max * machine.accelerators
    cpus = CPU_QUOTAS.get(machine.family.split("-")[0])
    # Preemptible CPUs count against the same quota, unless the project has been given PREEMPTIBLE_CPUS.
    if cpus:
        demand[cpus] = nodes.max * machine.vcpus
    if nodes.local_ssds and not machine.bundled_ssds:
        demand["PREEMPTIBLE_LOCAL_SSD_GB" if first else "LOCAL_SSD_TOTAL_GB"] = nodes.max * nodes.local_ssds * 375
    return demand


def _system_demand(config: StackConfig) -> dict[str, float]:
    assert config.gke is not None
    assert config.nodes is not None
    boots = config.nodes.max * config.nodes.disk_gib if config.nodes.disk_type != "hyperdisk-balanced" else 0
    ssd: float = config.gke.system_nodes * SYSTEM_DISK_GIB
    hdd: float = 0
    if config.nodes.disk_type == "pd-standard":
        hdd += boots
    else:
        ssd += boots
    if config.storage.kind != "filestore" and not config.storage.disk:
        if config.storage.disk_type == "pd-standard":
            hdd += config.storage.size_gib
        else:
            ssd += config.storage.size_gib
    cpus = config.gke.system_nodes * MACHINES[config.gke.system_machine_type].vcpus
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


def _names(google: Google, config: StackConfig, stack: str) -> Iterator[Finding]:
    """Whether what the stack makes is there already, and not by the stack."""
    assert config.gke is not None
    project, zone, name = config.gke.project, config.gke.zone, config.name
    region = zone.rsplit("-", 1)[0]
    places = {
        "cluster": ("container", f"projects/{project}/locations/{zone}/clusters/{name}", "resourceLabels"),
        "network": ("compute", f"projects/{project}/global/networks/{name}", ""),
        "disk": ("compute", f"projects/{project}/zones/{zone}/disks/{name}-data", "labels"),
        "repository": (
            "artifactregistry",
            f"projects/{project}/locations/{region}/repositories/{name}",
            "labels",
        ),
        "service account": (
            "iam",
            f"projects/{project}/serviceAccounts/{name}-nodes@{project}.iam.gserviceaccount.com",
            "",
        ),
    }
    taken: dict[str, dict[str, Any]] = {}
    for what, (service, path, _) in places.items():
        try:
            taken[what] = google.get(service, path)
        except NoAnswer as reason:
            # An API that is not enabled has made nothing.
            if reason.status != 404 and not reason.disabled_api:
                yield _unanswered(f"name of the {what}", reason, project)
    if is_marked(taken.get("cluster", {}).get("resourceLabels"), stack):
        yield ok("names", f"stack {stack} is up: its cluster, network and the rest are its own")
        return
    if not taken:
        yield ok("names", f"{name} and its parts are free")
    for what, found in taken.items():
        if what == "disk" and config.storage.kind != "filestore" and not config.storage.disk:
            yield problem(
                "disk",
                f"{name}-data exists ({found.get('sizeGb', '?')} GB): the one that an earlier stack kept?",
                f"pulumi config set --stack {stack} --path storage.disk {name}-data   # uses it; or: "
                f"gcloud compute disks delete {name}-data --zone {zone} --project {project}",
            )
        elif what != "disk":
            yield problem(
                what,
                f"{name} exists already, and is not of this stack",
                f"pulumi config set --stack {stack} --path cluster.name OTHER-NAME",
            )
