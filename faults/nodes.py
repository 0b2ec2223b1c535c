"""A pod of the laboratory: the launcher under an init process, in its own PID namespace on its own machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@dataclass
class Pod:
    """`python -m trainer.launch` as the container runs it: tini is PID 1, and its end ends every process of the pod."""

    name: str
    address: str
    enter: list[str]
    options: list[str]
    arguments: list[str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [*self.enter, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "tini", "-g", "--"]
        command += [sys.executable, "-m", "trainer.launch", "--local-addr", self.address, *self.options]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"TRAINYARD_TERMINATION_LOG": str(self.folder / f"{self.name}.termination")}
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--", *self.arguments],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        path = self.folder / f"{self.name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    @property
    def code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def last_words(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / f"{self.name}.termination").read_text("utf-8"))
        return {}

    @property
    def rounds(self) -> list[tuple[int, ...]]:
        """(number, world size, this pod's rank) of each round that its worker was in, oldest first."""
        found = re.findall(r"^event=round round=(\d+) world_size=(\d+) rank=(\d+)", self.log, re.MULTILINE)
        return [tuple(map(int, figures)) for figures in found]

    @property
    def round(self) -> int:
        """The highest round number; 0 before the first round. An etcd that lost its data counts from 1 again."""
        return max((number for number, *_ in self.rounds), default=0)

    def agent(self) -> int:
        """Return the launcher's process id in this machine's PID namespace."""
        return self._find("trainer.launch")

    def worker(self) -> int:
        return self._find("trainer.train")

    def everything(self) -> list[int]:
        return [] if self.process is None else descendants(self.process.pid)

    def signal(self, number: int, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to the init process, as the kubelet does first."""
        self.signal(signal.SIGTERM, self._init())

    def kill(self) -> None:
        """Kill the init process, and so the whole pod, as the kubelet does last or the loss of the machine does."""
        if self.process is not None:
            self.signal(signal.SIGKILL, self._init())
            self.process.wait(20)

    def _init(self) -> list[int]:
        return [pid for pid in self.everything() if command_line(pid).startswith("tini")]

    def _find(self, module: str) -> int:
        for pid in self.everything():
            words = command_line(pid)
            if f"-m {module}" in words and not words.startswith(("unshare", "tini", "nsenter", "sh")):
                return pid
        raise LookupError(f"{self.name} runs no {module}:\n{self.log[-2000:]}")


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """List a process and all its descendants, parents first."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                found += [int(child) for child in Path(f"/proc/{each}/task/{thread}/children").read_text().split()]
    return found
