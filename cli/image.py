"""Push the trainer's image, with SBOM and provenance, for a stack's `image.ref`."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from infra.image import TRAINER, content_hash, stage
from infra.stackfiles import ROOT


def image(registry: Annotated[str, typer.Argument(help="Where you may push to: ghcr.io/you.")]) -> int:
    version = content_hash(TRAINER, {})
    context, tag = stage(TRAINER, version), f"{registry}/{TRAINER.repository}:{version}"
    build = ["build", "--platform", "linux/amd64", "--sbom=true", "--provenance=mode=max", "--push", "--tag", tag]
    commands = ([*build, "--file", f"{context}/{TRAINER.dockerfile}", context], ["imagetools", "inspect", tag])
    for command in commands:
        code = subprocess.run(["docker", "buildx", *command], cwd=ROOT).returncode
        if code:
            return code
    return 0
