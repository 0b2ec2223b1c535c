"""Commands for workflows: expired stacks, the image and its registry."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from cli import CommandError, last_line
from cli.target import PROOF, StackName, configuration, known
from infra.clouds import cloud_of
from infra.image import TRAINER, content_hash, stage
from infra.stackfiles import ROOT, stacks

#: Lists the project's stacks in the backend, with the time of their last update and their number of resources.
COMMAND = ("pulumi", "stack", "ls", "--json")
#: Hours after its last `up` until a dead proof expires: its training has ended by then (prove/subject.py).
PROOF_HOURS = 6.0
#: Debian 12 and Ubuntu 22.04 have Docker without it, and no package of its own (packages.debian.org, 2026-11-28).
BUILDX = "install it after docs.docker.com/engine/install, whose docker-buildx-plugin Debian's own docker.io lacks"


def past_their_time(
    listed: Iterable[Mapping[str, Any]], now: datetime, last_up: Callable[[str], str | None]
) -> list[str]:
    """The stacks of the backend's list that have resources and are past their time.

    A proof uses the file of the stack that it proves, with a time limit of its own. `last_up` says when the newest
    `pulumi up` of a stack began: a failed destroy changes the state's own time too.

    Raises:
        CommandError: a stack file is not valid.
    """
    found = []
    for entry in listed:
        name = entry["name"].rsplit("/", 1)[-1]
        file = name.removeprefix(PROOF)
        if file not in stacks() or entry.get("updateInProgress") or not entry.get("resourceCount", 1):
            continue
        config = configuration(file)
        hours = PROOF_HOURS if name != file and config.nodes else config.cluster.ttl_hours
        # A killed `up` is in no history.
        since = (last_up(entry["name"]) or entry.get("lastUpdate")) if hours else None
        if hours and since and now - datetime.fromisoformat(since) > timedelta(hours=hours):
            found.append(name)
    return sorted(found)


def _last_up(stack: str) -> str | None:
    history, page = ("pulumi", "stack", "history", "--json", "--page-size", "100", "--stack", stack, "--page"), 1
    while entries := _asked((*history, str(page))):
        for entry in entries:
            if entry["kind"] == "update":
                return entry["startTime"]
        page += 1
    return None


def _asked(command: tuple[str, ...]) -> Any:
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def expired() -> None:
    """Each `pulumi up` restarts a stack's time. The workflow ttl.yml runs this each hour and destroys what it lists."""
    try:
        found = past_their_time(_asked(COMMAND), datetime.now(UTC), _last_up)
    except FileNotFoundError:
        raise CommandError("pulumi is not on PATH; install it", code=2) from None
    except subprocess.CalledProcessError as error:
        raise CommandError(f"{' '.join(error.cmd)}: {last_line(error.stderr)}", code=2) from None
    # One line: the format of a GitHub step's outputs.
    print(f"stacks={json.dumps(found)}")


def image(
    registry: Annotated[str, typer.Argument(metavar="REGISTRY", help="Where you may push to: ghcr.io/you.")],
) -> int:
    _need("docker")
    if subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode:
        raise CommandError(f"docker has no buildx plug-in; {BUILDX}")
    version = content_hash(TRAINER, {})
    context, tag = stage(TRAINER, version), f"{TRAINER.repository_in(registry)}:{version}"
    build = ["build", "--platform", "linux/amd64", "--sbom=true", "--provenance=mode=max", "--push", "--tag", tag]
    commands = ([*build, "--file", f"{context}/{TRAINER.dockerfile}", context], ["imagetools", "inspect", tag])
    for command in commands:
        code = subprocess.run(["docker", "buildx", *command], cwd=ROOT).returncode
        if code:
            return code
    return 0


def docker_login(stack: StackName = "") -> int:
    config = configuration(stack)
    if not (login := cloud_of(config).docker_login):
        return 0
    command = login(config)
    _need(command[0])
    return subprocess.run(command).returncode


def kind(stack: Annotated[str, typer.Option(metavar="NAME", help="A stack, or a proof of one.")] = "") -> None:
    """A line for a step's outputs: kind=gke. Without a stack, kind=."""
    print(f"kind={configuration(known(stack.removeprefix(PROOF))).cluster.kind if stack else ''}")


def _need(program: str) -> None:
    if not shutil.which(program):
        raise CommandError(f"{program} is not on PATH; install it")
