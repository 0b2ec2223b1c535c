"""What is proved: a stack of its own, made of the numbers of a stack file, and the cluster and training in it.

It has a name, a state and (on a cluster that is there already) a namespace of its own, prove-NAME: a stack NAME that
somebody brought up is not touched. Every wait here ends when the run has cost as much as it may.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubernetes import client

from chaos.lab import Expected
from chaos.row import expect, until
from chaos.stack import Stack
from cli.cluster import as_json, connect
from cli.state import State as Training
from cli.status import read
from cli.target import Target, target_of
from infra.config import StackConfig
from infra.parse import parse
from infra.stackfiles import ROOT, stack_file_values
from prove.engine import State, check_limit

PYTHON = sys.executable
LEAVE_SECONDS = 300
"""What a command that is asked to stop gets: Pulumi waits for the resource that it is making."""
LONG = 1_000_000
"""Steps of a training that is there until the proof replaces it."""


class Command(Exception):
    """A command that failed, with the last lines of what it said."""


@dataclass
class Proved(Stack):
    """The temporary stack; commands go to the log of the run, and end at the cost limit."""

    tick: Callable[[], None] = lambda: None
    """Called twice a second while a command runs; may raise OverLimit."""

    def run(self, command: list[str], timeout: float = 7200) -> subprocess.CompletedProcess[str]:
        with open(self.folder / "log.txt", "a+", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            begin = log.tell()
            # A session of its own: Ctrl-C at a terminal must reach Pulumi once, and a second one kills it.
            process = subprocess.Popen(
                command, env=self.environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
            deadline = time.monotonic() + timeout
            try:
                while process.poll() is None:
                    expect(time.monotonic() < deadline, f"{' '.join(command[:3])}: not done after {timeout:.0f} s")
                    self.tick()
                    time.sleep(0.5)
            finally:
                _end(process)
            log.seek(begin)
            said = log.read()
        return subprocess.CompletedProcess(command, process.returncode, said, said)

    def done(self, command: list[str], timeout: float = 7200) -> str:
        """What a command says that has to succeed."""
        ran = self.run(command, timeout)
        if ran.returncode:
            lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
            told = [line for line in lines if "error" in line.lower()] or lines
            raise Command(f"{' '.join(command[:4])} ended with {ran.returncode}: {' / '.join(told[-3:])}")
        return ran.stdout

    def pulumi_done(self, *arguments: str) -> str:
        command = ["pulumi", *arguments, "--stack", self.name, "--non-interactive", "--color", "never"]
        return self.done([*command, *([] if arguments[0] == "stack" else ["--config-file", str(self.config)])])

    def up(self, *options: str) -> str:
        return self.pulumi_done("up", "--yes", "--skip-preview", *options)

    def _ask(self, what: str) -> tuple[dict[str, Any] | None, str]:
        """What `pulumi stack WHAT` tells, or None and the last line of its error."""
        command = ["pulumi", "stack", *what.split(), "--stack", self.name, "--non-interactive"]
        told = subprocess.run(command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False)
        return (None, told.stderr.strip().splitlines()[-1]) if told.returncode else (json.loads(told.stdout), "")

    def outputs(self) -> dict[str, Any]:
        found, problem = self._ask("output --json")
        if found is None:
            raise Command(problem)
        return found

    def exists(self) -> bool:
        return self._export() is not None

    def resources(self) -> list[str]:
        """URNs of what the state knows, without providers."""
        found = (self._export() or {}).get("deployment", {}).get("resources") or []
        return [each["urn"] for each in found if not each["type"].startswith("pulumi:")]

    def _export(self) -> dict[str, Any] | None:
        found, problem = self._ask("export")
        if found is None and "no stack named" not in problem:
            raise Command(problem)
        return found

    def init(self) -> None:
        """Make the stack; the one that the user has selected stays selected."""
        if self.exists():
            self.unlock()
            return
        self.pulumi_done("stack", "init", "--no-select")
        # Pulumi leaves the salt of the passphrase in a file of the repository, and does without it.
        (ROOT / f"Pulumi.{self.name}.yaml").unlink(missing_ok=True)

    def unlock(self) -> None:
        """Take away the lock of a Pulumi that was killed. Without one some backends complain."""
        self.run(["pulumi", "cancel", "--yes", "--stack", self.name])

    def tool(self, command: str, *arguments: str) -> str:
        return self.done([PYTHON, "-m", "cli", command, "--stack", self.name, *arguments])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_SECONDS)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Subject:
    """The stack on its way through the steps."""

    def __init__(self, stack: str, state: State, folder: Path, limit_usd: float, say: Callable[[str], None]) -> None:
        self.name, self.state, self.folder, self.limit_usd, self.say = stack, state, folder, limit_usd, say
        self.folder.mkdir(parents=True, exist_ok=True)
        self.holding = True
        """Whether the limit is held: not while what costs is being taken away."""
        values = overridden(stack_file_values(stack), stack, state)
        if values.get("cluster", {}).get("kind", "existing") != "existing":
            # The cluster's credentials are of no use to the user, whose kubeconfig stays as it is.
            os.environ["KUBECONFIG"] = str(folder / "kubeconfig")
        self.stack = Proved(f"prove-{stack}", folder, dict(os.environ), values, tick=self.tick)
        self.config: StackConfig = parse(self.stack.values, self.stack.name)
        most = self.config.nodes.max if self.config.nodes else 3
        self.workers, self.most = self.config.workers.count, most
        state.usd_per_hour = state.usd_per_hour or hourly(self.config)

    def tick(self) -> None:
        if self.holding:
            check_limit(self.state, self.limit_usd)

    def save(self) -> None:
        self.state.save(self.folder / "state.json")

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait for a condition; its value when it is met."""
        return until(condition, seconds, what, self.tick, pause=1)

    # The cluster.

    def api(self, target: Target | None = None) -> client.ApiClient:
        context = (target or self.target()).context
        return connect(context, self.config.cluster.kubeconfig)

    @property
    def core(self) -> Any:
        return client.CoreV1Api(self.api())

    def target(self) -> Target:
        """What to look at; asked of the stack once an `up`."""
        if "target" not in self.state.notes:
            self.state.notes["target"] = asdict(target_of(self.stack.name))
        return Target(**self.state.notes["target"])

    def up(self, **sections: dict[str, Any]) -> None:
        """Change the stack, and bring it up."""
        self.stack.write(**sections)
        self.state.notes["values"] = self.stack.values
        self.save()
        self.stack.up()
        self.state.notes.pop("target", None)

    def pods(self, selector: str, namespace: str | None = None) -> list[dict[str, Any]]:
        namespace = namespace or self.target().namespace
        return as_json(self.core.list_namespaced_pod, namespace, label_selector=selector)["items"]

    def worker_pods(self) -> list[dict[str, Any]]:
        """Those that run, by index."""
        found = self.pods(f"batch.kubernetes.io/job-name={self.target().job}")
        alive = [pod for pod in found if pod["status"].get("phase") == "Running"]
        alive = [pod for pod in alive if not pod["metadata"].get("deletionTimestamp")]
        return sorted(alive, key=lambda pod: int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))

    def node(self, name: str) -> dict[str, Any]:
        return as_json(self.core.read_node, name)

    # The training.

    def training(self) -> Training:
        return read(self.target(), self.config.cluster.kubeconfig)

    def steps_on(self, workers: int, seconds: float, after: Training | None = None) -> Training:
        """Wait for two different steps of so many workers, in another round than `after`'s."""
        first: list[Training] = []

        def trains() -> Training | None:
            found = self.training()
            if found.condition.startswith("Failed"):
                raise Expected(f"the training ended: {found.condition}")
            pods = sum(pod.state == "Running" for pod in found.pods)
            self.say(f"step {found.figures.get('step', '-')}, round {found.round}, {pods} pods")
            if found.figures.get("world_size") != workers * self.config.workers.processes:
                return None
            if after and found.round == after.round:
                return None
            if not first or found.figures["step"] < first[0].figures["step"]:
                first[:] = [found]
            return found if found.figures["step"] > first[0].figures["step"] else None

        return self.until(trains, seconds, f"steps of {workers} workers in a new round")


def hourly(config: StackConfig) -> float:
    """USD an hour at full size; infinite where the list of prices has a gap."""
    from infra.cost import estimate

    bill = estimate(config)
    if bill is None:
        return 0.0
    return float("inf") if bill.at_full is None else bill.at_full


def overridden(values: dict[str, Any], stack: str, state: State) -> dict[str, Any]:
    """The stack file's numbers, with a name, a sample text and a training of the proof's own.

    The machines, the model, its engine, precision and batches stay: they are what is proved. What a proof of days
    needs is cut: text and weights from the web, a schedule with an end, secrets that only the stack's own key opens.
    """
    if kept := state.notes.get("values"):
        return kept
    changed: dict[str, Any] = {key: dict(value) for key, value in values.items() if key != "secrets"}
    run = f"prove-{int(time.time()):x}"
    state.notes["run"] = run
    cluster, workers = changed.setdefault("cluster", {}), changed.setdefault("workers", {})
    nodes, training = changed.get("nodes"), dict(changed.get("training") or {})
    cluster.update(deletionProtection=False)
    if nodes:
        # Short: Google allows a service account 30 characters.
        cluster.update(name=f"prove-{stack}")
        workers.update(count=min(2, nodes.get("max", 2)), min=1)
    elif not workers.get("gpus"):
        # Three of them fit on a node with two processors.
        workers.update(count=2, min=1, cpu=min(0.3, workers.get("cpu", 1)), memoryGib=2)
    storage = changed.setdefault("storage", {})
    storage.update(retain=False)
    # Somebody's disk or file system with somebody's data.
    storage.pop("disk", None)
    changed["dataset"] = {"name": run, "input": ["sample"]}
    changed["job"] = {"name": run, "maxHours": 6}
    for key in ("task", "distillation", "adapter"):
        training.pop(key, None)
    model = training.get("model", {})
    if "name" in model or "config" in model:
        # A GPT-2 from scratch in its place: nothing is fetched, and it fits small pods.
        model = {"preset": "small"}
        if nodes is None:
            model = {"preset": "micro"}
            training.update(sequenceLength=128, tokensPerStep=2048, microBatch=4)
    metrics = {key: value for key, value in training.get("metrics", {}).items() if key != "wandbProject"}
    training.update(
        model=model,
        steps=LONG,
        metrics={**metrics, "every": 2 if nodes is None else 10},
        optimizer={**training.get("optimizer", {}), "warmupSteps": 10, "schedule": "constant"},
        evaluation={"every": LONG, "batches": 4},
        checkpoint={"everySteps": LONG, "everyMinutes": 0.5, "keep": 2},
    )
    if state.notes.get("web"):
        # An exporter with a key of nobody: its server refuses it, and has to be reached for that.
        training["metrics"]["wandbProject"] = "trainyard-prove"
        changed["secrets"] = {"wandbApiKey": "0" * 40}
    changed["training"] = training
    if not state.short:
        changed["check"] = {"megabytes": 256, "storageMegabytes": 256, **changed.get("check", {}), "enabled": True}
    return changed
