"""Makes a Docker builder that reaches a registry of this machine, for `trainyard local use`.

pulumi-docker-build cannot build with Docker's own driver. It takes the builder that it is given by name, else the one
in use, else any that answers, else it makes one in a container with its own network, where `localhost` is that
container (pulumi-docker-build 0.0.22, provider/internal/host.go). It ignores $BUILDX_BUILDER and $BUILDKIT_HOST.
"""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
import sys

from infra.stackfiles import stack_file_values

NAME = "trainyard"
#: Image of a builder in a container; Docker pulls it once.
IMAGE = "moby/buildkit:buildx-stable-1"
CREATE = f"docker buildx create --name {NAME} --driver docker-container --driver-opt network=host --bootstrap"
#: Hosts that builders and nodes take for Docker Hub (distribution/reference, normalize.go).
DOCKER_HUB = ("docker.io", "index.docker.io")
DOCKER_HUB_CREDENTIALS = "https://index.docker.io/v1/"
#: How `docker buildx inspect` shows a builder on the host's network.
HOST_NETWORK = 'network="host"'


def is_loopback(registry: str) -> bool:
    """Whether a registry (host[:port][/path]) is on this machine: those speak plain HTTP by convention."""
    host = registry.split("/")[0].rsplit(":", 1)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_docker_hub(registry: str) -> bool:
    return registry.split("/")[0] in DOCKER_HUB


def credentials_name(registry: str) -> str:
    """The key under which Docker and the kubelet look up the credentials of a registry or an image reference."""
    host = registry.partition("@")[0].split("/")[0]
    # As Docker reads it: you/trainer is on Docker Hub.
    elsewhere = "." in host or ":" in host or host == "localhost"
    return host if elsewhere and not is_docker_hub(host) else DOCKER_HUB_CREDENTIALS


def make_builder() -> str | None:
    """Make the builder NAME unless it exists; return what went wrong, or None."""
    found = subprocess.run(["docker", "buildx", "inspect", NAME], capture_output=True, text=True)
    if found.returncode == 0:
        return (
            None if HOST_NETWORK in found.stdout else f"the builder {NAME} has no network=host; docker buildx rm {NAME}"
        )
    made = subprocess.run(CREATE.split(), capture_output=True, text=True)
    return None if made.returncode == 0 else (made.stderr.strip() or "no answer").splitlines()[-1]


def uses_buildkit() -> bool:
    """Whether BuildKit builds the image of the stack `local`, on any cluster but the local node."""
    return stack_file_values("local").get("image", {}).get("builder", "buildkit") == "buildkit"


def choose_builder(registry: str) -> str | None:
    """The builder that the stack `local` needs to push to a registry; None: any will do. Raises RuntimeError."""
    if not is_loopback(registry) or not uses_buildkit():
        return None
    if not shutil.which("docker"):
        fix = "pulumi config set --stack local --path image.builder buildah"
        print(f"docker is not on PATH; `{fix}` builds without it", file=sys.stderr)
        return None
    if problem := make_builder():
        raise RuntimeError(f"no builder that reaches {registry}: {problem}")
    return NAME
