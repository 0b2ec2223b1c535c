"""What is on the shared volume, and its removal: `python -m trainer.volume CALL ...`, in the pod on the volume.

    wait                           until nothing else has run in the pod for a while
    runs ROOT [NAME...]            each run in ROOT/runs, or those of these names
    entries PATH                   each entry of a folder, with what is below it, and the space of the file system
    removable ROOT NAME...         what is below each path NAME of the folder ROOT, if it may go
    remove ROOT NAME...            the same, which is then gone

Each but `wait` prints one JSON list. It imports no torch: a look at the volume takes a part of a second.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.contract import (
    DONE,
    HIDDEN,
    MANIFEST,
    STATUS,
    UNREADABLE,
    checkpoint_step,
    patience,
)
from trainer.errors import UserError, usage
from trainer.files import read_record, read_text

IDLE_SECONDS = 300.0
"""How long the pod stays for the next command. On a node that trains nothing it keeps the autoscaler waiting."""
AT_ONCE = 16
"""Runs and entries that are looked through in parallel: each call to a network's file system takes a millisecond."""
TOLD = (
    *("state", "step", "steps", "loss", "validation_loss", "validation_step", "bits_per_byte", "f1", "updated"),
    *("message", "world_size", "tokens_per_second", "eta_seconds", "data"),
)
"""What is told of status.json and of DONE, which also has a text."""
ENDED = ("done", "failed", "terminated")
"""States of a run to which nobody writes."""
PROC = "/proc"
GOING = ".removed-"
"""Prefix of what is being removed, and of what an interrupted removal has left."""


def wait(idle_seconds: float = IDLE_SECONDS) -> list[Any]:
    """Return when the pod has had no command for a while. SIGTERM ends its rsync before it.

    A command may have come before this program, and may be over before the next look.
    """
    signal.signal(signal.SIGTERM, _end)
    own = {"1", str(os.getpid())}  # the image's init, and this
    last, begun = time.monotonic(), _begun()
    while time.monotonic() - last < idle_seconds:
        time.sleep(min(5.0, idle_seconds / 4))
        if _processes() - own or _begun() != begun:
            last, begun = time.monotonic(), _begun()
    return []


def _processes() -> set[str]:
    return {name for name in os.listdir(PROC) if name.isdigit()}


def _begun() -> str:
    """The number of the process that began last in the pod, which may be gone (proc(5), loadavg)."""
    return Path(PROC, "loadavg").read_text("utf-8").split()[-1]


def _end(*_: Any) -> None:
    """Let an rsync keep the part of a file that it has: a signal lets it, the pod's end does not."""
    for each in _processes():
        with contextlib.suppress(OSError):
            if Path(PROC, each, "comm").read_text("utf-8") == "rsync\n":
                os.kill(int(each), signal.SIGTERM)
    time.sleep(1)
    os._exit(0)


def runs(root: str, *names: str) -> Iterator[dict[str, Any]]:
    """Size, status, result and checkpoints of each run in ROOT/runs, or of those of these names."""
    top = Path(root, "runs")
    found: Iterable[str] = names
    if not names and top.is_dir():
        folders = (each.name for each in top.iterdir() if each.is_dir() and not each.is_symlink())
        found = sorted(name for name in folders if not name.startswith("."))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from filter(None, pool.map(lambda name: _run(Path(root), top / name), found))


def _run(root: Path, run: Path) -> dict[str, Any] | None:
    if not run.is_dir():
        return None
    size = below(run)
    found: dict[str, Any] = {"run": run.name, "now": time.time(), "status": {}, **size}
    if size["denied"]:
        return found | {"done": {}, "status": {"state": UNREADABLE}}
    complete = checkpoints(run)
    newest = run / "checkpoints" / complete[-1] if complete else None
    configured = [run / "config.yaml", *([newest / "config.yaml"] if newest else [])]
    found |= {"status": _told(run / STATUS), "done": _told(run / DONE), "checkpoints": complete}
    found["config"] = next(filter(None, map(_text, configured)), "")
    if newest:
        found["tokenizer"] = _record(newest / MANIFEST).get("sha256", {}).get("model/tokenizer.json")
        found["weights"] = _weights(root, newest / "model")
    return found


def checkpoints(run: Path) -> list[str]:
    """Names of a run's complete checkpoints, the oldest first."""
    folders = (each.parent for each in run.glob(f"checkpoints/*/{MANIFEST}"))
    return sorted(each.name for each in folders if checkpoint_step(each.name) is not None)


def _told(path: Path) -> dict[str, Any]:
    return {key: value for key, value in _record(path).items() if key in TOLD and value is not None}


def _weights(root: Path, model: Path, adapter: bool = True) -> int:
    """Bytes of a model's weights; those of an adapter's base model as well, where it is on the volume."""
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    base = _record(model / "adapter_config.json").get("base_model_name_or_path") if adapter else None
    if base is None:
        return size
    place = Path(f"{root}{base.removeprefix('/data')}") if base.startswith("/") else root / "models" / base
    newest = place / "checkpoints" / (checkpoints(place) or ["none"])[-1] / "model"
    return size + (_weights(root, place, False) or _weights(root, newest, False))


def _record(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty: there is none that may be read."""
    with contextlib.suppress(OSError):
        return read_record(path)
    return {}


def _text(path: Path) -> str:
    """The text of a file; empty: there is none that may be read."""
    with contextlib.suppress(OSError):
        return read_text(path, "replace")
    return ""


def entries(path: str) -> Iterator[dict[str, Any]]:
    """The entries of a folder, or the file that the path names, then the space of the file system."""
    folder = Path(path)
    if not folder.is_dir():
        yield described(folder)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def look(entry: Path) -> dict[str, Any] | None:
            with contextlib.suppress(FileNotFoundError):  # a checkpoint that is deleted meanwhile
                return described(entry)
            return None

        yield from filter(None, pool.map(look, sorted(folder.iterdir())))
    space = shutil.disk_usage(folder)
    yield {"free": space.free, "size": space.total}


def described(path: Path, name: str = "") -> dict[str, Any]:
    """Kind, size and age of what is at a path; a link is not followed. Raises UserError where nothing is."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise UserError(f"{name or path}: is not on the volume; `trainyard ls` lists what is") from None
    if stat.S_ISDIR(status.st_mode):
        found = below(path)
        kind = HIDDEN if found["denied"] else "folder"
    else:
        kind = {stat.S_IFREG: "file", stat.S_IFLNK: "link"}.get(stat.S_IFMT(status.st_mode), "no file")
        found = {"bytes": status.st_blocks * 512, "files": 1, "changed": status.st_mtime}
    return {"name": name or path.name, "kind": kind, **found, "age": time.time() - found["changed"]}


def below(folder: Path) -> dict[str, Any]:
    """Bytes on the disk and number of files below a folder, hidden ones as well, and the newest change.

    denied: the number of folders that may not be listed.
    """
    size = files = 0
    problems: list[OSError] = []
    changed = folder.stat().st_mtime
    for here, _, names in os.walk(folder, onerror=problems.append):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(here, name))
                size, files, changed = size + status.st_blocks * 512, files + 1, max(changed, status.st_mtime)
    denied = sum(isinstance(problem, PermissionError) for problem in problems)
    return {"bytes": size, "files": files, "changed": changed, "denied": denied}


def removable(root: str, *names: str) -> list[dict[str, Any]]:
    """What is at paths below the root. Raises UserError for one that may not be removed."""
    found = []
    for name in names:
        path = Path(root, name)
        found.append(described(path, name))
        inside = path.relative_to(root).parts
        if inside[0] == "runs" and len(inside) > 1 and _trains(Path(root, *inside[:2])):
            raise UserError(
                f"{name}: a training writes to this run, or did so minutes ago; stop it, or wait until it is silent"
            )
        if _denied(path):
            raise UserError(f"{name}: user {os.getuid()} may not list or change all folders there; nothing was removed")
    return found


def remove(root: str, *names: str) -> list[dict[str, Any]]:
    """Remove paths below the root; return what was there. Raises UserError before anything goes.

    Each gets a hidden name first: what is left of an interrupted removal does not look like a whole run.
    """
    found = removable(root, *names)
    for path in (Path(root, name) for name in names):
        hidden = path if path.name.startswith(GOING) else path.with_name(f"{GOING}{path.name}")
        if hidden != path:
            _delete(hidden)
            path.rename(hidden)
        _delete(hidden)
    return found


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _denied(path: Path) -> bool:
    """Whether there is a folder that may not be listed or changed."""
    problems: list[OSError] = []
    folders = itertools.chain([path.parent], (here for here, _, _ in os.walk(path, onerror=problems.append)))
    changeable = all(os.access(each, os.W_OK | os.X_OK) for each in folders)
    return not changeable or any(isinstance(problem, PermissionError) for problem in problems)


def _trains(run: Path) -> bool:
    """Whether somebody wrote to the run's status of late, and has not said that the training has ended."""
    status = _record(run / STATUS)
    state, updated = status.get("state"), status.get("updated")
    silent = updated is None or time.time() - updated > patience(state)
    return not (_record(run / DONE) or state in ENDED or silent)


CALLS: dict[str, Callable[..., Iterable[Any]]] = {
    each.__name__: each for each in (wait, runs, entries, removable, remove)
}


@usage
def main(call: str, *arguments: str) -> int:
    print(json.dumps(list(CALLS[call](*arguments))))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
