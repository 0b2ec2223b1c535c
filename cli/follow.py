"""Follow a training to its end.

One progress line shows step, loss, tokens/s and time to go, from the logs of all pods. At the end it shows the
validation loss, a sample of the model's text, where the model is and what to try next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Annotated, Any

import typer
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException
from rich.console import Console

from cli.cluster import (
    GoneError,
    SilentError,
    TrainingJob,
    end_of,
    ends,
    holding,
    index,
    record_of,
    silence,
    started,
    why_waiting,
)
from cli.logs import lines
from cli.progress import LONGEST, Board, time_to_go
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, chosen, is_local, node_price
from cli.training_status import ends_of_pods
from trainer.contract import EXIT_DONE, EXIT_FATAL
from trainer.plain import counted, plain
from trainer.record import figures
from workloads.layout import DATA
from workloads.scheduling import waiting

#: A shell runs this once before the advised commands, where the stack's state is in .local/.
ENTER = 'eval "$(.venv/bin/trainyard local env)"'
#: Seconds between two polls of the Job and its pods; log lines arrive as they are written.
POLL_SECONDS = 1.0
#: Seconds between two looks at the nodes of pods that may be lost.
NODES_SECONDS = 15.0
#: Seconds that a replaced Job's successor gets to come: `pulumi up` deletes the old one first.
SUCCESSOR_SECONDS = 300.0
#: Seconds of silence after which the cluster is reported as unreachable; shorter outages are ignored.
OUTAGE_SECONDS = 60.0


def follow(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    raw: Annotated[bool, typer.Option("--raw", help="The trainer's own lines.")] = False,
) -> int:
    """Of several trainings it follows each in turn, the most urgent first."""
    failed, targets, price = False, chosen(stack, training), node_price(stack)
    for target in targets:
        watch = JobWatch(TrainingJob.of(target, kubeconfig), replaced=TrainingJob.successor, price=price)
        if several := len(targets) > 1:
            print(f"{target.training}:")
        try:
            with Board(raw=raw) as board:
                ended = watch.follow(board)
        except KeyboardInterrupt:
            print(f"\nThe training continues; `trainyard follow --stack {stack}{target.option}` returns to it.")
            return 130
        report(Console(), target, ended, stack, local=is_local(stack), several=several)
        failed |= not ended.succeeded
    if len(targets) > 1:
        print(f"To rank them: trainyard compare --stack {stack}")
    return int(failed)


@dataclass(frozen=True)
class Outcome:
    """How the Job ended."""

    succeeded: bool
    message: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    """The trainer's DONE record."""
    stopped: bool = False
    """By `trainyard stop`."""


class JobWatch:
    """Follows one Job: its conditions, its pods, and their logs as they are written."""

    def __init__(
        self,
        job: TrainingJob,
        replaced: Callable[[TrainingJob], TrainingJob | None] | None = None,
        price: float | None = None,
    ):
        """`replaced` finds the Job that takes the place of one that is gone; `price` is USD per hour of a node."""
        self.job, self._replaced, self._price = job, replaced, price
        self._seen: float | None = None
        """When the Job was there."""
        self._silent: dict[str, datetime] = {}
        self._looked = -NODES_SECONDS
        self._lines: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._followed: set[str] = set()
        self._finished: set[str] = set()
        self._told: set[str] = set()
        """What was so at the look before."""
        self._newest: dict[str, str] = {}
        """Pod -> time stamp of its newest line."""

    def follow(self, board: Board) -> Outcome:
        """Report to `board` until the Job has ended. Raises CommandError when it is gone and none takes its place."""
        heard = time.monotonic()
        while True:
            job, pods = None, []
            try:
                try:
                    job, pods = self.job.read()
                    self._seen = time.monotonic()
                except GoneError:
                    if not self._succeed(board):
                        raise
                heard = time.monotonic()
            except SilentError:
                if time.monotonic() - heard > OUTAGE_SECONDS:
                    raise
            if job is None:
                time.sleep(POLL_SECONDS)
                continue
            self._follow_logs(pods)
            run = any(pod["status"].get("phase") in ("Running", "Succeeded") for pod in pods)
            end = end_of(job)
            queued = f"queued {end['message']}" if end.get("type") == "Queued" else ""
            board.look(queued or ("" if run else why_waiting(pods, "" if pods else self.job.refusal())))
            self._look_at_nodes(board, pods)
            # How pods ended, which their own logs do not say, and which workers wait while others train, or wait too.
            ends = [f"{each.who}: {each.cause}" for each in ends_of_pods(pods)]
            waits = [waiting(pods), holding(job, pods, self._price)] if run else []
            self._tell(board, [*ends, *filter(None, [*waits, queued])])
            ended = outcome(job, pods)
            # The last lines arrive a moment after the Job's end is seen.
            self._drain(board, POLL_SECONDS)
            if ended:
                # A log that could not be read gets another try.
                if self._follow_logs(pods):
                    self._drain(board, POLL_SECONDS)
                return ended

    def _succeed(self, board: Board) -> bool:
        """Go on with the Job that another `pulumi up` makes; whether it may still come."""
        if self._replaced is None or self._seen is None or time.monotonic() - self._seen > SUCCESSOR_SECONDS:
            return False
        found = self._replaced(self.job)
        if found is not None and found.name != self.job.name:
            board.print(f"Job {self.job.name} was replaced; following {found.name}")
            self.job = found
        else:
            board.look(f"Job {self.job.name} is gone; waiting for the one that `pulumi up` makes in its place")
        return True

    def _look_at_nodes(self, board: Board, pods: list[dict[str, Any]]) -> None:
        """Say which nodes do not answer, and which answer again."""
        if time.monotonic() - self._looked < NODES_SECONDS:
            return
        self._looked = time.monotonic()
        silent = self.job.silent_nodes(pods)
        for node in silent.keys() - self._silent.keys():
            lasted = time_to_go((datetime.now(UTC) - silent[node]).total_seconds())
            board.print(silence(node, lasted), "yellow")
        for node in self._silent.keys() - silent.keys():
            board.print(f"node {node} answers again, or its pods are replaced")
        self._silent = silent

    def _tell(self, board: Board, told: list[str]) -> None:
        """Say what was not so at the look before."""
        for text in told:
            if text not in self._told:
                board.print(text, "yellow")
        self._told = set(told)

    def _follow_logs(self, pods: list[dict[str, Any]]) -> bool:
        """Read the logs that are not read already or to their end; return whether there were any."""
        opened = False
        for pod in started(pods):
            name, phase = pod["metadata"]["name"], pod["status"]["phase"]
            # Read the log of an ended pod once, and that of a running pod until it ends.
            if name in self._followed or name in self._finished:
                continue
            opened = True
            self._followed.add(name)
            shown = name if index(pod) < 0 else f"pod {index(pod)}"
            threading.Thread(target=self._read_log, args=(name, shown, phase != "Running"), daemon=True).start()
        return opened

    def _read_log(self, pod: str, shown: str, has_ended: bool) -> None:
        """Queue the lines of a pod's log that are newer than those queued before."""
        try:
            log: Any = self.job.core.read_namespaced_pod_log(
                pod, self.job.namespace, follow=True, timestamps=True, _preload_content=False
            )
            begins = True
            for piece in lines(log.stream(decode_content=True)):
                stamp, _, line = piece[:LONGEST].rstrip("\n").partition(" ")
                begins, rest = piece.endswith("\n"), not begins
                if rest:  # of a line that was too long
                    continue
                # Nanoseconds of one clock: text order is time order.
                if stamp > self._newest.get(pod, ""):
                    self._newest[pod] = stamp
                    self._lines.put((shown, line))
            if has_ended:
                self._finished.add(pod)
        except (ApiException, urllib3.exceptions.HTTPError):
            pass
        finally:
            # The stream ends with the container, but also when a kubelet or an API server restarts: the next poll opens
            # it again and skips the lines that were queued already.
            self._followed.discard(pod)

    def _drain(self, board: Board, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                board.line(*self._lines.get(timeout=left))
            except Empty:
                return


def outcome(job: dict[str, Any], pods: list[dict[str, Any]]) -> Outcome | None:
    """How the Job ended; None while it runs."""
    condition = end_of(job)
    if condition.get("type") == "Complete":
        return Outcome(succeeded=True, result=_result(pods))
    if condition.get("type") == "Failed":
        reason = _result(pods).get("message") or condition.get("message") or "no reason given"
        if condition.get("reason") == "DeadlineExceeded":  # the pods were merely asked to end
            reason = "the time of job.maxHours is up"
        return Outcome(succeeded=False, message=str(reason))
    if condition.get("type") == "Stopped":
        return Outcome(succeeded=False, message=condition["message"], stopped=True)
    return None


def _result(pods: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod's termination record: of one that is done, else of one that failed for good, else of the latest."""
    ended = [end for pod in pods for end in ends(pod)]
    ended.sort(key=lambda end: end.get("finishedAt") or "", reverse=True)
    ended.sort(key=lambda end: {EXIT_DONE: 0, EXIT_FATAL: 1}.get(end["exitCode"], 2))
    return next(filter(None, map(record_of, ended)), {})


def report(console: Console, target: Target, outcome: Outcome, stack: str, local: bool, several: bool = False) -> None:
    """Print how the training ended. `local`: the state is in .local/, and commands need its environment; `several`: it
    is one of several, and `trainyard compare` tells the rest."""

    def write(text: str, style: str | None = None) -> None:
        console.print(plain(text), style=style, markup=False, highlight=False, soft_wrap=True)

    write("")
    if not outcome.succeeded:
        how = f"is stopped {outcome.message}" if outcome.stopped else f"failed: {outcome.message}"
        write(f"The training {how}", "bold red")
        if local:
            write(f"  once in a shell, for the commands below: {ENTER}")
        if not outcome.stopped:
            write(f"  logs: {target.commands.get('logsCommand', '')}")
        write(f"  to go on from its newest checkpoint: {target.resume}")
        return
    done, known = outcome.result, figures(outcome.result)
    loss, start = known.get("validation_loss"), known.get("initial_validation_loss")
    if loss is not None and start is not None:
        further = f" ({known['bits_per_byte']:.3f} bits per byte)" if "bits_per_byte" in known else ""
        further += f", F1 {known['f1']:.1f}" if "f1" in known else ""
        further += f", exact match {known['exact_match']:.1f}" if "exact_match" in known else ""
        steps = f" in {counted(known['step'], 'step')}" if "step" in known else ""
        write(f"Trained. Validation loss {start:.2f} -> {loss:.2f}{further}{steps}", "bold green")
    if several:
        return
    if sample := str(done.get("sample", "")).strip():
        write("\nIt writes:", "bold")
        write("\n".join(f"  {line}" for line in sample.splitlines() if line.strip()), "italic")
    where = "" if target.data_folder else ", on the shared volume"
    base = done.get("adapter_of")
    write(f"\nThe adapter of {base}, for peft{where}:" if base else f"\nThe model, for transformers{where}:", "bold")
    write(f"  {checkpoint_path(done, target)}/model")
    write("\nNext:", "bold")
    if local:
        write(f"  Once in a shell, for the commands below\n    {ENTER}")
    for title, command in next_steps(target, stack):
        write(f"  {title}\n    {command}")


def next_steps(target: Target, stack: str) -> list[tuple[str, str]]:
    """Pairs of (title, command)."""

    def of(name: str) -> str:
        """The stack's command, about this training."""
        return f"{target.commands[name]}{target.option}" if name in target.commands else ""

    uploaded = f"--stack {stack} && pulumi config set --stack {stack} --path 'dataset.input[0]' my-text"
    again = "make up" if stack == "local" else f"pulumi up --stack {stack}"
    fetch = "" if target.data_folder else of("fetchCommand")
    steps = [
        ("More text from it", of("sampleCommand")),
        ("The model, its metrics and a report on this machine", fetch),
        ("Your own text", f".venv/bin/trainyard upload my-text/ {uploaded} && {again}"),
    ]
    if stack == "local":
        steps.append(("A cloud stack: check what it needs before paying", ".venv/bin/trainyard doctor --stack gcp-c3"))
    return [(title, command) for title, command in steps if command]


def checkpoint_path(done: dict[str, Any], target: Target) -> str:
    """The checkpoint's path, on this machine if it sees the volume."""
    inside = str(done.get("checkpoint"))
    if target.data_folder and inside.startswith(f"{DATA}/"):
        return f"{target.data_folder}{inside.removeprefix(DATA)}"
    return inside
