"""The output of a proof: a line for every step, and the report as a page and as JSON."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from bench import page
from infra.clouds import cloud_of
from infra.config import StackConfig
from infra.stackfiles import ROOT
from prove.engine import Result, State, Step, Verdict, now
from trainer.plain import plain

FOLDER = ROOT / "bench" / "results"
SHOWN: dict[Verdict, tuple[str, str, str]] = {
    "passed": ("passed", "✓", "green"),
    "failed": ("FAILED", "✗", "bold red"),
    "cannot": ("cannot be done here", "–", "yellow"),
    "not played": ("not played", " ", "dim"),
}
"""In words, as a mark, and its style."""


class Screen:
    """Shows the step that is played: on a terminal with its time, what it waits for and the cost so far."""

    def __init__(self, state: State, total: int, console: Console | None = None) -> None:
        self.state, self.total = state, total
        self.console = console or Console(highlight=False)
        self._progress: Progress | None = None

    def begin(self, step: Step) -> None:
        if self.console.is_terminal:
            waits = TextColumn("{task.fields[said]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
            columns = (SpinnerColumn(), TextColumn("[bold]{task.description}"), TimeElapsedColumn(), waits)
            self._progress = Progress(*columns, console=self.console, transient=True, expand=True)
            self._task = self._progress.add_task(step.title, total=None, said="")
            self._progress.start()
        else:
            number = list(self.state.results).index(step.name) + 1
            told = f"{datetime.now():%H:%M:%S}  {number}/{self.total}  {step.name}: {step.title} ..."
            self.console.print(told, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Show what the step waits for."""
        if self._progress is not None:
            spent = f"up to {self.state.spent():.2f} USD; " if self.state.spent() else ""
            self._progress.update(self._task, said=spent + " ".join(plain(text).split()))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def end(self, step: Step, result: Result) -> None:
        self.close()
        word, mark, style = SHOWN[result.verdict]
        self.console.print(
            Text.assemble((f"{mark} ", style), (f"{step.name:<13}", "bold"), (f"{word:<20}", style)),
            Text(f"{minutes(result.seconds):>7}  {plain(result.evidence)}"),
            soft_wrap=True,
        )


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def facts(config: StackConfig, state: State) -> dict[str, str]:
    """What was proved, on which machines, with which versions."""
    nodes, model, cloud = config.nodes, config.training.model, cloud_of(config)
    machine = page.describe("pulumi", "pulumi-kubernetes", "kubernetes")
    found = {
        "date": state.begun,
        "commit": state.notes.get("commit", ""),
        "cluster": f"{cloud.place(config)}, Kubernetes {state.notes.get('kubernetes', 'not asked')}",
        "workers": f"{config.workers.count} of {config.workers.cpu:g} CPU, accelerators in each: {config.workers.gpus}",
        "training": f"model {model.size or model.name}, engine {config.training.engine.name}",
        "run from": f"{machine}; Pulumi {state.notes.get('pulumi', '?')}",
        "machine's load": state.notes.get("load", ""),
    }
    if nodes:
        found["machines"] = f"up to {nodes.max} x {nodes.machine_type}, {nodes.consumption.replace('_', ' ')}"
    if cloud.sdk:
        found["provider"] = f"{cloud.sdk} {version(cloud.sdk)}"
    return found


def commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def write(stack: str, steps: tuple[Step, ...], state: State, told: dict[str, str], folder: Path = FOLDER) -> Path:
    """Write prove-STACK.md and .json, under another name for a short run; return the path of the page."""
    played = {step: state.results[step.name] for step in steps if step.name in state.results}
    known = {"stack": stack, "short": state.short, "verdict": verdict(state), "ended": now(), **told}
    results = {step.name: asdict(result) for step, result in played.items()}
    content = json.dumps(known | {"usd": round(state.spent(), 2), "steps": results}, indent=2)
    rows = [
        (step.name, step.title, SHOWN[each.verdict][0], minutes(each.seconds), each.evidence.replace("|", "\\|"))
        for step, each in played.items()
    ]
    command = f"trainyard prove --stack {stack}{' --short' if state.short else ''}"
    path = folder / f"prove-{stack}{'-short' if state.short else ''}.md"
    page.write(
        path,
        f"# Proof of stack {stack}",
        f"`{command}`: {verdict(state)}.",
        f"Not every step was played: {state.ended_by}." if state.ended_by else "",
        [f"- {key}: {value}" for key, value in told.items() if value],
        page.table(("step", "claim", "verdict", "time", "evidence"), rows),
        "What cannot be done here is not proved: that takes a stack on a cloud.",
    )
    path.with_suffix(".json").write_text(content + "\n", encoding="utf-8")
    return path


def verdict(state: State) -> str:
    found = [result.verdict for result in state.results.values()]
    return ", ".join(f"{found.count(each)} {word.lower()}" for each, (word, *_) in SHOWN.items() if each in found)
