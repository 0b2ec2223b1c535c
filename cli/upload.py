"""Upload files to a stack's shared volume.

FROM is a file or folder of this machine, or an address that the cluster reads itself: s3://, gs:// or https://. What is
there already is not sent again; after an interruption the same command continues.
"""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

import typer

from cli import CommandError
from cli.reach import transfer
from cli.target import Kubeconfig, RunningStack, target_of
from cli.transfer import Pair, copy, put
from workloads.layout import DATA

SCHEMES = ("s3", "gs", "https", "http")


def upload(
    source: Annotated[str, typer.Argument(metavar="FROM", help="File, folder, or s3://, gs:// or https:// address.")],
    stack: RunningStack = "local",
    kubeconfig: Kubeconfig = None,
    to: Annotated[str | None, typer.Option(metavar="FOLDER", help=f"Under {DATA}. Default: FROM's name.")] = None,
) -> None:
    remote = is_remote(source)
    folder = target_folder(source, to)
    pairs = [] if remote else local_files(Path(source), folder)
    with transfer(target_of(stack), kubeconfig) as (volume, _, bar):
        if remote:
            copy(volume, source, folder, bar)
        else:
            put(volume, pairs, folder, bar)
    inside = pairs[0].remote if len(pairs) == 1 and Path(source).is_file() else folder
    print(f"{source} is at {inside}. {use(source, inside, stack)}")


def use(source: str, inside: str, stack: str) -> str:
    """What to do with it: the command that names it in the stack file."""
    key, value, verb = "'dataset.input[0]'", str(PurePosixPath(inside).relative_to(DATA)), "To train on it:"
    if (Path(source) / "config.json").is_file():
        key, value, verb = "training.model.name", inside, "To train this model:"
    return f"{verb}\n  pulumi config set --stack {stack} --path {key} {shlex.quote(value)}"


def is_remote(source: str) -> bool:
    """Whether the cluster fetches it. Raises CommandError for nothing, and for an address that it cannot read."""
    if not source.strip():
        raise CommandError("FROM: missing; give a file, a folder or an address: trainyard upload corpus/")
    scheme = urlsplit(source).scheme
    if "://" not in source:
        return False
    if scheme not in SCHEMES:
        raise CommandError(f"{source}: {scheme}:// is not known; give a path, or {', '.join(SCHEMES)}")
    return True


def target_folder(source: str, to: str | None) -> str:
    """The folder on the volume, as pods see it. Raises CommandError."""
    if to is None:
        parts = urlsplit(source)
        # A file goes to the top, a folder or a bucket keeps its name.
        name = PurePosixPath(parts.path).name or parts.netloc if "://" in source else Path(source).resolve().name
        is_file = Path(source).is_file() or ("://" in source and PurePosixPath(name).suffix)
        to = "" if is_file else name
    folder = PurePosixPath(DATA) / to.removeprefix(f"{DATA}/").strip("/")
    if ".." in folder.parts or not folder.is_relative_to(DATA):
        raise CommandError(f"--to {to}: leads out of {DATA}; give a folder such as texts")
    return str(folder)


def local_files(source: Path, folder: str) -> list[Pair]:
    """Each file with its place. Hidden ones stay here. Raises CommandError when there is nothing to send."""
    if source.is_file():
        return [Pair(source, f"{folder}/{source.name}", source.stat().st_size)]
    if not source.is_dir():
        raise CommandError(f"{source}: no such file or folder")
    found = sorted(
        path
        for path in source.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(source).parts)
    )
    if not found:
        raise CommandError(f"{source}: the folder holds no file")
    return [Pair(path, f"{folder}/{path.relative_to(source).as_posix()}", path.stat().st_size) for path in found]
