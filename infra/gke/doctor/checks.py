"""Checks what a stack on Google Cloud needs: login, a project with billing, rights, APIs, version, machines, quota.

All checks ask Google's REST APIs with the credentials that the provider would use. One that gets no answer says so, and
the others go on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

from infra import finding
from infra.config import StackConfig
from infra.doctor import images, prerequisites
from infra.facts import numbers
from infra.finding import Finding, ok, or_unchecked, problem, unchecked, warning
from infra.gke.availability import lacking
from infra.gke.cluster import PLUGIN
from infra.gke.doctor import quota
from infra.gke.doctor.google_client import LOGIN, Google, NoAnswer, connect
from infra.gke.keys import GkeConfig, zones
from infra.gke.services import apis, used

#: Project of the shipped stack files, until the user sets another.
PLACEHOLDER = "your-project"
#: Prefix of the rights to a bucket, which are not rights in the stack's project.
BUCKETS = "storage.buckets."


def checks(config: StackConfig, stack: str, login: Callable[[], Google] = connect) -> Iterator[Finding]:
    """All checks, those that need no cloud first."""
    gke = config.section(GkeConfig)
    yield prerequisites.kubectl("gcloud components install kubectl")
    yield images.builder(config.image)
    if gke.project == PLACEHOLDER:
        yield problem(
            "gke.project",
            f"is still the placeholder {PLACEHOLDER}",
            f"pulumi config set --stack {stack} --path gke.project ID   # gcloud projects list",
        )
    yield _plugin()
    try:
        google = login()
    except NoAnswer as reason:
        yield problem("credentials", str(reason), reason.fix or LOGIN)
        yield unchecked(
            f"project {gke.project}",
            "project, rights, APIs, version, machines and quota were not checked: no credentials",
        )
        return
    yield ok("credentials", google.identity)
    # buildah pushes with the same logins (containers-auth.json falls back to Docker's).
    if config.image.builder != "prebuilt":
        host = f"{gke.region}-docker.pkg.dev"
        yield prerequisites.push_credentials(host, f"gcloud auth configure-docker {host}   # after: {LOGIN}")
    yield from or_unchecked(f"project {gke.project}", _project(google, gke))
    yield from or_unchecked("rights", _rights(google, config))
    yield from or_unchecked("buckets", _buckets(google, config))
    yield from or_unchecked("APIs", _apis(google, config))
    yield from or_unchecked("GKE's version", _version(google, config))
    yield from or_unchecked("machines", _offered(google, config))
    yield from or_unchecked("quota", quota.checks(google, config, stack))


def _plugin() -> Finding:
    """Run the plug-in that the kubeconfig names, as the kubeconfig runs it: being on PATH, it may have no login."""
    name = str(PLUGIN["command"])
    if not shutil.which(name):
        return problem(name, "is not on PATH; the cluster's credentials come from it", str(PLUGIN["installHint"]))
    try:
        prerequisites.ask(name, *PLUGIN["args"])
    except finding.NoAnswer as reason:
        return problem(name, f"gives no credentials ({reason})", LOGIN)
    return ok(name, "gives credentials")


def _project(google: Google, gke: GkeConfig) -> Iterator[Finding]:
    name = f"project {gke.project}"
    try:
        billing = google.get("cloudbilling", f"projects/{gke.project}/billingInfo")
    except NoAnswer as reason:
        if reason.disabled or reason.status not in (403, 404):
            raise
        fix = "gcloud projects list   # then: pulumi config set --path gke.project ID"
        yield problem(name, f"does not exist, or {google.identity} may not see it", fix)
        return
    if billing.get("billingEnabled"):
        yield ok(name, f"is billed to {billing.get('billingAccountName', 'an account')}")
    else:
        link = f"gcloud billing projects link {gke.project} --billing-account ACCOUNT   # gcloud billing accounts list"
        yield problem(name, "has no billing account", link)


def permissions(config: StackConfig) -> dict[str, str]:
    """Permission that `pulumi up` of a configuration needs in the project -> the role that grants it."""
    return {name: role for name, role in _permissions(config).items() if not name.startswith(BUCKETS)}


def _permissions(config: StackConfig) -> dict[str, str]:
    return {name: role for feature in used(config).values() for name, role in feature.permissions.items()}


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


def _buckets(google: Google, config: StackConfig) -> Iterator[Finding]:
    """Whether each bucket's policy can be changed, to let the dataset's pod read it. It may be in another project."""
    wanted = {name: role for name, role in _permissions(config).items() if name.startswith(BUCKETS)}
    for bucket in config.dataset.buckets("gs"):
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


def _version(google: Google, config: StackConfig) -> Iterator[Finding]:
    """Whether the version that the release channel gives a new cluster has all features of the stack."""
    gke = config.section(GkeConfig)
    answer = google.get("container", f"projects/{gke.project}/locations/{gke.zone}/serverConfig")
    given = {item["channel"]: item.get("defaultVersion", "") for item in answer.get("channels", [])}
    version = given.get(gke.release_channel, "")
    needed = {name: it.versions["gke"] for name, it in used(config).items() if "gke" in it.versions}
    late = {name: oldest for name, oldest in needed.items() if numbers(oldest) > numbers(version)}
    for name, oldest in late.items():
        yield problem(
            "GKE's version",
            f"{gke.release_channel} gives {version or 'none'}; {name} needs {oldest} or newer",
            f"pulumi config set --path gke.releaseChannel RAPID   # or do without {name}",
        )
    if not late:
        yield ok("GKE's version", f"{version} has all that is used")


def _offered(google: Google, config: StackConfig) -> Iterator[Finding]:
    missing = False
    for kind, name, zone in lacking(google, config):
        missing = True
        listing = f"gcloud compute {kind}-types list --filter name={name}"
        project = config.section(GkeConfig).project
        yield problem(name, f"is not offered in {zone}", f"{listing} --project {project}   # then set gke.zone")
    if not missing:
        yield ok("machines", f"{', '.join(zones(config))} has all types of machines, disks and accelerators")
