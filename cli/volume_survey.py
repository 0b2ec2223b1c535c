"""What is on the shared volume, and its removal: the second program of the pod on it, beside cli/volume_program.py.

    runs ROOT [NAME...]    one JSON line for each run, or for those of these names
    entries PATH           one for each entry of a folder, with what is below it, and one for the whole file system
    about ROOT NAME...     what is below each path NAME of the folder ROOT
    remove ROOT NAME...    the same, which is then gone; nothing goes where one of them may not

Nothing follows a link, and no file that others may have written is read beyond LARGEST.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

if __name__ == "__main__":  # side by side in the pod (cli/reach.py)
    import contract
    import volume_program as program
else:
    from cli import volume_program as program
    from trainer import contract

LARGEST = 1 << 20
"""Bytes of a file that is read: a manifest takes 200 for each of its files."""
AT_ONCE = 16
"""Runs and entries that are looked through in parallel: each call to a network's file system takes a millisecond."""
STATUS = (
    *("state", "step", "steps", "loss", "validation_loss", "validation_step", "bits_per_byte", "f1", "updated"),
    *("message", "world_size", "tokens_per_second", "eta_seconds", "data"),
)
"""What is told of status.json and of DONE, which also has a text."""
ENDED = ("done", "failed", "terminated")
"""States of a run to which nobody writes."""
HIDDEN = "may not be listed, or not all of it"
"""Kind of a folder that has such a folder."""
UNREADABLE = "unreadable"
"""State of a run with a folder that may not be listed."""
GOING = ".removed-"
"""Prefix of what is being removed, and of what an interrupted removal has left."""


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """A folder, without following a link on the way. Raises RefusedError, and FileNotFoundError."""
    folder = program.enter(path)
    try:
        yield folder
    finally:
        os.close(folder)


def below(folder: int) -> dict[str, Any]:
    """Bytes on the disk and number of files below an open folder, hidden ones as well, and the newest change.

    denied: the number of folders that may not be listed.
    """
    size = files = 0
    problems: list[OSError] = []
    changed = os.fstat(folder).st_mtime
    for _, _, names, here in os.fwalk(".", onerror=problems.append, dir_fd=folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
                size, files, changed = size + status.st_blocks * 512, files + 1, max(changed, status.st_mtime)
    denied = sum(isinstance(problem, PermissionError) for problem in problems)
    return {"bytes": size, "files": files, "changed": changed, "denied": denied}


def described(name: str, folder: int) -> dict[str, Any]:
    """Kind, size and age of an entry of an open folder. Raises FileNotFoundError."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        found: dict[str, Any] = {"bytes": 0, "files": 0, "changed": status.st_mtime, "denied": 1}
        with contextlib.suppress(PermissionError):
            inside = os.open(name, program.FOLDER, dir_fd=folder)
            try:
                found = below(inside)
            finally:
                os.close(inside)
        found["kind"] = HIDDEN if found["denied"] else "folder"
    else:
        kind = "file" if stat.S_ISREG(status.st_mode) else program.KINDS.get(stat.S_IFMT(status.st_mode), "device")
        found = {"kind": kind, "bytes": status.st_blocks * 512, "files": 1, "changed": status.st_mtime}
    return {"name": name, **found, "age": time.time() - found["changed"]}


def entries(path: str) -> Iterator[dict[str, Any]]:
    """The entries of a folder, or the file that the path names, then the space of the file system."""
    parent, name = os.path.split(path)
    try:
        with opened(parent) as above:
            if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                yield described(name, above)
                return
    except FileNotFoundError:
        raise program.RefusedError(f"{path}: is not on the volume; `trainyard ls` lists what is") from None
    with opened(path) as folder, ThreadPoolExecutor(AT_ONCE) as pool:

        def look(entry: str) -> dict[str, Any] | None:
            with contextlib.suppress(FileNotFoundError):
                return described(entry, folder)
            return None

        yield from filter(None, pool.map(look, sorted(os.listdir(folder))))
        space = os.fstatvfs(folder)
        yield {"free": space.f_bavail * space.f_frsize, "size": space.f_blocks * space.f_frsize}


def runs(root: str, *names: str) -> Iterator[dict[str, Any]]:
    """Size, status, result and newest checkpoint of each run in ROOT/runs, or of those of these names."""
    place = f"{root}/runs"
    found: Iterable[str] = names
    if not names:
        with contextlib.suppress(FileNotFoundError), opened(place) as top:
            kinds = {name: os.stat(name, dir_fd=top, follow_symlinks=False).st_mode for name in os.listdir(top)}
            found = sorted(name for name, kind in kinds.items() if stat.S_ISDIR(kind) and not name.startswith("."))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from filter(None, pool.map(lambda name: _run(root, name), found))


def _run(root: str, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {"run": name, "now": time.time(), "status": {}}
    try:
        with opened(f"{root}/runs/{name}") as top:
            status, done = record(contract.STATUS, top), record(contract.DONE, top)
            found |= {"status": _known(status), "done": _known(done), "config": text("config.yaml", top), **below(top)}
    except FileNotFoundError:
        return None
    except PermissionError:
        found["denied"] = 1
    if found["denied"]:
        return found | {"done": {}, "status": found["status"] | {"state": UNREADABLE}}
    if newest := _newest(f"{root}/runs/{name}"):
        with contextlib.suppress(FileNotFoundError, program.RefusedError), opened(newest) as folder:
            digests = record(contract.MANIFEST, folder).get("sha256")
            tokenizer = digests.get("model/tokenizer.json") if isinstance(digests, dict) else None
            config = found["config"] or text("config.yaml", folder)
            found |= {"checkpoint": PurePosixPath(newest).name, "config": config}
            found |= {"tokenizer": tokenizer, "weights": _weights(root, f"{newest}/model")}
    return found


def _known(found: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in found.items() if key in STATUS and type(value) in (int, float, str)}
    return {key: value[:500] if isinstance(value, str) else value for key, value in kept.items()}


def _newest(run: str) -> str:
    """The folder of a run's newest complete checkpoint; empty: there is none."""
    with contextlib.suppress(FileNotFoundError, program.RefusedError), opened(f"{run}/checkpoints") as top:
        for name in sorted(filter(contract.checkpoint_step, os.listdir(top)), reverse=True):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.stat(f"{name}/{contract.MANIFEST}", dir_fd=top, follow_symlinks=False)
                return f"{run}/checkpoints/{name}"
    return ""


def _weights(root: str, model: str, adapter: bool = True) -> int:
    """Bytes of a model's weights; those of an adapter's base model as well, where it is on the volume."""
    try:
        with opened(model) as folder:
            files = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
            size = sum(os.stat(name, dir_fd=folder, follow_symlinks=False).st_size for name in files)
            base = record("adapter_config.json", folder).get("base_model_name_or_path") if adapter else None
    except (FileNotFoundError, program.RefusedError):
        return 0
    if not isinstance(base, str) or ".." in base:
        return size
    place = f"{root}{base.removeprefix('/data')}" if base.startswith("/") else f"{root}/models/{base}"
    return size + (_weights(root, place, False) or _weights(root, f"{_newest(place)}/model", False))


def record(name: str, folder: int) -> dict[str, Any]:
    """The JSON object in a file; empty: there is none."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text(name, folder))
        return found if isinstance(found, dict) else {}
    return {}


def text(name: str, folder: int) -> str:
    """The beginning of a regular file; empty: there is none."""
    with contextlib.suppress(OSError, program.RefusedError), program.open_regular(name, "rb", folder) as file:
        return file.read(LARGEST).decode("utf-8", "replace")
    return ""


def about(root: str, *names: str) -> Iterator[dict[str, Any]]:
    for name in names:
        above, last = os.path.split(f"{root}/{name}")
        try:
            with opened(above) as folder:
                yield {**described(last, folder), "name": name}
        except FileNotFoundError:
            raise program.RefusedError(f"{name}: is not on the volume; `trainyard ls` lists what is") from None


def remove(root: str, *names: str) -> Iterator[dict[str, Any]]:
    """Remove paths below the root. Raises RefusedError before anything goes.

    Each gets a hidden name first: what is left of an interrupted removal does not look like a whole run.
    """
    for name in names:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute() or str(PurePosixPath(name)) != name:
            raise program.RefusedError(f"{name}: give a path below {root}")
        if parts[0] == "runs" and len(parts) > 1 and _trains(f"{root}/runs/{parts[1]}"):
            raise program.RefusedError(
                f"{name}: a training writes to this run, or did so minutes ago; stop it, or wait until it is silent"
            )
    found = list(about(root, *names))
    for name in names:
        if _denied(*os.path.split(f"{root}/{name}")):
            raise program.RefusedError(
                f"{name}: user {os.getuid()} may not list or change all folders there; nothing was removed"
            )
    for name, item in zip(names, found, strict=True):
        above, last = os.path.split(f"{root}/{name}")
        hidden = last if last.startswith(GOING) else f"{GOING}{last}"
        with opened(above) as folder:
            if hidden != last:
                with contextlib.suppress(FileNotFoundError):
                    program.remove(hidden, folder)
                os.rename(last, hidden, src_dir_fd=folder, dst_dir_fd=folder)
            program.remove(hidden, folder)
        yield item


def _denied(above: str, name: str) -> bool:
    """Whether there is a folder that may not be listed or changed."""
    problems: list[OSError] = []
    try:
        with opened(above) as folder:
            walk = os.fwalk(name, onerror=problems.append, dir_fd=folder)
            folders = itertools.chain([folder], (here for *_, here in walk))
            changeable = all(os.access(".", os.W_OK | os.X_OK, dir_fd=each) for each in folders)
    except PermissionError:
        return True
    return bool(problems) or not changeable


def _trains(run: str) -> bool:
    """Whether somebody wrote to the run's status of late, and has not said that the training has ended."""
    try:
        with opened(run) as folder:
            status, done = record(contract.STATUS, folder), record(contract.DONE, folder)
    except (FileNotFoundError, PermissionError):
        return False
    state, updated = status.get("state"), status.get("updated")
    patience = contract.COMPILING_SECONDS if state in ("starting", "compiling") else contract.STALE_SECONDS
    silent = not isinstance(updated, int | float) or time.time() - updated > patience
    return not (done or state in ENDED or silent)


CALLS = {"runs": runs, "entries": entries, "about": about, "remove": remove}

if __name__ == "__main__":
    sys.exit(program.main(*sys.argv[1:], calls=CALLS))
