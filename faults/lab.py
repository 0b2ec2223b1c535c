"""The laboratory of one fault of a rendezvous: machines, etcd, and the launchers of one job.

A machine is a network namespace. A pod is the launcher as its container runs it: under an init process, whose end ends
every process of the pod, in a PID namespace of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.trainer import setup
from faults.fault import PERIOD, Expected, until
from faults.journal import Journal
from faults.network import Network
from infra.stackfiles import ROOT
from local import toolchain
from trainer.contract import DONE, ETCD_PORT, EXIT_FATAL, WORKER

MACHINES = 6
ETCD, FIRST = 2, 11
"""Last byte of the machines' addresses."""
SETTINGS: dict[str, Any] = {
    "model.preset": "tiny",
    "steps": 240,
    "tokens_per_step": 2048,
    "sequence_length": 64,
    "micro_batch": 2,
    "precision": "fp32",
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 10,
    "evaluation.every": 1000,
    "evaluation.batches": 4,
    "evaluation.sample_tokens": 4,
    "checkpoint.every_steps": PERIOD,
    "metrics.every": 1,
    "metrics.tensorboard": "false",
}
"""A step takes about 0.1 s on one core, so that there is time to break something. Keep-alive and timeouts are the
trainer's defaults."""
NODES = "1:1000"
"""The same as in the stack's Job: more members than there will ever be (workloads/elastic.py)."""


@dataclass
class Pod:
    """A launcher on a machine. Files NAME.log and NAME.termination in `folder` have what it said."""

    name: str
    machine: str
    folder: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, name: str, machine: str, network: Network, folder: Path, launch: list[str]) -> Pod:
        init = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "tini", "-g", "--"]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"TRAINYARD_TERMINATION_LOG": str(folder / f"{name}.termination")}
        with open(folder / f"{name}.log", "ab") as log:
            command = [*network.enter(machine), *init, sys.executable, *launch]
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        return cls(name, machine, folder, process)

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text("utf-8", "replace")

    @property
    def code(self) -> int | None:
        return self.process.poll()

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
        """The highest round number; 0 before the first round."""
        return max((number for number, *_ in self.rounds), default=0)

    def processes(self) -> list[psutil.Process]:
        """Parents first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def find(self, wanted: Callable[[psutil.Process], bool]) -> psutil.Process:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if wanted(process):
                    return process
        raise LookupError(f"{self.name} runs no such process:\n{self.log[-2000:]}")

    def init(self) -> psutil.Process:
        """Its end ends the whole pod; it hands SIGTERM on."""
        return self.find(lambda process: process.name() == "tini")

    def agent(self) -> psutil.Process:
        return self.find(lambda process: process.cmdline()[1:3] == ["-m", "trainer.launch"])

    def worker(self) -> psutil.Process:
        return self.find(lambda process: process.name() == WORKER)

    def kill(self) -> None:
        """End the whole pod, as the loss of its machine does."""
        with contextlib.suppress(LookupError, psutil.NoSuchProcess):
            self.init().kill()
        self.process.wait(20)


class Lab(contextlib.ExitStack):
    """Everything that one fault needs. Leaving it, also by SIGTERM, ends each process and removes each namespace."""

    def __init__(self, folder: Path, dataset: Path) -> None:
        super().__init__()
        self.folder, self._dataset, self._run = folder, dataset, folder / "run"
        self.pods: list[Pod] = []
        self.faults: list[float] = []
        """When something was broken."""
        self._etcd: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Lab:
        # Before anything is there that would be left.
        self.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.network = Network()
        self.callback(self.network.remove)
        self.network.make()
        self.journal = Journal(self._run)
        self.callback(self._end)
        for name, number in (("etcd", ETCD), *((f"n{i}", FIRST + i) for i in range(MACHINES))):
            self.network.add(name, number)
        self.start_etcd()

    def _end(self) -> None:
        self.journal.end()
        for pod in self.pods:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pod.kill()
        self.kill_etcd()

    def start_etcd(self) -> None:
        url = f"http://{self.network.addresses['etcd']}:{ETCD_PORT}"
        command = [*self.network.enter("etcd"), *etcd_command(self.folder / "etcd", url)]
        self._etcd = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_etcd(self) -> None:
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()

    # The job and its pods.

    def pod(self, machine: int, **settings: Any) -> Pod:
        """Start a pod on machine n<machine>."""
        values = SETTINGS | {"data.directory": self._dataset, "run.directory": self._run} | settings
        arguments = [f"{key}={value}" for key, value in values.items()]
        name = f"n{machine}-{len(self.pods)}"
        launch = self.launch(f"n{machine}", arguments)
        self.pods.append(pod := Pod.start(name, f"n{machine}", self.network, self.folder, launch))
        return pod

    def launch(self, machine: str, arguments: list[str]) -> list[str]:
        """What Python runs on a machine, to train with these settings."""
        options = ["--local-addr", self.network.addresses[machine], "--nnodes", NODES, "--rdzv-id", "job"]
        options += ["--rdzv-endpoint", f"{self.network.addresses['etcd']}:{ETCD_PORT}"]
        return ["-m", "trainer.launch", *options, "--", *arguments]

    def start(self, count: int = 3, **settings: Any) -> list[Pod]:
        return [self.pod(machine, **settings) for machine in range(count)]

    def train(self, step: int = 60, **settings: Any) -> list[Pod]:
        """Start three pods, wait until they have made this step, and mark the fault."""
        pods = self.start(**settings)
        self.step(step)
        self.fault()
        return pods

    def lose_machine(self, pod: Pod, successor: int) -> Pod:
        """Cut a pod's machine off; once the others have trained on, remove the pod and start another one elsewhere.

        Its processes continue until then, as if only its network were lost, until the cloud removes the machine."""
        self.fault()
        self.network.cut(pod.machine)
        self.more_steps()
        pod.kill()
        return self.pod(successor)

    # Time.

    def fault(self) -> None:
        """Record that something breaks now."""
        self.faults.append(time.time())

    def until(self, condition: Callable[[], bool], seconds: float, what: str, fatal: bool = True) -> None:
        """Wait until a condition holds. `fatal`: a pod that ends with 42 ends the wait at once."""

        def told() -> None:
            dead = [pod for pod in self.pods if pod.code == EXIT_FATAL]
            if fatal and dead:
                raise Expected(f"{what}: {dead[0].name} ended with 42: {dead[0].last_words.get('message')}")
            if all(pod.code is not None for pod in self.pods) and not condition():
                last = self.pods[0].log.strip().splitlines()[-1:]
                raise Expected(f"{what}: every pod has ended, {[pod.code for pod in self.pods]}: {' '.join(last)}")

        until(condition, seconds, what, told)

    def step(self, step: int, seconds: float = 180) -> None:
        self.until(lambda: self.journal.step >= step, seconds, f"step {step}")

    def more_steps(self, count: int = 5, seconds: float = 120) -> None:
        """Wait until a live round has made this many steps from now."""
        begin = time.time()
        self.until(lambda: self.journal.made_since(begin) >= count, seconds, f"{count} more steps")

    def ended(self, pods: list[Pod], seconds: float = 240) -> list[int]:
        """Wait for the pods' end; return their exit codes."""
        self.until(lambda: all(pod.code is not None for pod in pods), seconds, "the end of the pods", fatal=False)
        return [pod.code for pod in pods if pod.code is not None]

    def done(self) -> dict[str, Any]:
        path = self._run / DONE
        if not path.exists():
            raise Expected(f"{path.name} is missing: the training did not end")
        return json.loads(path.read_text("utf-8"))


def make_dataset(folder: Path) -> Path:
    """Write the beginning of the sample text, in a vocabulary of 500 tokens, so that a step takes milliseconds."""
    return Path(setup.dataset(folder, vocabulary=500, characters=60_000))


def etcd_command(folder: Path, url: str, peer: str = "http://127.0.0.1:2380") -> list[str]:
    """Return the command of a single-member etcd with its data in a folder. `trainyard local toolchain etcd` builds it.

    It is the version that this checkout pins, and that a stack runs: not one on PATH, nor another one in the cache."""
    options = {"data-dir": folder, "log-level": "error", "listen-client-urls": url, "advertise-client-urls": url}
    options |= {"listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
    return [toolchain.program("etcd"), *(f"--{name}={value}" for name, value in options.items())]
