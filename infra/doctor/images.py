"""Checks that the image builder works, and that the registry accepts its pushes."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from infra.buildah import basic, opener
from infra.buildx import CREATE, IMAGE, is_docker_hub, is_loopback
from infra.config import ConfigError, StackConfig
from infra.doctor import prerequisites
from infra.doctor.finding import Finding, ok, problem, unchecked, warning
from infra.doctor.prerequisites import run
from infra.existing import find_context, image_settings
from infra.sections import ImageConfig

ENGINE = "sudo systemctl start docker"
INSTALL = "pulumi config set --path image.builder buildah   # or: https://docs.docker.com/engine/install"
REMOTE = "docker buildx create --name NAME --driver remote tcp://HOST:PORT   # then: image.buildx NAME"
#: Host of Docker Hub's API; docker.io itself is a web site.
DOCKER_HUB_API = "registry-1.docker.io"
PATIENCE = 10  # seconds for a registry to answer


#: Debian 12 and Ubuntu 22.04 have Docker without it, and no package of its own (packages.debian.org, 2026-11-28).
BUILDX = "install it after docs.docker.com/engine/install, whose docker-buildx-plugin Debian's own docker.io lacks"


def builder(image: ImageConfig) -> Iterator[Finding]:
    """Check what builds the image; with BuildKit, the builder that the plugin will take (infra/buildx.py)."""
    if image.builder == "prebuilt":
        yield ok("image", "prebuilt, nothing is built")
    elif image.builder == "buildah":
        if shutil.which("buildah"):
            yield ok("image", "buildah is on PATH")
        else:
            yield problem("image", "buildah is not on PATH", "sudo apt-get install buildah")
    elif not shutil.which("docker"):
        yield problem("image", "docker is not on PATH, and the image is built with BuildKit", INSTALL)
    elif run("docker", "buildx", "version") is None:
        yield problem("image", "docker has no buildx plug-in", BUILDX)
    else:
        known = [json.loads(line) for line in (run("docker", "buildx", "ls", "--format", "json") or "").splitlines()]
        yield _buildx(image, known)


def of_existing(config: StackConfig, stack: str) -> Iterator[Finding]:
    """Check builder and registry of an existing cluster, which may offer both itself."""
    try:
        image = image_settings(config, stack)
    except ConfigError as error:
        for found in error.problems:
            yield problem(found.key, found.text, "")
        return
    yield from builder(image)
    if image.builder != "prebuilt" and image.registry:
        _, offer = find_context(config.cluster.context or "", config.cluster.kubeconfig, stack)
        yield from registry(image.registry, image.insecure, offer.account_for(image.registry))


def _buildx(image: ImageConfig, known: list[dict[str, Any]]) -> Finding:
    chosen = _chosen(image.buildx, known)
    if chosen is None and image.buildx:
        names = ", ".join(entry["Name"] for entry in known) or "none"
        fix = CREATE if is_loopback(image.registry or "") else "docker buildx ls   # then: image.buildx NAME"
        return problem("image", f"docker has no builder {image.buildx}; there are: {names}", fix)
    if chosen is None:
        if run("docker", "version", "--format", "{{.Server.Version}}") is None:
            return problem(
                "image", "neither the Docker engine nor a remote BuildKit answers", f"{ENGINE}   # or: {REMOTE}"
            )
        return _pulled("docker makes a builder at the first `pulumi up`")
    name, driver = chosen["Name"], chosen["Driver"]
    if driver in ("", "docker"):
        return problem("image", f"the builder {name} has Docker's own driver, which cannot push; make another", CREATE)
    host = [node for node in chosen["Nodes"] if (node.get("DriverOpts") or {}).get("network") == "host"]
    if driver == "docker-container" and is_loopback(image.registry or "") and not host:
        return problem("image", f"the builder {name} does not reach {image.registry}: it has no network=host", CREATE)
    if _runs(chosen):
        return ok("image", f"BuildKit, builder {name} ({driver})")
    if driver == "docker-container" and not chosen.get("Err"):
        return _pulled(f"the builder {name} starts at the first `pulumi up`")
    return problem(
        "image",
        f"the builder {name} ({driver}) does not answer{': ' if chosen.get('Err') else ''}{chosen.get('Err', '')}",
        ENGINE if driver == "docker-container" else f"docker buildx rm {name}; {REMOTE}",
    )


def _chosen(name: str | None, known: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The builder that the plugin takes; None: no such builder, or it makes one."""
    if name:
        return next((entry for entry in known if entry["Name"] == name), None)
    able = [entry for entry in known if entry["Driver"] not in ("", "docker")]
    current = [entry for entry in able if entry.get("Current")]
    return next(iter(current or [entry for entry in able if _runs(entry)]), None)


def _runs(entry: dict[str, Any]) -> bool:
    return all(node.get("Status") == "running" for node in entry["Nodes"])


def _pulled(text: str) -> Finding:
    if run("docker", "image", "inspect", "--format", "{{.Id}}", IMAGE) is None:
        return warning("image", f"{text}, for which it pulls {IMAGE}, once", f"docker pull {IMAGE}")
    return ok("image", f"BuildKit; {text}")


def registry(address: str, insecure: bool, authfile: str | None = None) -> Iterator[Finding]:
    """Check that the registry answers, and that we may push to it: with the account in `authfile`, or Docker's."""
    host = address.split("/")[0]
    api = DOCKER_HUB_API if is_docker_hub(address) else host
    try:
        asked = urllib.request.Request(f"{'http' if insecure else 'https'}://{api}/v2/")
        with contextlib.suppress(OSError, ValueError, KeyError):  # without an account the registry says so
            asked.add_header("Authorization", basic(authfile or "", host))
        with opener(insecure).open(asked, timeout=PATIENCE):
            yield ok("registry", f"{host} answers")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            yield from prerequisites.push_credentials(host, f"docker login {host}")
        else:
            yield unchecked("registry", f"{host} answers with {error.code}")
    except OSError as error:
        # URLError is one of these.
        reason = str(getattr(error, "reason", error))
        hint = f"curl {'http' if insecure else 'https'}://{api}/v2/"
        plain_http = "" if insecure else "   # speaks plain HTTP? then: image.insecure true"
        yield problem("registry", f"{host} does not answer ({reason})", hint + plain_http)
