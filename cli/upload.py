"""Upload a file or folder of this machine to a stack's shared volume.

Files that are there already are skipped; after an interruption the same command continues. What is in a bucket, on the
web or on the hub needs no upload: `dataset.input` reads it itself.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from cli import CommandError
from cli.pods import volume_pod
from cli.programs import find_rsync
from cli.rsync import send as send_files
from cli.target import Kubeconfig, RunningStack, volume_of
from trainer.config.addresses import passed_over
from trainer.plain import counted, plain
from workloads.layout import DATA


def upload(
    source: Annotated[str, typer.Argument(metavar="FROM", help="File or folder of this machine.")],
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    to: Annotated[str | None, typer.Option(metavar="FOLDER", help=f"Under {DATA}. Default: FROM's name.")] = None,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also what links of the folder name on this machine.")
    ] = False,
) -> None:
    path = local_path(source)
    inside = send(path, stack, to, kubeconfig, follow_links)
    print(plain(use(path, inside, stack)))


def local_path(source: str) -> Path:
    """FROM as a path. Raises CommandError for what is not here."""
    if not source.strip():
        raise CommandError("FROM: missing; give a file or a folder: trainyard upload corpus/")
    if os.path.exists(source):
        return Path(source)
    if re.match(r"[a-z][a-z0-9+.-]+:", source, re.IGNORECASE):
        raise CommandError(
            f"{source}: an address, not a path of this machine; a bucket, the web and the hub need no "
            "upload: name it in dataset.input"
        )
    raise CommandError(f"{source}: no such file or folder")


def send(source: Path, stack: str, to: str | None, kubeconfig: str | None = None, follow_links: bool = False) -> str:
    """Bring FROM to the volume; return where pods see it. Raises CommandError."""
    names = local_files(source, follow_links)
    folder = target_folder(source, to)
    find_rsync()  # before a pod is made
    if (target := volume_of(stack, kubeconfig)) is None:
        raise CommandError(f"stack {stack} has no volume yet; run `trainyard up --stack {stack}` first")
    inside = f"{folder}/{source.name}" if source.is_file() else folder
    with volume_pod(target) as (pod, bar):
        bar.waiting("comparing")
        had = pod.run("test", "-e", inside)[0] == 0
        sent = send_files(pod, source, folder, bar, follow_links)
    for line in unread(source, names):
        print(plain(line))
    # The folder of this machine that the node's pods see is one for all its stacks.
    shared = f", in {target.data_folder}, which all stacks on this machine share" if target.data_folder else ""
    print(plain(f"{source} is at {inside}{shared}."))
    if had and sent.files:
        name = f"pulumi config set --stack {stack} --path dataset.name NAME"
        print(
            f"{counted(sent.files, 'file')} of {plain(inside)} came anew. A dataset prepared from it stays as it is; "
            f"to prepare a new one:\n  {name}"
        )
    return inside


def use(source: Path, inside: str, stack: str) -> str:
    """The next command, which names the upload in the stack file: a text, a model, or a run with its model."""
    key, value, verb = "'dataset.input[0]'", str(PurePosixPath(inside).relative_to(DATA)), "To train on it:"
    if value in ("sample", "true", "false") or value.replace(".", "").isdigit():
        value = inside  # the bare word would mean something else
    if any((source / name).exists() for name in ("config.json", "model/config.json", "checkpoints")):
        key, value, verb = "training.model.name", inside, "To train this model:"
    return f"{verb}\n  pulumi config set --stack {stack} --path {key} {shlex.quote(value)}"


def unread(source: Path, names: list[str]) -> list[str]:
    """What of a folder no dataset reads."""
    if not source.is_dir() or (source / "config.json").is_file():  # a file, a model
        return []
    over: dict[str, list[str]] = {}
    for name in names:
        over.setdefault(passed_over(name, "", (source / name).stat().st_size), []).append(Path(name).name)
    return [
        f"{counted(len(found), 'file')} {why} {'is' if len(found) == 1 else 'are'} not read as text: "
        f"{', '.join(found[:5])}"
        for why, found in over.items()
        if why
    ]


def target_folder(source: Path, to: str | None) -> str:
    """The folder on the volume, as pods see it. Raises CommandError."""
    if to is None:
        # A file goes to the top, a folder keeps its name.
        to = "" if source.is_file() else source.resolve().name
    folder = PurePosixPath(DATA) / to.removeprefix(DATA if to == DATA else f"{DATA}/").strip("/")
    if ".." in folder.parts or not folder.is_relative_to(DATA):
        raise CommandError(f"--to {to}: leads out of {DATA}; give a folder such as texts")
    return str(folder)


def local_files(source: Path, follow_links: bool = False) -> list[str]:
    """The path below a folder of each file to send, without hidden ones.

    Raises CommandError when there is nothing to send, and for a link: in a downloaded folder it might point to keys.
    """
    if source.is_file():
        return [source.name]
    found = []
    for here, folders, names in os.walk(source, followlinks=follow_links):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(here, name) for name in (*folders, *names) if not name.startswith(".")):
            if path.is_symlink() and not follow_links:
                raise CommandError(
                    f"{path}: is a link, to {path.resolve()}; give --follow-links to upload what it names"
                )
            found += [path.relative_to(source).as_posix()] if path.is_file() else []
    if not found:
        raise CommandError(f"{source}: the folder holds no file")
    return sorted(found)
