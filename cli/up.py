"""Bring a stack up or take it down: Pulumi's own `up` and `destroy`, on this machine with the node beneath."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import CommandError, name_of
from cli.pulumi import pulumi
from cli.target import (
    RunningStack,
    StackName,
    configuration,
    enter_local,
    exported,
    is_local,
    run,
    volume_of,
)
from infra.stackfiles import NODE_CONTEXT, ROOT, stack_file_values
from infra.state import on_node, protection
from workloads.layout import DATA, ONLY_VOLUME

if TYPE_CHECKING:
    from infra.config import StackConfig

TRAINYARD = (sys.executable, "-m", "cli")
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, and show no preview.")]


Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="FROM",
        help="A file or folder of this machine that the stack reads, its data or model: it is uploaded before the "
        "training begins. May be repeated.",
    ),
]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Also what links of the folder name on this machine.")
]


def up(stack: StackName = "", yes: Yes = False, data: Data = None, follow_links: FollowLinks = False) -> int:
    """Pulumi shows what it will do and asks; the stack is made if it is not there, and selected. A training that
    ended before it was done resumes from its newest checkpoint, one that `trainyard stop` has stopped stays so; the
    same `up` again changes nothing else. For a stack on this machine the toolchain is built, and the node starts,
    before that. With --data, a new stack gets its volume first, then the upload, then the rest.
    """
    config = configuration(stack)  # tells every mistake before anything is built
    uploads = {source: _destination(source, config, stack, follow_links) for source in data or ()}
    _refuse_unasked(yes, "make")
    local = stack == "local" or is_local(stack) or config.cluster.context == NODE_CONTEXT
    if local:
        code = run(*TRAINYARD, "local", "up", "--context", config.cluster.context or NODE_CONTEXT)
        if code:
            return code
        enter_local()
    code = run("pulumi", "stack", "select", "--create", stack)
    options = ["--suppress-outputs"] if local else []
    code = code or (_upload(uploads, stack, yes, local, follow_links) if uploads else 0)
    # What `pulumi state protect` protects is refused in a preview, or in the middle of what replaces it.
    code = code or pulumi("up", stack, yes, local, *options, preview=config.cluster.replace)
    return code or _resume(stack)


def _destination(source: str, config: StackConfig, stack: str, follow_links: bool) -> str:
    """The folder on the volume to which a file or folder belongs. Raises CommandError unless the stack reads it."""
    from cli.upload import local_files, use  # with Kubernetes' client, half a second

    local_files(source, follow_links)  # tells what cannot be sent
    path = Path(source)
    is_model = (path / "config.json").is_file()
    folder = f"{DATA}/models" if is_model else DATA
    inside = PurePosixPath(folder, name_of(path))
    read: set[str] = set()
    for each in config.each_training:
        training = each.training
        asked = training.question_answering
        read |= {*each.dataset.input, each.dataset.tokenizer, asked.train, asked.validation}
        read |= {training.model.name, training.model.config, training.distillation.teacher}
    # What is read may lie in it, hold it, or be a pattern.
    if not any(all(map(fnmatch, inside.parts, PurePosixPath(DATA, name).parts)) for name in read if name):
        advice = " ".join(use(path, str(inside), stack).split())
        raise CommandError(f"--data {source}: stack {stack} does not read {inside}. {advice}", code=2)
    return folder if path.is_file() else str(inside)


def _upload(uploads: Mapping[str, str], stack: str, yes: bool, local: bool, follow_links: bool) -> int:
    """Make the stack's volume if it is not there, and bring files there before a Job that reads them would fail."""
    from cli.cluster import ContextError
    from cli.upload import send

    if volume_of(stack) is None:
        os.environ[ONLY_VOLUME] = "true"
        try:
            code = pulumi("up", stack, yes, local, "--suppress-outputs")
        finally:
            del os.environ[ONLY_VOLUME]
        if code:
            return code
    try:
        for source, folder in uploads.items():
            send(source, stack, folder, follow_links=follow_links)
    except ContextError as error:
        raise CommandError(f"{_access(stack, error)}; then the same command again") from None
    return 0


def _access(stack: str, error: CommandError) -> str:
    """What gives this machine the context of a stack's cluster."""
    volume = volume_of(stack)
    get = volume.commands.get("credentialsCommand") if volume else None
    return f"run {get}" if get else str(error)


def down(stack: RunningStack = "", yes: Yes = False) -> int:
    """Pulumi shows what it will destroy and asks. On a cluster that the stack has not made, its volume with all runs
    goes too where the storage class says so: `trainyard doctor` tells. A stack on this machine is removed; its datasets
    and runs stay in .local/, and with the stack `local` the node stops, unless other stacks live on it and nobody
    consents. Nothing is destroyed where anything of the stack is protected.
    """
    _refuse_unasked(yes, "destroy")
    local = is_local(stack)
    if local:
        # A full disk or an old base image is no reason to keep a stack.
        code = run(*TRAINYARD, "local", "up", "--as-is", "--context", _context(stack))
        if code:
            return code
        enter_local()
    if local or stack != "local":
        if refused := protection(exported(stack), stack, _given(stack)):
            raise CommandError("\n".join(refused), code=2)
        # Outputs are addresses and commands, which readers of a workflow's log must not see.
        code = pulumi("destroy", stack, yes, local, "--suppress-outputs")
        if local and not code:
            code = run("pulumi", "stack", "rm", stack, "--yes", "--preserve-config")
        if code:
            return code
    return _stop_node(yes) if stack == "local" else 0


def _stop_node(yes: bool) -> int:
    """Stop the node, but not under other stacks without a word."""
    if others := [name for name in on_node() if name != "local"]:
        many = "s" * (len(others) > 1)
        print(
            f"the node has the stack{many} {', '.join(others)} too, whose trainings would end with it", file=sys.stderr
        )
        if yes or not typer.confirm("Stop the node all the same? What they have stays on disk", err=True):
            print("the node stays up; to stop it: trainyard local down", file=sys.stderr)
            return 0
    return run(*TRAINYARD, "local", "down")


def _refuse_unasked(yes: bool, what: str) -> None:
    if not (yes or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise CommandError(f"nobody can be asked whether to {what} it without a terminal; give --yes", code=2)


def _given(stack: str) -> Mapping[str, Any]:
    """The values of a stack's file, which may be gone."""
    return stack_file_values(stack) if (ROOT / f"Pulumi.{stack}.yaml").exists() else {}


def _context(stack: str) -> str:
    """The context of a stack's cluster by its file, which may be gone."""
    cluster = _given(stack).get("cluster")
    return str(cluster.get("context") or NODE_CONTEXT) if isinstance(cluster, Mapping) else NODE_CONTEXT


def _resume(stack: str) -> int:
    # Kubernetes' client takes half a second to import.
    from cli.cluster import ContextError
    from cli.lifecycle import go_on

    try:
        return go_on(stack, asked=False)
    except ContextError as error:
        print(f"the stack is up; to see its training: {_access(stack, error)}", file=sys.stderr)
        return 0
