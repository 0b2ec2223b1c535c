"""Upload files to a stack's shared volume.

FROM is a file or folder of this machine, which rsync sends, or an address that the cluster reads itself: s3://, gs://
or https://. Files that are there already are skipped; after an interruption the same command continues.
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
from cli.programs import find_rsync
from cli.reach import transfer
from cli.target import Kubeconfig, RunningStack, volume_of
from cli.transfer import copy, put
from trainer.config.addresses import REFUSED, SCHEMES, TABLES, address, kind_of, passed_over
from trainer.plain import counted, plain
from workloads.layout import DATA

SURROGATES = range(0xD800, 0xE000)
"""How Python represents bytes of a name that are not UTF-8."""


def upload(
    source: Annotated[str, typer.Argument(metavar="FROM", help="File, folder, or s3://, gs:// or https:// address.")],
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    to: Annotated[str | None, typer.Option(metavar="FOLDER", help=f"Under {DATA}. Default: FROM's name.")] = None,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also what links of the folder name elsewhere on this machine.")
    ] = False,
) -> None:
    try:
        source = source if os.path.exists(source) or not source.strip() else address(source)
    except ValueError as error:
        raise CommandError(f"FROM: {error}") from None
    if source.startswith("hf:") and not os.path.exists(source):
        raise CommandError(f"{source}: needs no upload; give it in dataset.input as it is")
    inside = send(source, stack, to, kubeconfig, follow_links)
    print(plain(use(source, inside, stack)))


def send(source: str, stack: str, to: str | None, kubeconfig: str | None = None, follow_links: bool = False) -> str:
    """Bring FROM to the volume; return where pods see it. Raises CommandError."""
    remote, folder = is_remote(source), target_folder(source, to)
    one = not remote and Path(source).is_file()
    top, names = (Path(), []) if remote else local_files(Path(source), follow_links)
    if not remote:
        find_rsync()  # before a pod is made
    if (target := volume_of(stack)) is None:
        raise CommandError(f"stack {stack} has no volume yet; run `trainyard up --stack {stack}` first")
    inside, changed = f"{folder}/{names[0]}" if one else folder, False
    with transfer(target, kubeconfig) as (volume, _, bar):
        if remote:
            # The server sees whether it is a file or a folder: a folder keeps its name.
            inside = copy(volume, source, folder, bar, name="" if to else remote_name(source))
        else:
            # A file at the top is an input of its own: other files there do not count.
            changed = put(volume, top, names, folder, bar, shared=one and folder == DATA)
    for line in unread(Path(source), names):
        print(plain(line))
    # The folder of this machine that the node's pods see is one for all its stacks.
    shared = f", in {target.data_folder}, which all stacks on this machine share" if target.data_folder else ""
    print(plain(f"{source} is at {inside}{shared}."))
    if changed:
        name = f"pulumi config set --stack {stack} --path dataset.name NAME"
        print(
            f"This changed {plain(inside)}. A dataset prepared from it stays as it is; to prepare a new one:\n  {name}"
        )
    return inside


def use(source: str, inside: str, stack: str) -> str:
    """The next command, which names the upload in the stack file: a text, a model, or a run with its model."""
    key, value, verb = "'dataset.input[0]'", str(PurePosixPath(inside).relative_to(DATA)), "To train on it:"
    if value in ("sample", "true", "false") or value.replace(".", "").isdigit():
        value = inside  # the bare word would mean something else
    if any((Path(source) / name).exists() for name in ("config.json", "model/config.json", "checkpoints")):
        key, value, verb = "training.model.name", inside, "To train this model:"
    return f"{verb}\n  pulumi config set --stack {stack} --path {key} {shlex.quote(value)}"


def unread(source: Path, names: list[str]) -> list[str]:
    """What was not sent of a folder, and what of it no dataset reads."""
    if not source.is_dir():
        return []
    there = sum(len(names) for _, _, names in os.walk(source))
    hidden = there - len(names)
    lines = [f"{hidden} hidden file{'s were' if hidden > 1 else ' was'} not sent."] if hidden > 0 else []
    if (source / "config.json").is_file():  # a model
        return lines
    over: dict[str, list[str]] = {}
    for name in names:
        over.setdefault(passed_over(name, "", (source / name).stat().st_size), []).append(Path(name).name)
    lost = [name for found in over.values() for name in found if kind_of(name)[0] in (*REFUSED, *TABLES)]
    if lost:
        lines.append(
            f"As dataset.input this folder is refused: {', '.join(lost[:5])} would be passed over; convert it."
        )
    return lines + [
        f"{counted(len(found), 'file')} {why} {'is' if len(found) == 1 else 'are'} not read as text: "
        f"{', '.join(found[:5])}"
        for why, found in over.items()
        if why
    ]


def is_remote(source: str) -> bool:
    """Whether the cluster fetches it. Raises CommandError for an empty source or an unknown scheme."""
    if not source.strip():
        raise CommandError("FROM: missing; give a file, a folder or an address: trainyard upload corpus/")
    scheme = source.partition("://")[0]
    if "://" in source and any(character in source for character in "*?["):
        raise CommandError(
            f"{source}: a pattern is not copied; give a file or a folder, or the pattern in dataset.input"
        )
    if "://" in source and scheme not in SCHEMES:
        raise CommandError(f"{source}: {scheme}:// is not known; give a path, or {', '.join(SCHEMES)}")
    return "://" in source


def target_folder(source: str, to: str | None) -> str:
    """The folder on the volume, as pods see it. Raises CommandError."""
    if to is None:
        # A file goes to the top, a folder keeps its name.
        to = "" if "://" in source or Path(source).is_file() else Path(source).resolve().name
    folder = PurePosixPath(DATA) / to.removeprefix(DATA if to == DATA else f"{DATA}/").strip("/")
    if ".." in folder.parts or not folder.is_relative_to(DATA):
        raise CommandError(f"--to {to}: leads out of {DATA}; give a folder such as texts")
    return str(folder)


def remote_name(source: str) -> str:
    """Name of the folder or bucket in an address."""
    parts = urlsplit(source)
    return PurePosixPath(parts.path).name or parts.netloc


def local_files(source: Path, follow_links: bool = False) -> tuple[Path, list[str]]:
    """A folder, and the path below it of each file to send, without hidden ones.

    Raises CommandError when there is nothing to send, and for a link out of the folder: in a downloaded folder it might
    point to keys.
    """
    if source.is_file():
        found, top = [source], source.absolute().parent
    elif source.is_dir():
        found, top = sorted(_walk(source)), source.absolute()
    else:
        raise CommandError(f"{source}: no such file or folder")
    if not found:
        raise CommandError(f"{source}: the folder holds no file")
    for path in found:
        if any(ord(letter) in SURROGATES for letter in str(path)):
            raise CommandError(f"{str(path)!r}: the name is not valid UTF-8; rename the file")
        if path != source and not path.is_file():
            raise CommandError(f"{path}: is a link to nothing, or no file; remove it, or give another folder")
        if path != source and not follow_links and not path.resolve().is_relative_to(source.resolve()):
            raise CommandError(
                f"{path}: links outside the folder, to {path.resolve()}; give --follow-links to upload it"
            )
    return top, [path.absolute().relative_to(top).as_posix() for path in found]


def _walk(source: Path) -> Iterator[Path]:
    """What is below a folder, also through links; each folder once, because links may form cycles."""

    def failed(error: OSError) -> None:
        raise CommandError(f"{error.filename}: {error.strerror}")

    seen: set[Path] = set()
    for folder, folders, names in os.walk(source, onerror=failed, followlinks=True):
        real = Path(folder).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))
