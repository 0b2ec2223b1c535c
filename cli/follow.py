"""Follow a training to its end.

One progress line shows step, loss, tokens/s and time to go, by the run's record. At the end it shows the validation
loss, a sample of the model's text, where the model is and what to try next.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cli.cluster import GoneError, SilentError, TrainingJob, silence
from cli.progress import PLAIN_SECONDS, Flow, described, time_to_go
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, chosen, is_local, node_price
from cli.training_status import TrainingStatus, look
from trainer.plain import counted, plain
from trainer.record import Record, figures
from workloads.layout import DATA

#: A shell runs this once before the advised commands, where the stack's state is in .local/.
ENTER = 'eval "$(.venv/bin/trainyard local env)"'
#: Seconds between two looks.
POLL_SECONDS = 2.0
#: Seconds that two looks at a log have in common: no line falls between them.
OVERLAP = 10
#: Seconds that a replaced Job's successor gets to come: `pulumi up` deletes the old one first.
SUCCESSOR_SECONDS = 300.0
#: Seconds of silence after which the cluster is reported as unreachable; shorter outages are ignored.
OUTAGE_SECONDS = 60.0
#: What a training does between its pods' start and its first step, by the state in its record.
STARTING = "the pods start Python and load the model"
PHASES = {
    **dict.fromkeys(("", "starting", "restarting", "terminated"), STARTING),
    "compiling": "compiling the model; the first time takes a minute or more",
}
FIRST_STEPS = "the first evaluation and the first steps"


def follow(stack: RunningStack = "", training: TrainingName = "", kubeconfig: Kubeconfig = None) -> int:
    """Of several trainings it follows each in turn, the most urgent first."""
    failed, targets, price = False, chosen(stack, training, kubeconfig), node_price(stack)
    for target in targets:
        if several := len(targets) > 1:
            print(f"{target.training}:")
        try:
            with Board() as board:
                ended = watch(TrainingJob.of(target), board, price)
        except KeyboardInterrupt:
            print(f"\nThe training continues; `trainyard follow --stack {stack}{target.option}` returns to it.")
            return 130
        report(Console(), target, ended, stack, local=is_local(stack), several=several)
        failed |= ended.condition != "Complete"
    if len(targets) > 1:
        print(f"To rank them: trainyard compare --stack {stack}")
    return int(failed)


class Board:
    """Shows the progress of a training, look by look."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self._seen = TrainingStatus("", "")
        """At the look before."""
        self._shown = ""
        self._since = time.monotonic()
        """When what is shown began."""
        self._printed = self._due = time.monotonic()
        self._parts: tuple[str, ...] = ()
        """Figures of the newest step."""
        self._progress: Progress | None = None
        if self.console.is_terminal:
            self._progress = Flow(
                TextColumn("[bold]{task.description}"), BarColumn(24), TimeElapsedColumn(), console=self.console
            )
            self._task = self._progress.add_task("waiting", total=None, parts=())

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def show(self, found: TrainingStatus) -> None:
        """Show what is new."""
        before, self._seen = self._seen, found
        for each in found.incidents:
            if each not in before.incidents:
                self.print(": ".join(filter(None, (each.who, each.cause))), "yellow")
        for node in found.silent_nodes.keys() - before.silent_nodes.keys():
            lasted = (datetime.now(UTC) - found.silent_nodes[node]).total_seconds()
            self.print(silence(node, time_to_go(lasted)), "yellow")
        for node in before.silent_nodes.keys() - found.silent_nodes.keys():
            self.print(f"node {node} answers again, or its pods are replaced")
        if found.waiting and found.waiting != before.waiting:
            self.print(found.waiting, "yellow")
        record, former = found.record, before.record
        if record.round != former.round:
            begins = counted(record.figures.get("world_size", 0), "process", "processes")
            resumes = "" if record.resumed is None else f", resuming from step {record.resumed}"
            self.print(f"round {record.round} begins with {begins}{resumes}", "dim")
        if record.checkpoint not in (None, former.checkpoint, record.resumed):
            self.print(f"checkpoint of step {record.checkpoint} saved", "dim")
        stepped = (record.round, record.times.get("loss")) != (former.round, former.times.get("loss"))
        if stepped and record.figures.keys() >= {"loss", "step", "steps", "tokens_per_second", "eta_seconds"}:
            self._step(record.figures)
        if found.condition == "Running":
            began = "loss" in record.figures and record.state not in PHASES
            self.wait(self._shown if began else PHASES.get(record.state, FIRST_STEPS))
        elif not found.has_ended:
            self._parts = ()
            self.wait(found.why if found.condition == "Waiting" else found.headline)

    def wait(self, doing: str) -> None:
        """Show for how long it has been doing this."""
        now = time.monotonic()
        if (doing := plain(doing)) != self._shown:
            self._shown, self._since = doing, now
            if self._progress:
                self._progress.update(self._task, parts=(doing,))
            else:
                self.print(doing)
        elif self._progress and self._parts and now - self._since >= PLAIN_SECONDS:
            self._progress.update(self._task, parts=(*self._parts, f"({time_to_go(now - self._since)} ago)"))
        elif not self._progress and now - max(self._printed, self._since) >= PLAIN_SECONDS:
            self.print(f"… {doing} ({now - self._since:.0f} s)")

    def print(self, text: str, style: str | None = None) -> None:
        """Print one line, however long: a log is not wrapped."""
        self._printed = time.monotonic()
        self.console.print(plain(text), style=style, markup=False, highlight=False, soft_wrap=not self._progress)

    def _step(self, known: dict[str, Any]) -> None:
        step, steps = known["step"], known["steps"]
        *parts, to_go = described(known)
        self._shown, self._since = f"step {step}/{steps} is the newest", time.monotonic()
        if self._progress:
            self._parts = (to_go, *parts)
            self._progress.update(
                self._task, description=f"step {step}/{steps}", completed=step, total=steps, parts=self._parts
            )
        elif step == steps or self._since >= self._due:
            self.print(f"step {step}/{steps}  {'  '.join((*parts, to_go))}")
            self._due = self._since + PLAIN_SECONDS


def watch(job: TrainingJob, board: Board, price: float | None = None) -> TrainingStatus:
    """Show a training until it has ended, and go on with the Job that another `pulumi up` makes in place of this one.

    price: USD per hour of a node. Raises CommandError when the Job is gone and none takes its place, and when the
    cluster is silent.
    """
    record, heard, seen = Record(), time.monotonic(), None
    while True:
        now = time.monotonic()
        try:
            try:
                since = None if seen is None else math.ceil(now - seen) + OVERLAP
                found = look(job, price, record, since)
                record, seen = found.record, now
                board.show(found)
                if found.has_ended:
                    return found
            except GoneError:
                if seen is None or now - seen > SUCCESSOR_SECONDS:
                    raise
                successor = job.successor()
                if successor is not None and successor.name != job.name:
                    board.print(f"Job {job.name} was replaced; following {successor.name}")
                    job, record = successor, Record()
                else:
                    board.wait(f"Job {job.name} is gone; waiting for the one that `pulumi up` makes in its place")
            heard = now
        except SilentError:
            if now - heard > OUTAGE_SECONDS:
                raise
        time.sleep(POLL_SECONDS)


def report(
    console: Console, target: Target, ended: TrainingStatus, stack: str, local: bool, several: bool = False
) -> None:
    """Print how the training ended. `local`: the state is in .local/, and commands need its environment; `several`: it
    is one of several, and `trainyard compare` tells the rest."""

    def write(text: str, style: str | None = None) -> None:
        console.print(plain(text), style=style, markup=False, highlight=False, soft_wrap=True)

    write("")
    if ended.condition != "Complete":
        stopped = ended.condition == "Stopped"
        write(f"The training {'is stopped ' if stopped else 'failed: '}{ended.why}", "bold red")
        if local:
            write(f"  once in a shell, for the commands below: {ENTER}")
        if not stopped:
            write(f"  logs: {target.commands.get('logsCommand', '')}")
        write(f"  to go on from its newest checkpoint: {target.resume}")
        return
    done, known = ended.result, figures(ended.result)
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
    base, path = done.get("adapter_of"), str(done.get("checkpoint"))
    write(f"\nThe adapter of {base}, for peft{where}:" if base else f"\nThe model, for transformers{where}:", "bold")
    inside = target.data_folder and path.startswith(f"{DATA}/")
    write(f"  {f'{target.data_folder}{path.removeprefix(DATA)}' if inside else path}/model")
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
