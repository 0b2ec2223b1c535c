"""Upload a file or folder of this machine to a stack's shared volume.

Files that are there already are skipped; after an interruption the same command continues. What is in a bucket, on the
web or on the hub needs no upload: `dataset.input` reads it itself.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cli import CommandError, name_of
from cli.pods import volume_pod
from cli.programs import find_rsync
from cli.rsync import send as send_files
from cli.target import Kubeconfig, RunningStack, volume_of
from cli.up import FollowLinks
from cli.volume import below
from trainer.config.addresses import LOST, kind_of, passed_over
from trainer.plain import counted, plain
from workloads.layout import DATA


def upload(
    source: Annotated[str, typer.Argument(metavar="FROM", help="File or folder of this machine.")],
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    to: Annotated[str | None, typer.Option(metavar="FOLDER", help=f"Under {DATA}. Default: FROM's name.")] = None,
    follow_links: FollowLinks = False,
) -> None:
    inside = send(source, stack, to, kubeconfig, follow_links)
    print(plain(use(Path(source), inside, stack)))


def send(source: str, stack: str, to: str | None, kubeconfig: str | None = None, follow_links: bool = False) -> str:
    """Bring FROM to the volume; return where pods see it. Raises CommandError."""
    path, names = Path(source), local_files(source, follow_links)
    # A file goes to the top, a folder keeps its name.
    folder = below(to if to is not None else "" if path.is_file() else name_of(path))
    find_rsync()  # before a pod is made
    if (target := volume_of(stack, kubeconfig)) is None:
        raise CommandError(f"stack {stack} has no volume yet; run `trainyard up --stack {stack}` first")
    inside = f"{folder}/{path.name}" if path.is_file() else folder
    with volume_pod(target) as (pod, bar):
        bar.waiting("comparing")
        had = pod.run("test", "-e", inside)[0] == 0
        sent = send_files(pod, path, folder, bar, follow_links)
    for line in unread(path, names):
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
    is_model = any((source / name).exists() for name in ("config.json", "model/config.json", "checkpoints"))
    key, verb = ("training.model.name", "train this model") if is_model else ("'dataset.input[0]'", "train on it")
    return f"To {verb}:\n  pulumi config set --stack {stack} --path {key} {shlex.quote(inside)}"


def unread(source: Path, names: list[str]) -> Iterator[str]:
    """What of a folder no dataset reads."""
    if not source.is_dir() or (source / "config.json").is_file():  # a file, a model
        return
    over: dict[str, list[str]] = {}
    for name in names:
        over.setdefault(passed_over(name, "", (source / name).stat().st_size), []).append(Path(name).name)
    for why, found in over.items():
        if why:
            verb = "is" if len(found) == 1 else "are"
            lost = "; the whole folder is refused as dataset.input for it" if kind_of(found[0])[0] in LOST else ""
            yield f"{counted(len(found), 'file')} {why} {verb} not read as text: {', '.join(found[:5])}{lost}"


def local_files(source: str, follow_links: bool = False) -> list[str]:
    """The path below a folder of each file to send, without hidden ones.

    Raises CommandError when there is nothing to send, and for a link: in a downloaded folder it might point to keys.
    """
    path = Path(source)
    if not source.strip() or not path.exists():
        bucket = "; a bucket, the web and the hub need no upload: name it in dataset.input" if ":" in source else ""
        raise CommandError(f"{source or repr(source)}: no such file or folder on this machine{bucket}")
    if path.is_file():
        return [path.name]
    found = []
    for here, folders, names in os.walk(path, followlinks=follow_links):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for each in (Path(here, name) for name in (*folders, *names) if not name.startswith(".")):
            if each.is_symlink() and not follow_links:
                raise CommandError(
                    f"{each}: is a link, to {each.resolve()}; give --follow-links to upload what it names"
                )
            found += [each.relative_to(path).as_posix()] if each.is_file() else []
    if not found:
        raise CommandError(f"{source}: the folder holds no file")
    return sorted(found)
