"""What is on the shared volume, and its removal: `python -m trainer.volume CALL ...`, in the pod on the volume.

    wait                           until nothing else has run in the pod for a while
    runs ROOT [NAME...]            each run in ROOT/runs, or those of these names
    remove ROOT NAME...            what is at each path NAME of the folder ROOT, which is then gone

`runs` prints a JSON list. This module imports no torch: a look at the volume takes a part of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.contract import DONE, MANIFEST, STATUS, UNREADABLE, checkpoint_step, patience
from trainer.errors import UserError, usage
from trainer.files import list_names, read_record, read_text

IDLE_SECONDS = 300.0
"""How long the pod stays for the next command. On a node that trains nothing it keeps the autoscaler waiting."""
AT_ONCE = 16
"""Runs that are looked through in parallel: each call to a network's file system takes a millisecond."""
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
        if {each.parent.name for each in _processes()} - own or _begun() != begun:
            last, begun = time.monotonic(), _begun()
    return []


def _processes() -> Iterable[Path]:
    """A file for each process of the pod, with its name."""
    return Path(PROC).glob("[0-9]*/comm")


def _begun() -> str:
    """The number of the process that began last in the pod, which may be gone (proc(5), loadavg)."""
    return Path(PROC, "loadavg").read_text("utf-8").split()[-1]


def _end(*_: Any) -> None:
    """Let an rsync keep the part of a file that it has: a signal lets it, the pod's end does not."""
    for each in _processes():
        with contextlib.suppress(OSError):
            if each.read_text("utf-8") == "rsync\n":
                os.kill(int(each.parent.name), signal.SIGTERM)
    time.sleep(1)
    os._exit(0)


def runs(root: str, *names: str) -> Iterator[dict[str, Any]]:
    """Size, status, result and checkpoints of each run in ROOT/runs, or of those of these names."""
    top = Path(root, "runs")
    all_names = (name for name in list_names(top) if not name.startswith(".") and not (top / name).is_symlink())
    found = [top / name for name in names or all_names if (top / name).is_dir()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda run: _run(Path(root), run), found)


def _run(root: Path, run: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"run": run.name, "now": time.time(), "status": {}, "done": {}, "bytes": 0}
    try:
        complete = checkpoints(run)
        newest = run / "checkpoints" / complete[-1] if complete else None
        found |= {"status": read_record(run / STATUS), "done": read_record(run / DONE), "checkpoints": complete}
        configured = [run / "config.yaml", *([newest / "config.yaml"] if newest else [])]
        found["config"] = next((read_text(each, "replace") for each in configured if each.exists()), "")
        if newest:
            found["tokenizer"] = read_record(newest / MANIFEST).get("sha256", {}).get("model/tokenizer.json")
            found["weights"] = _weights(root, newest / "model")
        found["bytes"] = _bytes(run)
    except PermissionError:  # a run that another user copied there
        found["status"] = {"state": UNREADABLE}
    return found


def checkpoints(run: Path) -> list[str]:
    """Names of a run's complete checkpoints, the oldest first."""
    folder = run / "checkpoints"
    return [
        name for name in list_names(folder) if checkpoint_step(name) is not None and (folder / name / MANIFEST).exists()
    ]


def _weights(root: Path, model: Path, adapter: bool = True) -> int:
    """Bytes of a model's weights; those of an adapter's base model as well, where it is on the volume."""
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    base = read_record(model / "adapter_config.json").get("base_model_name_or_path") if adapter else None
    if base is None:
        return size
    place = Path(f"{root}{base.removeprefix('/data')}") if base.startswith("/") else root / "models" / base
    newest = place / "checkpoints" / (checkpoints(place) or ["none"])[-1] / "model"
    return size + (_weights(root, place, False) or _weights(root, newest, False))


def _bytes(folder: Path) -> int:
    """Bytes on the disk below a folder, hidden files as well. Raises PermissionError for one that may not be listed."""
    size = 0
    for here, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a checkpoint that is deleted meanwhile
                size += os.lstat(os.path.join(here, name)).st_blocks * 512
    return size


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def remove(root: str, *names: str) -> list[Any]:
    """Remove paths below the root. Raises UserError before anything goes, unless a mode forbids what is in a folder.

    Each gets a hidden name first: what is left of an interrupted removal does not look like a whole run.
    """
    paths = [Path(root, name) for name in names]
    for path, name in zip(paths, names, strict=True):
        if not os.path.lexists(path):
            raise UserError(f"{name}: is not on the volume; `trainyard ls` lists what is")
        inside = path.relative_to(root).parts
        if inside[0] == "runs" and len(inside) > 1 and _trains(Path(root, *inside[:2])):
            raise UserError(
                f"{name}: a training writes to this run, or did so minutes ago; stop it, or wait until it is silent"
            )
    for path in filter(os.path.lexists, paths):  # one of them may lie in another
        hidden = path if path.name.startswith(GOING) else path.with_name(f"{GOING}{path.name}")
        if hidden != path:
            _delete(hidden)
            path.rename(hidden)
        _delete(hidden)
    return []


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _trains(run: Path) -> bool:
    """Whether somebody wrote to the run's status of late, and has not said that the training has ended."""
    status = read_record(run / STATUS)
    state, updated = status.get("state"), status.get("updated")
    silent = updated is None or time.time() - updated > patience(state)
    return not (read_record(run / DONE) or state in ENDED or silent)


CALLS: dict[str, Callable[..., Iterable[Any]]] = {each.__name__: each for each in (wait, runs, remove)}


@usage
def main(call: str, *arguments: str) -> int:
    print(json.dumps(list(CALLS[call](*arguments))))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
