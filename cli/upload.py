"""Puts files on a stack's shared volume: `python -m cli.upload --stack local FROM [--to FOLDER]` (`make upload`).

FROM is a file or a folder of this machine, or an address that the cluster reads by itself, past this machine: s3://,
gs:// or https://. What is there already is not sent again; a transfer that was interrupted goes on when the same
command is given again.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from cli.bar import Bar
from cli.follow import stack_options, target_of
from cli.reach import PORT, volume_pod
from cli.transfer import Pair, TransferError, Volume, copy, put
from cli.watch import UnreachableError, connect
from workloads.layout import DATA

SCHEMES = ("s3", "gs", "https", "http")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.upload", description="Put files on the shared volume.")
    stack_options(parser, "volume")
    parser.add_argument("--to", metavar="FOLDER", help=f"folder under {DATA} (default: the name of what is put there)")
    parser.add_argument("source", metavar="FROM", help="file, folder, or s3://, gs:// or https:// address")
    options = parser.parse_args(arguments)
    try:
        remote = is_remote(options.source)
        folder = target_folder(options.source, options.to)
        pairs = [] if remote else local_files(Path(options.source), folder)
        target = target_of(options.stack)
        api = connect(target.context, options.kubeconfig)
        with Bar() as bar, volume_pod(api, target.namespace, bar.waiting) as pod:
            volume = Volume(lambda: pod.connect(PORT))
            if remote:
                copy(volume, options.source, folder, bar)
            else:
                put(volume, pairs, folder, bar)
    except (LookupError, UnreachableError, TransferError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on where it stopped.", file=sys.stderr)
        return 130
    inside = pairs[0].remote if len(pairs) == 1 and Path(options.source).is_file() else folder
    name = str(PurePosixPath(inside).relative_to(DATA))
    print(f"{options.source} is at {inside}. To train on it:")
    print(f"  pulumi config set --stack {options.stack} --path 'dataset.input[0]' {shlex.quote(name)}")
    return 0


def is_remote(source: str) -> bool:
    """Whether the cluster fetches it. Raises LookupError for nothing, and for an address that it cannot read."""
    if not source.strip():
        raise LookupError("FROM: missing; give a file, a folder or an address: make upload FROM=corpus/")
    scheme = urlsplit(source).scheme
    if "://" not in source:
        return False
    if scheme not in SCHEMES:
        raise LookupError(f"{source}: {scheme}:// is not known; give a path, or {', '.join(SCHEMES)}")
    return True


def target_folder(source: str, to: str | None) -> str:
    """The folder on the volume, as pods see it. Raises LookupError."""
    if to is None:
        parts = urlsplit(source)
        # A file goes to the top, a folder or a bucket keeps its name.
        name = PurePosixPath(parts.path).name or parts.netloc if "://" in source else Path(source).resolve().name
        is_file = Path(source).is_file() or ("://" in source and PurePosixPath(name).suffix)
        to = "" if is_file else name
    folder = PurePosixPath(DATA) / to.removeprefix(f"{DATA}/").strip("/")
    if ".." in folder.parts or not folder.is_relative_to(DATA):
        raise LookupError(f"--to {to}: leads out of {DATA}; give a folder such as texts")
    return str(folder)


def local_files(source: Path, folder: str) -> list[Pair]:
    """Each file with its place. Hidden ones stay here. Raises LookupError when there is nothing to send."""
    if source.is_file():
        return [Pair(source, f"{folder}/{source.name}", source.stat().st_size)]
    if not source.is_dir():
        raise LookupError(f"{source}: no such file or folder")
    found = sorted(
        path
        for path in source.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(source).parts)
    )
    if not found:
        raise LookupError(f"{source}: the folder holds no file")
    return [Pair(path, f"{folder}/{path.relative_to(source).as_posix()}", path.stat().st_size) for path in found]


if __name__ == "__main__":
    sys.exit(main())
