"""Checks what a stack on Google Cloud needs: a project with billing, rights, APIs, machines in the zone, quota, free
names.

All checks ask Google's REST APIs with the credentials that the provider would use. One that gets no answer says so, and
the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from infra.config import StackConfig
from infra.doctor import images, prerequisites
from infra.doctor.finding import Finding, asked, ok, or_unchecked, problem, unchecked, warning
from infra.gke.doctor import credentials, quota, versions
from infra.gke.doctor.google_client import LOGIN, Google, NoAnswer, connect
from infra.gke.keys import GkeConfig, GkeNodes, GkeStorage, zones
from infra.gke.services import apis, buckets, used
from infra.stackfiles import is_marked

#: Project of the shipped stack files, until the user sets another.
PLACEHOLDER = "your-project"
#: Prefix of the rights to a bucket, which are not rights in the stack's project.
BUCKETS = "storage.buckets."


def checks(config: StackConfig, stack: str, login: Callable[[], Google] = connect) -> Iterator[Finding]:
    """All checks, those that need no cloud first."""
    gke = config.section(GkeConfig)
    yield from prerequisites.kubectl("gcloud components install kubectl")
    yield from images.builder(config.image)
    if gke.project == PLACEHOLDER:
        yield problem(
            "gke.project",
            f"is still the placeholder {PLACEHOLDER}",
            f"pulumi config set --stack {stack} --path gke.project ID   # gcloud projects list",
        )
    try:
        google = login()
    except NoAnswer as reason:
        yield from credentials.plugin(None)
        yield problem("credentials", str(reason), reason.fix or LOGIN)
        yield unchecked(
            f"project {gke.project}",
            "project, rights, APIs, machine types, quota and names were not checked: no credentials",
        )
        return
    yield ok("credentials", google.identity)
    yield from credentials.plugin(google)
    # buildah pushes with the same logins (containers-auth.json falls back to Docker's).
    if config.image.builder != "prebuilt":
        yield from credentials.push(google, f"{gke.region}-docker.pkg.dev")
    yield from _project(google, gke)
    yield from _rights(google, config)
    yield from _buckets(google, config)
    yield from _apis(google, config)
    yield from versions.kubernetes(google, config)
    yield from versions.driver(google, config)
    yield from _offered(google, config)
    yield from quota.checks(google, config, stack)
    yield from _names(google, config, stack)


def _project(google: Google, gke: GkeConfig) -> Iterator[Finding]:
    yield from asked(name := f"project {gke.project}", _active(google, gke, name))


def _active(google: Google, gke: GkeConfig, name: str) -> Iterator[Finding]:
    try:
        state = google.get("cloudresourcemanager", f"projects/{gke.project}").get("lifecycleState")
    except NoAnswer as reason:
        if reason.disabled_api or reason.status not in (403, 404):
            raise
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
    yield from _billing(google, gke)


@or_unchecked("billing")
def _billing(google: Google, gke: GkeConfig) -> Iterator[Finding]:
    billing = google.get("cloudbilling", f"projects/{gke.project}/billingInfo")
    if billing.get("billingEnabled"):
        yield ok("billing", f"on {billing.get('billingAccountName', 'an account')}")
    else:
        yield problem(
            "billing",
            "the project has no billing account",
            f"gcloud billing projects link {gke.project} --billing-account ACCOUNT   # gcloud billing accounts list",
        )


def permissions(config: StackConfig) -> dict[str, str]:
    """Permission that `pulumi up` of a configuration needs in the project -> the role that grants it."""
    return {name: role for name, role in _permissions(config).items() if not name.startswith(BUCKETS)}


def _permissions(config: StackConfig) -> dict[str, str]:
    return {name: role for feature in used(config).values() for name, role in feature.permissions.items()}


@or_unchecked("rights")
def _rights(google: Google, config: StackConfig) -> Iterator[Finding]:
    project, roles = config.section(GkeConfig).project, permissions(config)
    answer = google.post("cloudresourcemanager", f"projects/{project}:testIamPermissions", {"permissions": list(roles)})
    missing = [name for name in roles if name not in answer.get("permissions", [])]
    if not missing:
        yield ok("rights", "all that are needed")
    for role in sorted({roles[name] for name in missing}):
        lacking = ", ".join(name for name in missing if roles[name] == role)
        yield problem(
            "rights",
            f"you lack {lacking}",
            f"gcloud projects add-iam-policy-binding {project} --member {google.member()} --role {role}",
        )


@or_unchecked("buckets")
def _buckets(google: Google, config: StackConfig) -> Iterator[Finding]:
    """Whether each bucket's policy can be changed, to let the dataset's pod read it. It may be in another project."""
    wanted = {name: role for name, role in _permissions(config).items() if name.startswith(BUCKETS)}
    for bucket in buckets(config):
        try:
            answer = google.get("storage", f"b/{bucket}/iam/testPermissions", permissions=list(wanted))
        except NoAnswer as reason:
            if reason.status != 404:
                raise
            yield problem(f"bucket {bucket}", "does not exist", "name another one in dataset.input")
            continue
        missing = [name for name in wanted if name not in answer.get("permissions", [])]
        if missing:
            grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member {google.member()}"
            yield problem(f"bucket {bucket}", f"you lack {', '.join(missing)}", f"{grant} --role {wanted[missing[0]]}")
        else:
            yield ok(f"bucket {bucket}", "its policy can be changed")


@or_unchecked("APIs")
def _apis(google: Google, config: StackConfig) -> Iterator[Finding]:
    project, names = config.section(GkeConfig).project, apis(config)
    query = [f"projects/{project}/services/{name}" for name in names]
    answer = google.get("serviceusage", f"projects/{project}/services:batchGet", names=query)
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


def _offered(google: Google, config: StackConfig) -> Iterator[Finding]:
    """Whether the zones offer the machine, disk and accelerator types."""
    gke, nodes, machine = config.section(GkeConfig), config.section(GkeNodes), config.machine
    wanted = [("machineTypes", gke.system_machine_type, "machine-types", gke.zone)]
    for zone in zones(config):
        wanted += [("machineTypes", nodes.machine_type, "machine-types", zone)]
        wanted += [("diskTypes", nodes.disk_type, "disk-types", zone)]
        if machine.accelerator:
            wanted += [("acceleratorTypes", machine.accelerator, "accelerator-types", zone)]
    for kind, name, command, zone in wanted:
        try:
            google.get("compute", f"projects/{gke.project}/zones/{zone}/{kind}/{name}")
        except NoAnswer as reason:
            if reason.status != 404:
                yield unchecked(f"zone {zone}", str(reason), reason.fix)
                return
            yield problem(
                name,
                f"is not offered in {zone}",
                f"gcloud compute {command} list --filter name={name} --project {gke.project}   # then set gke.zone",
            )
        else:
            yield ok(name, f"is offered in {zone}")


def _names(google: Google, config: StackConfig, stack: str) -> Iterator[Finding]:
    """Whether the names that the stack gives are taken already."""
    gke, name = config.section(GkeConfig), config.name
    project, zone, region = gke.project, gke.zone, gke.region
    # The paths are Pulumi's ids as well.
    places = {
        "cluster": ("container", f"projects/{project}/locations/{zone}/clusters/{name}"),
        "network": ("compute", f"projects/{project}/global/networks/{name}"),
        "disk": ("compute", f"projects/{project}/zones/{zone}/disks/{name}-data"),
        "repository": ("artifactregistry", f"projects/{project}/locations/{region}/repositories/{name}"),
        "service account": (
            "iam",
            f"projects/{project}/serviceAccounts/{name}-nodes@{project}.iam.gserviceaccount.com",
        ),
    }
    taken: dict[str, dict[str, Any]] = {}
    for what, (service, path) in places.items():
        try:
            taken[what] = google.get(service, path)
        except NoAnswer as reason:
            # An API that is not enabled has created nothing.
            if reason.status != 404 and not reason.disabled_api:
                yield unchecked(f"name of the {what}", str(reason), reason.fix)
    if is_marked(taken.get("cluster", {}).get("resourceLabels"), stack):
        yield ok("names", f"stack {stack} is up: its cluster, network and the rest are its own")
        return
    # Networks and accounts have no labels: only the state says whose they are.
    made = prerequisites.in_state(stack) if taken else set()
    if own := [what for what in taken if places[what][1] in made]:
        yield ok(
            "names", f"{', '.join(own)}: from an earlier `pulumi up` of stack {stack}, and the next goes on with them"
        )
    elif not taken:
        yield ok("names", f"{name} and its parts are free")
    for what, found in taken.items():
        if what in own:
            continue
        if what == "disk" and config.section(GkeStorage).kind != "filestore" and not config.section(GkeStorage).disk:
            yield problem(
                "disk",
                f"{name}-data exists ({found.get('sizeGb', '?')} GB): the one that an earlier stack kept?",
                f"pulumi config set --stack {stack} --path storage.disk {name}-data   # uses it; or: "
                f"gcloud compute disks delete {name}-data --zone {zone} --project {project}",
            )
        elif what != "disk":
            yield problem(
                what,
                f"{name} exists already, and Pulumi's state of stack {stack} does not have it",
                f"pulumi config set --stack {stack} --path cluster.name OTHER-NAME",
            )
