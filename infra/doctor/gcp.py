"""What a stack on Google Cloud needs: a project that bills, rights, APIs, machines in the zone, quota, free names.

Everything is asked of Google's REST APIs with the credentials that the provider would use; what cannot be asked is
said, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from infra.catalog import MACHINES
from infra.config import StackConfig
from infra.doctor import everywhere, gcp_login, images
from infra.doctor.finding import Finding, ok, problem, unchecked, warning
from infra.doctor.google import LOGIN, Google, NoAnswer, connect
from infra.gke.cost import SYSTEM_DISK_GIB
from infra.gke.pools import kinds, zones
from infra.gke.rules import FLEX_HOURS
from infra.gke.scope import region_of
from infra.gke.services import apis, used
from infra.machine import Machine
from infra.needs import features
from infra.owner import is_marked
from infra.sections import GkeConfig, NodesConfig

#: Series whose CPUs have a quota of their own; the others share CPUS.
CPU_QUOTAS = {"a2": "A2_CPUS", "a3": "A3_CPUS", "c3": "C3_CPUS", "g2": None, "e2": "CPUS", "n1": "CPUS"}
#: What stands in a stack file until somebody writes his own.
PLACEHOLDER = "your-project"


def checks(config: StackConfig, stack: str, login: Callable[[], Google] = connect) -> Iterator[Finding]:
    """All of them, those that need no cloud first."""
    assert config.gke is not None
    assert config.nodes is not None
    yield from everywhere.kubectl("gcloud components install kubectl")
    yield from images.builder(config.image)
    if config.gke.project == PLACEHOLDER:
        yield problem(
            "gke.project",
            f"is still the placeholder {PLACEHOLDER}",
            f"pulumi config set --stack {stack} --path gke.project ID   # gcloud projects list",
        )
    try:
        google = login()
    except NoAnswer as reason:
        yield from gcp_login.plugin(None)
        yield problem("credentials", str(reason), LOGIN)
        yield unchecked(
            f"project {config.gke.project}",
            "project, rights, APIs, machine types, quota and names were not looked at, for want of credentials",
        )
        return
    yield ok("credentials", google.identity)
    yield from gcp_login.plugin(google)
    # buildah pushes with the same logins (containers-auth.json falls back to Docker's).
    if config.image.builder != "prebuilt":
        yield from gcp_login.push(google, f"{region_of(config.gke.zone)}-docker.pkg.dev")
    yield from _project(google, config.gke)
    yield from _rights(google, config)
    yield from _apis(google, config)
    yield from _offered(google, config.gke, config.nodes)
    yield from _quotas(google, config)
    yield from _names(google, config, stack)


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


def permissions(config: StackConfig) -> dict[str, str]:
    """What `pulumi up` has to be allowed for a configuration -> the role that allows it."""
    return {name: role for feature in used(config).values() for name, role in feature.permissions.items()}


def _rights(google: Google, config: StackConfig) -> Iterator[Finding]:
    assert config.gke is not None
    project, roles = config.gke.project, permissions(config)
    try:
        answer = google.post(
            "cloudresourcemanager", f"projects/{project}:testIamPermissions", {"permissions": list(roles)}
        )
    except NoAnswer as reason:
        yield _unanswered("rights", reason, project)
        return
    missing = [name for name in roles if name not in answer.get("permissions", [])]
    if not missing:
        yield ok("rights", "all that are needed")
    for role in sorted({roles[name] for name in missing}):
        lacking = ", ".join(name for name in missing if roles[name] == role)
        yield problem(
            "rights",
            f"{lacking} missing",
            f"gcloud projects add-iam-policy-binding {project} --member user:YOU --role {role}",
        )


def _apis(google: Google, config: StackConfig) -> Iterator[Finding]:
    assert config.gke is not None
    project, names = config.gke.project, apis(config)
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
    """Machine, disk and accelerator types in the zones."""
    machine = MACHINES[nodes.machine_type]
    wanted = [("machineTypes", gke.system_machine_type, "machine-types", gke.zone)]
    for zone in zones(gke, nodes):
        wanted += [("machineTypes", nodes.machine_type, "machine-types", zone)]
        wanted += [("diskTypes", nodes.disk_type, "disk-types", zone)]
        if machine.accelerator:
            wanted += [("acceleratorTypes", machine.accelerator, "accelerator-types", zone)]
    for kind, name, command, zone in wanted:
        try:
            google.get("compute", f"projects/{gke.project}/zones/{zone}/{kind}/{name}")
        except NoAnswer as reason:
            if reason.status != 404:
                yield _unanswered(f"zone {zone}", reason, gke.project)
                return
            yield problem(
                name,
                f"is not offered in {zone}",
                f"gcloud compute {command} list --filter name={name} --project {gke.project}   # then set gke.zone",
            )
        else:
            yield ok(name, f"is offered in {zone}")


def _quotas(google: Google, config: StackConfig) -> Iterator[Finding]:
    assert config.gke is not None
    assert config.nodes is not None
    project, region = config.gke.project, region_of(config.gke.zone)
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
        for metrics, amount in _worker_demand(config, machine):
            # The one that has enough, else the first.
            enough = [_enough(metric, amount, regional, region, project) for metric in metrics]
            yield next((finding for finding in enough if finding.level == "ok"), enough[0])
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


def _worker_demand(config: StackConfig, machine: Machine) -> list[tuple[list[str], float]]:
    """(quotas of the region, any of which will do; what a pool at full size takes of it)."""
    nodes = config.nodes
    assert nodes is not None
    ways = list(dict.fromkeys(tuple(_prefixes(nodes, kind)) for kind in kinds(nodes)))
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
    """Beginnings of the quotas that nodes of one kind take from: either, where they are had for a week at most."""
    if kind in ("spot", "flex_start", "queued"):
        return ["PREEMPTIBLE_"]
    limited = nodes.max_run_hours is not None and nodes.max_run_hours <= FLEX_HOURS
    return ["PREEMPTIBLE_", ""] if limited else [""]


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
