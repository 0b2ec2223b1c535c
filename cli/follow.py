"""Follow a training to its end.

A terminal shows what `trainyard status` does; a log gets a line for each thing that happens, and for steps. At the end
come the validation loss, a sample of the model's text, where the model is and what to try next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from cli.cluster import GoneError, SilentError, TrainingJob, silence
from cli.progress import PLAIN_SECONDS
from cli.status import screen
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, chosen, is_local, node_price
from cli.training_status import TrainingStatus, further, look
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
Show = Callable[[TrainingStatus, Target], None]


def follow(stack: RunningStack = "", training: TrainingName = "", kubeconfig: Kubeconfig = None) -> int:
    """Of several trainings it follows each in turn, the most urgent first."""
    console, failed, targets = Console(), False, chosen(stack, training, kubeconfig)
    for target in targets:
        if several := len(targets) > 1:
            print(f"{target.training}:")
        try:
            with display(console) as show:
                ended = watch(stack, target, show)
        except KeyboardInterrupt:
            print(f"\nThe training continues; `trainyard follow --stack {stack}{target.option}` returns to it.")
            return 130
        report(console, target, ended, stack, local=is_local(stack), several=several)
        failed |= ended.condition != "Complete"
    if len(targets) > 1:
        print(f"To rank them: trainyard compare --stack {stack}")
    return int(failed)


def watch(stack: str, target: Target, show: Show) -> TrainingStatus:
    """Show a training until it has ended, and go on with the Job that another `pulumi up` makes in place of this one.

    Raises CommandError when the Job is gone and none takes its place, and when the cluster is silent.
    """
    job, price, record, heard, seen = TrainingJob.of(target), node_price(stack), Record(), time.monotonic(), None
    while True:
        now = time.monotonic()
        try:
            try:
                since = None if seen is None else math.ceil(now - seen) + OVERLAP
                found = look(job, price, record, since)
                record, seen = found.record, now
                show(found, job.target)
                if found.has_ended:
                    return found
            except GoneError:
                if seen is None or now - seen > SUCCESSOR_SECONDS:
                    raise
                why = f"Job {job.name}: waiting for the one that `pulumi up` makes in its place"
                show(TrainingStatus(job.name, "Gone", why, record=record), job.target)
                successor = chosen(stack, target.training, target.kubeconfig)[0]
                if successor.job != job.name:
                    job, record = TrainingJob.of(successor), Record()
            heard = now
        except SilentError:
            if now - heard > OUTAGE_SECONDS:
                raise
        time.sleep(POLL_SECONDS)


@contextmanager
def display(console: Console) -> Iterator[Show]:
    """What shows a training: on a terminal all of it, in place of what was there before; else line by line."""
    if not console.is_terminal:
        yield Log(console).show
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda found, target: live.update(screen(found, target), refresh=True)


class Log:
    """Tells each thing that happens once, and every PLAIN_SECONDS the newest step, or what is waited for."""

    def __init__(self, console: Console):
        self.console = console
        self._seen = TrainingStatus("", "")
        """At the look before."""
        self._doing = ""
        self._since = self._printed = self._due = time.monotonic()

    def show(self, found: TrainingStatus, _: Target) -> None:
        before, self._seen, now = self._seen, found, time.monotonic()
        if before.job not in ("", found.job):
            self.print(f"Job {before.job} was replaced; following {found.job}")
        told = news(before)
        for text in (text for key, text in news(found).items() if key not in told):
            self.print(text)
        for node in before.silent_nodes.keys() - found.silent_nodes.keys():
            self.print(f"node {node} answers again, or its pods are replaced")
        if found.record.times.get("loss") not in (None, before.record.times.get("loss")) and not found.starting:
            self._doing, self._since = f"{found.step} is the newest", now
            if now >= self._due or found.figures["step"] == found.figures.get("steps"):
                self.print("  ".join(found.described))
                self._due = now + PLAIN_SECONDS
        elif not found.has_ended:
            doing = found.starting or (found.condition == "Running" and self._doing) or found.headline
            if doing != self._doing:
                self._doing, self._since = doing, now
                self.print(doing)
            elif now - max(self._printed, self._since) >= PLAIN_SECONDS:
                self.print(f"… {doing} ({now - self._since:.0f} s)")

    def print(self, text: str) -> None:
        """Print one line, however long: a log is not wrapped."""
        self._printed = time.monotonic()
        self.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)


def news(found: TrainingStatus) -> dict[Hashable, str]:
    """What has happened, in words, by what makes it another thing."""
    record = found.record
    happened: dict[Hashable, str] = {each: f"{each.who}: {each.cause}".removeprefix(": ") for each in found.incidents}
    for node, since in found.silent_nodes.items():
        happened[node] = silence(node, found.ago(since))
    if found.condition == "Running" and found.why:
        happened[found.why] = found.why
    if record.round:
        resumes = "" if record.resumed is None else f", resuming from step {record.resumed}"
        processes = counted(record.figures.get("world_size", 0), "process", "processes")
        happened["round", record.round] = f"round {record.round} begins with {processes}{resumes}"
    if record.checkpoint not in (None, record.resumed):
        happened["checkpoint", record.checkpoint] = f"checkpoint of step {record.checkpoint} saved"
    return happened


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
    known = figures(ended.result)
    if {"validation_loss", "initial_validation_loss"} <= known.keys():
        losses = f"{known['initial_validation_loss']:.2f} -> {known['validation_loss']:.2f}"
        steps = f" in {counted(known['step'], 'step')}" if "step" in known else ""
        write(f"Trained. Validation loss {losses}{further(known)}{steps}", "bold green")
    if several:
        return
    if sample := str(ended.result.get("sample", "")).strip():
        write("\nIt writes:", "bold")
        write("\n".join(f"  {line}" for line in sample.splitlines() if line.strip()), "italic")
    base, path = ended.result.get("adapter_of"), str(ended.result.get("checkpoint"))
    if target.data_folder and path.startswith(f"{DATA}/"):
        path = f"{target.data_folder}{path.removeprefix(DATA)}"
    what = f"The adapter of {base}, for peft" if base else "The model, for transformers"
    write(f"\n{what}{'' if target.data_folder else ', on the shared volume'}:", "bold")
    write(f"  {path}/model")
    write("\nNext:", "bold")
    for title, command in next_steps(target, stack, local).items():
        if command:
            write(f"  {title}\n    {command}")


def next_steps(target: Target, stack: str, local: bool) -> dict[str, str]:
    """Title -> the command, or nothing where there is none."""

    def of(name: str) -> str:
        """The stack's command, about this training."""
        return f"{target.commands[name]}{target.option}" if name in target.commands else ""

    uploaded = f"--stack {stack} && pulumi config set --stack {stack} --path 'dataset.input[0]' my-text"
    again = "make up" if stack == "local" else f"pulumi up --stack {stack}"
    doctor = ".venv/bin/trainyard doctor --stack gcp-c3"
    return {
        "Once in a shell, for the commands below": ENTER if local else "",
        "More text from it": of("sampleCommand"),
        "The model, its metrics and a report on this machine": "" if target.data_folder else of("fetchCommand"),
        "Your own text": f".venv/bin/trainyard upload my-text/ {uploaded} && {again}",
        "A cloud stack: check what it needs before paying": doctor if stack == "local" else "",
    }
