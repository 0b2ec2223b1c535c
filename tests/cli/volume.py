"""The volume's program and rsync as real processes, behind a `kubectl exec` that counts bytes and breaks on request."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.progress import Bar
from cli.reach import PARTS, PROGRAM
from cli.transfer import TransferError, Volume

MB = 1 << 20
#: In the pod the program's parts lie side by side.
BESIDE = {"PYTHONPATH": os.pathsep.join(str(part.parent) for part in PARTS)}

EXEC = """
import json, os, pathlib, signal, subprocess, sys, threading, time
notes, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
HELD_AFTER = 8 << 20
settings = json.loads((notes / "settings.json").read_text())
def line(**found):
    with open(notes / "connections.jsonl", "a") as file:
        file.write(json.dumps(found) + "\\n")
if (notes / "down").exists():
    line(sent=0, received=0)
    sys.exit("Unable to connect to the server: dial tcp: connection refused")
there = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                         env={**os.environ, **settings["environment"]})
counts = {"sent": 0, "received": 0}
last = threading.Lock()  # never released: one thread tells the counts and ends the process
def broken():
    limit = settings["break_after"]
    return (notes / "down").exists() or (limit is not None and sum(counts.values()) > limit)
def end():
    last.acquire()
    line(**counts)
    if settings["kill"]:  # the pod is gone: no process there ends in its own way
        os.killpg(there.pid, signal.SIGKILL)
    print("error: unexpected EOF", file=sys.stderr, flush=True)
    os._exit(1)  # closes the pipes
def pump(source, target, name):
    try:
        while part := os.read(source, 1 << 16):
            counts[name] += len(part)
            if broken():
                end()
            while counts[name] > HELD_AFTER and (notes / "held").exists():
                time.sleep(0.01)
            view = memoryview(part)
            while view:
                view = view[os.write(target, view):]
    except OSError:
        pass
    os.close(target)
threading.Thread(target=pump, args=(0, there.stdin.fileno(), "sent"), daemon=True).start()
pump(there.stdout.fileno(), 1, "received")
code = there.wait()
last.acquire()
line(**counts)
if code:
    print(f"command terminated with exit code {code}", file=sys.stderr, flush=True)
os._exit(code if code > 0 else 137 if code else 0)
"""


class Seen(Bar):
    """A progress bar that only counts."""

    def __init__(self) -> None:
        self.files, self.done = 0, 0
        self.size: int | None = None

    def total(self, files: int, size: int | None) -> None:
        self.files, self.size = files, size

    def file(self, name: str) -> None:
        pass

    def skip(self, size: int) -> None:
        self.size = (self.size or 0) - size

    def waiting(self, reason: str) -> None:
        pass

    def pause(self) -> None:
        pass

    def advance(self, size: int) -> None:
        self.done += size


class Wire:
    """A volume behind EXEC, with counts of bytes and connections."""

    def __init__(
        self,
        notes: Path,
        program: Path = PROGRAM,
        break_after: int | None = None,
        kill: bool = False,
        **environment: str,
    ):
        notes.mkdir(exist_ok=True)
        self.notes = notes
        settings = {"break_after": break_after, "kill": kill, "environment": BESIDE | environment}
        (notes / "settings.json").write_text(json.dumps(settings))
        played = (sys.executable, "-c", EXEC, str(notes))
        self.volume = Volume(played, (sys.executable, str(program)))

    def _connections(self) -> list[dict[str, Any]]:
        file = self.notes / "connections.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def connections(self) -> int:
        return len(self._connections())

    @property
    def sent(self) -> int:
        return sum(line["sent"] for line in self._connections())

    @property
    def received(self) -> int:
        return sum(line["received"] for line in self._connections())


def hold(notes: Path) -> Path:
    """A file in the notes of a Wire: while it exists, no more than 8 MB pass in a direction."""
    notes.mkdir()
    (notes / "held").touch()
    return notes / "held"


def told(action: Callable[[], object]) -> str:
    """What a failed transfer says; empty when it succeeds."""
    try:
        action()
    except TransferError as error:
        return str(error)
    return ""


def noise(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(size).randbytes(size))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones as well; links are not followed."""
    found: dict[str, bytes] = {}
    for here, _, names in os.walk(folder):
        found |= {str(p.relative_to(folder)): p.read_bytes() for n in names if not (p := Path(here, n)).is_symlink()}
    return found


def plant(path: Path, victim: Path, kind: str) -> None:
    """Put a link, another name of a file, or a FIFO in the place of whatever is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(victim)
    else:
        path.symlink_to(victim)


def save(run: Path, step: int) -> None:
    checkpoint = run / "checkpoints" / f"step-{step:08d}"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "model" / "model.safetensors").write_bytes(random.Random(step).randbytes(8 * MB))
    (checkpoint / "model" / f"shard-{step}").write_text(f"of {step}")
    (checkpoint / "optimizer.safetensors").write_bytes(b"0" * 1000)
    (checkpoint / "config.yaml").write_text("run: {}\n")
    (checkpoint / "manifest.json").write_text(json.dumps({"step": step}))


OF_THE_NEWEST = {"model/model.safetensors", "model/shard-200", "config.yaml", "manifest.json"}
"""What a fetch brings of the run's newest checkpoint."""
