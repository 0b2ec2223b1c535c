"""Registries: push the trainer's image, and let Docker push to a stack's."""

from __future__ import annotations

import shutil
import subprocess
from typing import Annotated

import typer

from cli import CommandError
from cli.target import StackName, configuration
from infra.gke.section import GkeConfig
from infra.image import TRAINER, content_hash, stage
from infra.stackfiles import ROOT


def image(
    registry: Annotated[str, typer.Argument(metavar="REGISTRY", help="Where you may push to: ghcr.io/you.")],
) -> int:
    """Push the trainer's image, with SBOM and provenance, for a stack's `image.ref`."""
    _need("docker")
    if subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode:
        raise CommandError("docker has no buildx plug-in; sudo apt-get install docker-buildx-plugin")
    version = content_hash(TRAINER, {})
    context, tag = stage(TRAINER, version), f"{registry}/{TRAINER.repository}:{version}"
    build = ["build", "--platform", "linux/amd64", "--sbom=true", "--provenance=mode=max", "--push", "--tag", tag]
    commands = ([*build, "--file", f"{context}/{TRAINER.dockerfile}", context], ["imagetools", "inspect", tag])
    for command in commands:
        code = subprocess.run(["docker", "buildx", *command], cwd=ROOT).returncode
        if code:
            return code
    return 0


def docker_login(stack: StackName) -> int:
    """Let Docker push to the registry of a Google Cloud stack; other stacks need no login."""
    gke = configuration(stack).cloud
    if not isinstance(gke, GkeConfig):
        return 0
    _need("gcloud")
    return subprocess.run(["gcloud", "auth", "configure-docker", "--quiet", f"{gke.region}-docker.pkg.dev"]).returncode


def _need(program: str) -> None:
    if not shutil.which(program):
        raise CommandError(f"{program} is not on PATH; install it")
