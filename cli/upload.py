"""Upload files to a stack's shared volume.

FROM is a file or folder of this machine, or an address that the cluster reads itself: s3://, gs:// or https://. Files
that are there already are skipped; after an interruption the same command continues.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

import typer

from cli import CommandError
from cli.reach import transfer
from cli.target import Kubeconfig, RunningStack, target_of
from cli.transfer import Pair, copy, put
from trainer.plain import plain
from workloads.layout import DATA

SCHEMES = ("s3", "gs", "https", "http")
SURROGATES = range(0xD800, 0xE000)
"""How Python represents bytes of a name that are not UTF-8."""


def upload(
    source: Annotated[str, typer.Argument(metavar="FROM", help="File, folder, or s3://, gs:// or https:// address.")],
    stack: RunningStack = "local",
    kubeconfig: Kubeconfig = None,
    to: Annotated[str | None, typer.Option(metavar="FOLDER", help=f"Under {DATA}. Default: FROM's name.")] = None,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also what links of the folder name elsewhere on this machine.")
    ] = False,
) -> None:
    remote = is_remote(source)
    folder = target_folder(source, to)
    pairs = [] if remote else local_files(Path(source), folder, follow_links)
    inside, changed = pairs[0].remote if pairs and Path(source).is_file() else folder, False
    with transfer(target_of(stack), kubeconfig) as (volume, _, bar):
        if remote:
            # The server sees whether it is a file or a folder: a folder keeps its name.
            inside = copy(volume, source, folder, bar, name="" if to else remote_name(source))
        else:
            # A file at the top is an input of its own: other files there do not count.
            changed = put(volume, pairs, inside if folder == DATA else folder, bar)
    print(plain(f"{source} is at {inside}. {use(source, inside, stack)}"))
    if changed:
        name = f"pulumi config set --stack {stack} --path dataset.name NAME"
        print(
            f"This changed {plain(inside)}. A dataset prepared from it stays as it is; to prepare a new one:\n  {name}"
        )


def use(source: str, inside: str, stack: str) -> str:
    """The next command, which names the upload in the stack file."""
    key, value, verb = "'dataset.input[0]'", str(PurePosixPath(inside).relative_to(DATA)), "To train on it:"
    if value in ("sample", "true", "false") or value.replace(".", "").isdigit():
        value = inside  # the bare word would mean something else
    if (Path(source) / "config.json").is_file():
        key, value, verb = "training.model.name", inside, "To train this model:"
    return f"{verb}\n  pulumi config set --stack {stack} --path {key} {shlex.quote(value)}"


def is_remote(source: str) -> bool:
    """Whether the cluster fetches it. Raises CommandError for an empty source or an unknown scheme."""
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
        # A file goes to the top, a folder keeps its name.
        to = "" if "://" in source or Path(source).is_file() else Path(source).resolve().name
    folder = PurePosixPath(DATA) / to.removeprefix(f"{DATA}/").strip("/")
    if ".." in folder.parts or not folder.is_relative_to(DATA):
        raise CommandError(f"--to {to}: leads out of {DATA}; give a folder such as texts")
    return str(folder)


def remote_name(source: str) -> str:
    """Name of the folder or bucket in an address."""
    parts = urlsplit(source)
    return PurePosixPath(parts.path).name or parts.netloc


def local_files(source: Path, folder: str, follow_links: bool = False) -> list[Pair]:
    """Each file to send with its place on the volume, without hidden ones.

    Raises CommandError when there is nothing to send, and for a link out of the folder: in a downloaded folder it might
    point to keys.
    """
    if source.is_file():
        return [Pair(source, f"{folder}/{source.name}", source.stat().st_size)]
    if not source.is_dir():
        raise CommandError(f"{source}: no such file or folder")
    found = sorted(_walk(source))
    if not found:
        raise CommandError(f"{source}: the folder holds no file")
    top = source.resolve()
    for path in found:
        if not follow_links and not path.resolve().is_relative_to(top):
            raise CommandError(
                f"{path}: links outside the folder, to {path.resolve()}; give --follow-links to upload it"
            )
        if any(ord(letter) in SURROGATES for letter in str(path)):
            raise CommandError(f"{str(path)!r}: the name is not valid UTF-8; rename the file")
    return [Pair(path, f"{folder}/{path.relative_to(source).as_posix()}", path.stat().st_size) for path in found]


def _walk(source: Path) -> Iterator[Path]:
    """Files below a folder, also through links; each folder once, because links may form cycles."""
    seen: set[Path] = set()
    for folder, folders, names in os.walk(source, followlinks=True):
        real = Path(folder).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for name in names if not name.startswith(".") and (path := Path(folder, name)).is_file())
