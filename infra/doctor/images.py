"""Checks that the image builder is there, and that the registry accepts its pushes."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator

from infra.buildah import basic, opener
from infra.buildx import is_docker_hub
from infra.config import ConfigError, StackConfig
from infra.doctor.prerequisites import push_credentials, run
from infra.existing import find_context, image_settings
from infra.finding import Finding, ok, problem, unchecked
from infra.sections import ImageConfig

INSTALL = "pulumi config set --path image.builder buildah   # or: https://docs.docker.com/engine/install"
START = "sudo systemctl start docker   # or: docker buildx create --name NAME --driver remote tcp://HOST:PORT"
#: Host of Docker Hub's API; docker.io itself is a web site.
DOCKER_HUB_API = "registry-1.docker.io"
PATIENCE = 10  # seconds for a registry to answer


#: Debian 12 and Ubuntu 22.04 have Docker without it, and no package of its own (packages.debian.org, 2026-11-28).
BUILDX = "install it after docs.docker.com/engine/install, whose docker-buildx-plugin Debian's own docker.io lacks"


def builder(image: ImageConfig) -> Finding:
    """Check what builds the image. Of a builder that is there but cannot build, `pulumi up` says why."""
    if image.builder == "prebuilt":
        return ok("image", "prebuilt, nothing is built")
    if image.builder == "buildah":
        if shutil.which("buildah"):
            return ok("image", "buildah is on PATH")
        return problem("image", "buildah is not on PATH", "sudo apt-get install buildah")
    if not shutil.which("docker"):
        return problem("image", "docker is not on PATH, and the image is built with BuildKit", INSTALL)
    if run("docker", "buildx", "version") is None:
        return problem("image", "docker has no buildx plug-in", BUILDX)
    told = run("docker", "buildx", "ls", "--format", "json")
    if told is None:  # an older one has no --format
        return unchecked("image", "`docker buildx ls --format json` gives no answer", "docker buildx ls")
    listed = [json.loads(line) for line in told.splitlines()]
    if image.buildx:
        names = [entry["Name"] for entry in listed]
        if image.buildx in names:
            return ok("image", f"BuildKit, builder {image.buildx}")
        there = ", ".join(names) or "none"
        return problem("image", f"docker has no builder {image.buildx}; there are: {there}", "docker buildx ls")
    if any(node.get("Status") == "running" for each in listed for node in each.get("Nodes") or []):
        return ok("image", "BuildKit")
    return problem("image", "neither the Docker engine nor a remote BuildKit answers", START)


def of_existing(config: StackConfig, stack: str) -> Iterator[Finding]:
    """Check builder and registry of an existing cluster, which may offer both itself."""
    try:
        image = image_settings(config, stack)
    except ConfigError as error:
        yield from error.problems
        return
    yield builder(image)
    if image.builder != "prebuilt" and image.registry:
        _, offer = find_context(config.cluster.context or "", config.cluster.kubeconfig, stack)
        yield registry(image.registry, image.insecure, offer.account_for(image.registry))


def registry(address: str, insecure: bool, authfile: str | None = None) -> Finding:
    """Check that the registry answers, and that we may push to it: with the account in `authfile`, or Docker's."""
    host = address.split("/")[0]
    api = DOCKER_HUB_API if is_docker_hub(address) else host
    url = f"{'http' if insecure else 'https'}://{api}/v2/"
    try:
        question = urllib.request.Request(url)
        with contextlib.suppress(OSError, ValueError, KeyError):  # without an account the registry says so
            question.add_header("Authorization", basic(authfile or "", host))
        with opener(insecure).open(question, timeout=PATIENCE):
            return ok("registry", f"{host} answers")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return push_credentials(host, f"docker login {host}")
        return unchecked("registry", f"{host} answers with {error.code}")
    except OSError as error:
        # URLError is one of these.
        reason = str(getattr(error, "reason", error))
        plain_http = "" if insecure else "   # speaks plain HTTP? then: image.insecure true"
        return problem("registry", f"{host} does not answer ({reason})", f"curl {url}{plain_http}")
