"""Checks that the image builder is installed, and that the registry accepts its pushes."""

from __future__ import annotations

import shutil
import urllib.error
from collections.abc import Iterator

from infra.buildah import opener
from infra.buildx import is_docker_hub
from infra.config import ConfigError, StackConfig
from infra.doctor.prerequisites import push_credentials
from infra.existing import find_context, image_settings
from infra.finding import Finding, ok, problem, unchecked
from infra.sections import ImageConfig

INSTALL = {
    "buildah": "sudo apt-get install buildah",
    "docker": "pulumi config set --path image.builder buildah   # or: https://docs.docker.com/engine/install",
}
#: Host of Docker Hub's API; docker.io itself is a web site.
DOCKER_HUB_API = "registry-1.docker.io"
PATIENCE = 10  # seconds for a registry to answer


def builder(image: ImageConfig) -> Finding:
    """Check that what builds the image is installed. Of one that is, but cannot build, `pulumi up` says why."""
    if image.builder == "prebuilt":
        return ok("image", "prebuilt, nothing is built")
    program = "buildah" if image.builder == "buildah" else "docker"
    if shutil.which(program):
        return ok("image", f"{program} is on PATH")
    return problem("image", f"{program} is not on PATH, and builds the image", INSTALL[program])


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
        if not offer.account_for(image.registry):
            yield registry(image.registry, image.insecure)


def registry(address: str, insecure: bool) -> Finding:
    """Check that the registry answers, and that Docker may push to it."""
    host = address.split("/")[0]
    url = f"{'http' if insecure else 'https'}://{DOCKER_HUB_API if is_docker_hub(address) else host}/v2/"
    try:
        with opener(insecure).open(url, timeout=PATIENCE):
            return ok("registry", f"{host} answers")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return push_credentials(host, f"docker login {host}")
        return unchecked("registry", f"{host} answers with {error.code}")
    except OSError as error:  # URLError is one
        plain_http = "" if insecure else "   # speaks plain HTTP? then: image.insecure true"
        return problem(
            "registry", f"{host} does not answer ({getattr(error, 'reason', error)})", f"curl {url}{plain_http}"
        )
