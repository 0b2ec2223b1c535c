"""The output of a proof: a line for every step, and the report as a page and as JSON."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bench.page import busy, describe, table
from infra.clouds import cloud_of
from infra.config import StackConfig
from infra.stackfiles import ROOT
from prove.engine import Result, State, Step, Verdict
from trainer.plain import plain

FOLDER = ROOT / "bench" / "results"
MARKS: dict[Verdict, tuple[str, str]] = {
    "passed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "cannot": ("–", "yellow"),
    "not played": (" ", "dim"),
}
WORDS: dict[Verdict, str] = {
    "passed": "passed",
    "failed": "FAILED",
    "cannot": "cannot be done here",
    "not played": "not played",
}


class Screen:
    def __init__(self, state: State, total: int, console: Console | None = None) -> None:
        self.state, self.total = state, total
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._step: Step | None = None
        self._clock, self._said = 0.0, ""
        self._spinner = Spinner("dots")

    def __rich__(self) -> Spinner:
        """The live display redraws it four times a second."""
        assert self._step is not None
        spent = f", up to {self.state.spent():.2f} USD" if self.state.usd_per_hour and self.state.billed_from else ""
        parts = f"{self._step.title}  {minutes(time.monotonic() - self._clock)}{spent}  "
        text = Text.assemble((parts, "bold"), (" ".join(plain(self._said).split()), "dim"))
        text.truncate(self.console.width - 3, overflow="ellipsis")
        self._spinner.update(text=text)
        return self._spinner

    def begin(self, step: Step) -> None:
        self._step, self._clock, self._said = step, time.monotonic(), ""
        number = list(self.state.results).index(step.name) + 1
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, transient=True)
            self._live.start()
        else:
            told = f"{datetime.now():%H:%M:%S}  {number}/{self.total}  {step.name}: {step.title} ..."
            self.console.print(told, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Show what the step waits for."""
        self._said = text

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, step: Step, result: Result) -> None:
        self.close()
        mark, style = MARKS[result.verdict]
        self.console.print(
            Text.assemble((f"{mark} ", style), (f"{step.name:<13}", "bold"), (f"{WORDS[result.verdict]:<20}", style)),
            Text(f"{minutes(result.seconds):>7}  {plain(result.evidence)}"),
            soft_wrap=True,
        )


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def facts(config: StackConfig, state: State) -> dict[str, str]:
    """What was proved, on which machines, with which versions."""
    nodes, model, cloud = config.nodes, config.training.model, cloud_of(config)
    found = {
        "date": state.begun,
        "commit": state.notes.get("commit", ""),
        "cluster": f"{cloud.place(config)}, Kubernetes {state.notes.get('kubernetes', 'not asked')}",
        "workers": f"{config.workers.count} of {config.workers.cpu:g} CPU, accelerators in each: {config.workers.gpus}",
        "training": f"model {model.size or model.name}, engine {config.training.engine.name}",
        "run from": f"{describe('pulumi', 'pulumi-kubernetes', 'kubernetes')}; Pulumi {state.notes.get('pulumi', '?')}",
        "machine's load": state.notes.get("load", ""),
    }
    if nodes:
        found["machines"] = f"up to {nodes.max} x {nodes.machine_type}, {nodes.consumption.replace('_', ' ')}"
    if cloud.sdk:
        found["provider"] = f"{cloud.sdk} {version(cloud.sdk)}"
    return found


def load() -> str:
    """How busy other processes keep this machine, which affects the report's times."""
    return f"{busy():.0%} of its processors used by others when the run began"


def commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def write(stack: str, steps: tuple[Step, ...], state: State, told: dict[str, str], folder: Path = FOLDER) -> Path:
    """Write prove-STACK.md and .json, under another name for a short run; return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"prove-{stack}-short" if state.short else f"prove-{stack}"
    results = {step.name: asdict(state.results[step.name]) for step in steps if step.name in state.results}
    content: dict[str, Any] = {
        "stack": stack,
        "short": state.short,
        "verdict": verdict(state),
        "ended": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        **told,
        "usd": round(state.spent(), 2),
        "steps": results,
    }
    (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    path = folder / f"{name}.md"
    path.write_text(_page(stack, steps, state, told), encoding="utf-8")
    return path


def verdict(state: State) -> str:
    found = [result.verdict for result in state.results.values()]
    return ", ".join(f"{found.count(each)} {word.lower()}" for each, word in WORDS.items() if each in found)


def _page(stack: str, steps: tuple[Step, ...], state: State, told: dict[str, str]) -> str:
    options = " --short" if state.short else ""
    lines = [f"# Proof of stack {stack}", "", f"`trainyard prove --stack {stack}{options}`: {verdict(state)}.", ""]
    if state.ended_by:
        lines += [f"Not every step was played: {state.ended_by}.", ""]
    lines += [f"- {key}: {value}" for key, value in told.items() if value]
    rows = [
        (step.name, step.title, WORDS[result.verdict], minutes(result.seconds), result.evidence.replace("|", "\\|"))
        for step in steps
        if (result := state.results.get(step.name)) is not None
    ]
    lines += ["", *table(("step", "claim", "verdict", "time", "evidence"), rows)]
    lines += ["", "What cannot be done here is not proved: that takes a stack on a cloud."]
    return "\n".join(lines) + "\n"
