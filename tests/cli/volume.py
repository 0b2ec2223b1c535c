"""Pods as processes of this machine, behind a `kubectl exec` that counts bytes and breaks on request."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from cli import CommandError
from cli.pods import Pod
from cli.progress import Bar
from infra.stackfiles import ROOT
from trainer import volume as survey

MB = 1 << 20

EXEC = """
import json, os, pathlib, resource, subprocess, sys, threading
notes, command = pathlib.Path(sys.argv[1]), sys.argv[sys.argv.index("--") + 1:]
settings = json.loads((notes / "settings.json").read_text())
def line(**found):
    with open(notes / "connections.jsonl", "a") as file:
        file.write(json.dumps(found) + "\\n")
if (notes / "down").exists():
    line(sent=0, received=0)
    sys.exit("Unable to connect to the server: dial tcp: connection refused")
if limit := settings["largest_file"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
there = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                         env={**os.environ, **settings["environment"]})
counts = {"sent": 0, "received": 0}
last = threading.Lock()  # never released: one thread tells the counts and ends the process
def end():
    last.acquire()
    line(**counts)
    print("error: unexpected EOF", file=sys.stderr, flush=True)
    os._exit(1)  # closes the pipes
def pump(source, target, name):
    try:
        while part := os.read(source, 1 << 16):
            counts[name] += len(part)
            if settings["break_after"] is not None and sum(counts.values()) > settings["break_after"]:
                end()
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
        self.files = self.size = self.done = self.before = 0

    def expect(self, files: int, size: int) -> None:
        self.files, self.before, self.size = self.files + files, self.done, self.size + size

    def waiting(self, reason: str) -> None:
        pass

    def pause(self) -> None:
        pass

    def reached(self, size: int) -> None:
        self.done = min(self.before + size, self.size)


class Near(Pod):
    """A pod whose looks at the volume run in this process, which has imported all that they need."""

    def run(self, *words: str, seconds: float | None = None) -> tuple[int, str]:
        if words[:3] != ("python", "-m", "trainer.volume"):
            return super().run(*words, seconds=seconds)
        with open(Path(self.kubectl[-1], "connections.jsonl"), "a") as file:
            file.write('{"sent": 0, "received": 0}\n')
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as said:
            code = survey.main(*words[3:])
        return code, said.getvalue() if code else out.getvalue()


class Wire:
    """A pod behind EXEC, with counts of bytes and connections."""

    def __init__(
        self, notes: Path, break_after: int | None = None, largest_file: int | None = None, **environment: str
    ):
        notes.mkdir(exist_ok=True)
        self.notes = notes
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), **environment}
        settings = {"break_after": break_after, "largest_file": largest_file, "environment": own}
        (notes / "settings.json").write_text(json.dumps(settings))
        (notes / "its kubectl").write_text(EXEC)
        self.pod = Near((sys.executable, str(notes / "its kubectl"), str(notes)), "pod")

    @contextmanager
    def volume_pod(self, *_: Any) -> Iterator[tuple[Pod, Seen]]:
        """In place of cli.pods.volume_pod."""
        yield self.pod, Seen()

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


def told(action: Callable[[], object]) -> str:
    """What a failed copy says; empty when it succeeds."""
    try:
        action()
    except CommandError as error:
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
