"""The laboratory of one row: machines, etcd, a name server, and the pods of one or more jobs on one dataset."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.fault import PERIOD, Expected, expect, until
from faults.journal import Journal
from faults.network import Network
from faults.nodes import ROOT, Pod
from local import toolchain
from trainer.contract import DONE, ETCD_PORT, EXIT_FATAL

REPLACE_SECONDS = 10
"""The Job controller's back-off before the first replacement of a pod."""

MACHINES = 6
ETCD, DNS, FIRST = 2, 3, 11
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


class Lab:
    """Everything that one fault needs. Leaving it ends every process and removes every namespace."""

    count = 3

    def __init__(self, folder: Path, dataset: Path) -> None:
        self.folder, self._dataset = folder, dataset
        self._stack = contextlib.ExitStack()
        self.pods: list[Pod] = []
        self._gone: list[Pod] = []
        self.faults: list[float] = []
        self.journals: dict[str, Journal] = {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Lab:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.network = self._stack.enter_context(Network())
        self._stack.callback(self._end)
        for name, number in (("etcd", ETCD), ("dns", DNS), *((f"n{i}", FIRST + i) for i in range(MACHINES))):
            self.network.add(name, number)
        self._resolv = self.folder / "resolv.conf"
        self._resolv.write_text(f"nameserver {self.network.machines['dns']}\noptions timeout:1 attempts:1\n")
        self.start_dns()
        self.start_etcd()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        for journal in self.journals.values():
            journal.end()
        for pod in self.pods:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pod.kill()
        for server in self._servers.values():
            server.kill()
            server.wait()

    # The servers that the nodes need.

    def start_dns(self) -> None:
        address = self.network.machines["dns"]
        names = f"etcd.chaos={self.network.machines['etcd']}"
        command = [*self.network.enter("dns"), sys.executable, "-m", "faults.network", address, names]
        self._servers["dns"] = subprocess.Popen(command, cwd=ROOT)

    def start_etcd(self) -> None:
        url = f"http://{self.network.machines['etcd']}:{ETCD_PORT}"
        command = [*self.network.enter("etcd"), *etcd_command(self.folder / "etcd", url)]
        self._servers["etcd"] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_server(self, name: str) -> None:
        server = self._servers.pop(name)
        server.kill()
        server.wait()

    def lose_etcd(self) -> None:
        self.kill_server("etcd")
        shutil.rmtree(self.folder / "etcd")
        self.start_etcd()

    # The job and its pods.

    def run_folder(self, job: str = "job") -> Path:
        return self.folder / "runs" / job

    def journal(self, job: str = "job") -> Journal:
        if job not in self.journals:
            self.journals[job] = Journal(self.run_folder(job))
        return self.journals[job]

    def pod(self, machine: int, job: str = "job", **settings: Any) -> Pod:
        """Start a pod of a job on machine n<machine>."""
        name = f"n{machine}"
        values = {**SETTINGS, "data.directory": self._dataset, "run.directory": self.run_folder(job)}
        values |= {key.replace("__", "."): value for key, value in settings.items()}
        pod = Pod(
            name=f"{job}-{name}-{len(self.pods)}",
            address=self.network.machines[name],
            enter=self.network.enter(name, self._resolv),
            options=["--nnodes", NODES, "--rdzv-endpoint", f"etcd.chaos:{ETCD_PORT}", "--rdzv-id", job],
            arguments=[f"{key}={value}" for key, value in values.items()],
            folder=self.folder,
        )
        self.pods.append(pod)
        self.journal(job)
        pod.start()
        return pod

    def start(self, count: int = 3, **settings: Any) -> list[Pod]:
        return [self.pod(machine, **settings) for machine in range(count)]

    def train(self, count: int | None = None, step: int = 60, **settings: Any) -> list[Pod]:
        """Start pods, wait until they have made this step, and mark the fault."""
        pods = self.start(count or self.count, **settings)
        self.step(step)
        self.fault()
        return pods

    def replace(self, pod: Pod) -> Pod:
        """Wait for a pod's end and start the Job's next pod for the same index, on another machine."""
        self.ended([pod], 30)
        self._gone.append(pod)
        time.sleep(REPLACE_SECONDS)
        return self.pod(self.count)

    def delete(self, pod: Pod, grace: int | None = None) -> int | None:
        pod.terminate() if grace is None else pod.kill()
        self.replace(pod)
        return pod.code

    def lose_node(self, pod: Pod) -> None:
        """Cut a machine off. Its processes continue, as if only its network were lost, until the cloud removes it."""
        self.network.cut(pod.name.split("-")[1])
        self.more_steps()
        others = "".join(other.log for other in self.pods if other is not pod)
        expect(f"world_size={self.count - 1}" in others, "the others never trained without it")
        self.pod(self.count)
        self._gone.append(pod)
        pod.kill()

    def scale(self, count: int) -> list[int | None]:
        there = list(self.pods)
        for machine in range(len(there), count):
            self.pod(machine)
        for pod in there[count:]:
            pod.terminate()
        self._gone += there[count:]
        self.until(lambda: f"world_size={count}" in there[0].log, 60, f"a round of {count}")
        return [*self.ended(there[count:], 30)]

    def stayed(self, pods: list[Pod]) -> bool:
        """Whether these pods made one new round."""
        return all(len(pod.rounds) == 2 for pod in pods)

    def recovered(self) -> list[int]:
        """Wait for the end of the pods that are left; return their exit codes."""
        return self.ended([pod for pod in self.pods if pod not in self._gone])

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

    def step(self, step: int, seconds: float = 180, job: str = "job") -> None:
        self.until(lambda: self.journal(job).step >= step, seconds, f"step {step}")

    def more_steps(self, count: int = 5, seconds: float = 120, job: str = "job") -> None:
        """Wait until a live round has made this many steps from now."""
        journal, begin = self.journal(job), time.time()
        self.until(lambda: journal.made_since(begin) >= count, seconds, f"{count} more steps")

    def ended(self, pods: list[Pod], seconds: float = 240) -> list[int]:
        """Wait for the pods' end; return their exit codes."""
        self.until(lambda: all(pod.code is not None for pod in pods), seconds, "the end of the pods", fatal=False)
        return [pod.code for pod in pods if pod.code is not None]

    def done(self, job: str = "job") -> dict[str, Any]:
        path = self.run_folder(job) / DONE
        if not path.exists():
            raise Expected(f"{path.name} is missing: the training did not end")
        return json.loads(path.read_text("utf-8"))


def make_dataset(folder: Path) -> Path:
    """Prepare the beginning of the sample text, with a tokenizer of 500 tokens, so that a step takes milliseconds."""
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

    from trainer import prepare

    if (folder / "data" / "index.json").exists():
        return folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    text = prepare.SAMPLE.read_text("utf-8")
    built = ByteLevelBPETokenizer()
    built.train_from_iterator(iter([text[:50_000]]), 500, special_tokens=["<|endoftext|>"], show_progress=False)
    built.save(str(folder / "tokenizer.json"))
    (folder / "text.txt").write_text(text[:60_000], encoding="utf-8")
    prepare.prepare([str(folder / "text.txt")], folder / "data", str(folder), fraction=0.2, shard_tokens=7_000)
    return folder / "data"


def etcd_command(folder: Path, url: str, peer: str = "http://127.0.0.1:2380") -> list[str]:
    """Return the command of a single-member etcd with its data in a folder. `trainyard local toolchain etcd` builds it.

    It is the version that this checkout pins, and that a stack runs: not one on PATH, nor another one in the cache."""
    options = {"data-dir": folder, "log-level": "error", "listen-client-urls": url, "advertise-client-urls": url}
    options |= {"listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
    return [toolchain.program("etcd"), *(f"--{name}={value}" for name, value in options.items())]
