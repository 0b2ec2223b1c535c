"""Pods as processes of this machine, behind a `kubectl exec` that counts bytes and breaks on request."""

from __future__ import annotations

import io
import json
import os
import random
import shlex
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
from trainer.contract import STOPPED

MB = 1 << 20

EXEC = """\
notes=$1
while [ "$1" != -- ]; do shift; done
shift
echo >>"$notes/connections"
if [ -e "$notes/down" ]; then
  echo "Unable to connect to the server: dial tcp: connection refused" >&2
  exit 1
fi
. "$notes/settings"
pass() { dd bs=64K iflag=count_bytes count="$break_after" status=none | tee --output-error=exit -a "$notes/$1"; }
exec 3<&0
(ulimit -f "$largest_file" && exec setsid --wait "$@") < <(pass sent <&3) | pass received
code=${PIPESTATUS[0]}
[ "$code" = 0 ] || echo "command terminated with exit code $code" >&2
exit "$code"
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

    def run(self, *words: str, **options: Any) -> tuple[int, str]:
        if words[:3] != ("python", "-m", "trainer.volume"):
            return super().run(*words, **options)
        with open(Path(self.kubectl[-1], "connections"), "a") as file:
            file.write("\n")
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as said:
            code = survey.main(*words[3:])
        return code, said.getvalue() if code else out.getvalue()


class Wire:
    """A pod behind EXEC, with counts of bytes and connections."""

    def __init__(self, notes: Path, break_after: int = 1 << 60, largest_file: int = 0, **environment: str):
        notes.mkdir(exist_ok=True)
        self.notes = notes
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), **environment}
        (notes / "environment.json").write_text(json.dumps(own))
        lines = [f"break_after={break_after}", f"largest_file={largest_file // 1024 or 'unlimited'}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in own.items()]
        (notes / "settings").write_text("\n".join(lines))
        (notes / "its kubectl").write_text(EXEC)
        self.pod = Near(("bash", str(notes / "its kubectl"), str(notes)), "pod")

    @contextmanager
    def volume_pod(self, *_: Any) -> Iterator[tuple[Pod, Seen]]:
        """In place of cli.pods.volume_pod."""
        yield self.pod, Seen()

    @property
    def connections(self) -> int:
        return self._size("connections")

    @property
    def sent(self) -> int:
        return self._size("sent")

    @property
    def received(self) -> int:
        return self._size("received")

    def _size(self, name: str) -> int:
        return (self.notes / name).stat().st_size if (self.notes / name).exists() else 0


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


def a_job(*arguments: str, kind: str = "", component: str = "trainer", stopped: str = "", text: str = "") -> Any:
    """A Job named after its component, with a ConfigMap of this text."""
    labels, volumes = {"app.kubernetes.io/component": component}, [{"name": "data"}]
    volumes += [{"name": "configuration", "configMap": {"name": component}}] if text else []
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"args": list(arguments)}], "volumes": volumes}}
    conditions = [{"type": kind, "status": "True"}] if kind else []
    metadata = {"name": component, "annotations": {STOPPED: stopped} if stopped else {}}
    return {"metadata": metadata, "spec": {"template": pod}, "status": {"conditions": conditions}, "text": text}


OF_THE_NEWEST = {"model/model.safetensors", "model/shard-200", "config.yaml", "manifest.json"}
"""What a fetch brings of the run's newest checkpoint."""
