"""Commands of workflows: stacks past their time, the image and its registry, known vulnerabilities."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import CommandError
from cli.target import StackName, configuration
from infra.gke.section import GkeConfig
from infra.image import TRAINER, content_hash, stage
from infra.stackfiles import ROOT, stacks

#: What asks the backend for the project's stacks, with the time of their last update and what they have.
COMMAND = ("pulumi", "stack", "ls", "--json")
LOCKED = ("infra", "trainer", "policy")
OPTIONS = ("--require-hashes", "--disable-pip", "--progress-spinner", "off")


def past_their_time(listed: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """The stacks among those that the backend lists that have resources and are past their time.

    Raises:
        CommandError: a stack file is not valid.
    """
    found = []
    for entry in listed:
        name = entry["name"].rsplit("/", 1)[-1]
        if name not in stacks() or entry.get("updateInProgress") or not entry.get("resourceCount", 1):
            continue
        hours = configuration(name).cluster.ttl_hours
        updated = entry.get("lastUpdate")
        if hours and updated and now - datetime.fromisoformat(updated) > timedelta(hours=hours):
            found.append(name)
    return sorted(found)


def expired() -> None:
    """List the stacks whose `cluster.ttlHours` have passed.

    Each `pulumi up` restarts a stack's time. The workflow ttl.yml runs this every hour and destroys what it lists.
    """
    try:
        listed = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found = past_their_time(json.loads(listed), datetime.now(UTC))
    except FileNotFoundError:
        raise CommandError("pulumi is not on PATH; install it", code=2) from None
    except subprocess.CalledProcessError as error:
        raise CommandError(f"{' '.join(COMMAND)}: {error.stderr.strip().splitlines()[-1]}", code=2) from None
    # One line, as GitHub takes a step's outputs.
    print(f"stacks={json.dumps(found)}")


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


def audit() -> int:
    """Report known vulnerabilities of the locked requirements."""
    program = Path(sys.executable).with_name("pip-audit")
    if not program.exists():
        raise CommandError("pip-audit is not installed; make .venv/dev.stamp installs it")
    codes = []
    for name in LOCKED:
        print(f"requirements/{name}.txt:", flush=True)
        command = [program, *OPTIONS, "--requirement", f"requirements/{name}.txt"]
        codes.append(subprocess.run(command, cwd=ROOT).returncode)
    return max(codes)
