"""Rank runs by validation loss, with the settings in which they differ.

By default those of the stack's trainings. Only losses of the same step are ranked, the latest that a run has reached.
Where tokenizers differ, a loss per token says nothing, and runs are ranked by bits per byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cli import CommandError, last_line
from cli.cluster import TrainingJob
from cli.pods import Pod, volume_pod
from cli.programs import find_rsync
from cli.progress import Bar
from cli.rsync import bring
from cli.runs import AsJson, Run, read
from cli.table import cells, table, wide
from cli.target import Kubeconfig, RunningStack, Target, targets_of
from cli.volume import users
from trainer.contract import differing
from trainer.plain import plain
from workloads.layout import run_folder

TITLES = {"validation_loss": "validation loss", "bits_per_byte": "bits/byte"}
NamedRuns = Annotated[
    list[str] | None, typer.Option("--run", metavar="NAME", help="A run on the volume, in place; may be repeated.")
]


def compare(
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    run: NamedRuns = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs on the volume.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also bring a page with their curves over each other.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    if run and everything:
        raise CommandError("--run and --all name different runs; give one of them", code=2)
    if html:
        find_rsync()  # before a pod is made
    targets = targets_of(stack, kubeconfig)
    used = users(TrainingJob.of(targets[0]))
    with volume_pod(targets[0]) as (pod, bar):
        ranking = rank(chosen(pod, targets, run, everything, used))
        begun = [run_folder(each.name) for each, _ in ranking.ranked if "step" in each.figures]
        if html and begun and (problem := bring_report(pod, bar, html, *begun)):
            raise CommandError(f"--html: {problem}")
    names = {target.run: target.training for target in targets}
    if as_json:
        told = [
            {"rank": place, "training": names.get(each.name, ""), **each.as_json()} for each, place in ranking.ranked
        ]
        print(json.dumps(told, indent=1, default=str))
        return
    wide().print(_table(ranking, names))
    for line in [*remarks(ranking), *([] if run or everything else missing(targets, ranking, used))]:
        print(plain(line))
    if html and begun:
        print(f"curves: {html / 'index.html'}")


def bring_report(pod: Pod, bar: Bar, folder: Path, *runs: str) -> str:
    """Make the report page of these folders in the pod and fetch it; return the problem in one line, or nothing."""
    bar.waiting("making the report")
    with pod.scratch() as made:
        code, text = pod.run("python", "-m", "trainer.report", *runs, "--output", made)
        if code:
            return last_line(text)
        bring(pod, made, folder, bar)
    return ""


def chosen(
    pod: Pod, targets: list[Target], names: list[str] | None, everything: bool, used: dict[str, str] | None = None
) -> list[Run]:
    """The runs to compare; `used` is what cli.volume.users returns. Raises CommandError for one that is not there."""
    wanted = names or [target.run for target in targets]
    found = read(pod, used, *([] if everything else wanted))
    if names and not everything and (missing := sorted(set(names) - {run.name for run in found})):
        raise CommandError(f"--run {missing[0]}: no such run; `trainyard runs` lists them all", code=2)
    if not found:
        raise CommandError("no run has begun yet; `trainyard status` says how far the trainings are")
    return found


@dataclass(frozen=True)
class Ranking:
    """Runs from the best; those without the figure at the latest step come last and have no rank."""

    figure: str
    """By which they are ranked."""
    step: int | None
    """Whose losses are ranked; None: no run has one."""
    ranked: list[tuple[Run, int | None]]

    @property
    def runs(self) -> list[Run]:
        return [run for run, _ in self.ranked]

    @property
    def others(self) -> list[str]:
        """A line about the runs whose loss is of another step than that of the ranked ones."""
        other = [run for run, place in self.ranked if place is None and self.figure in run.figures]
        told = ", ".join(f"{run.name} (step {run.validated:,})" for run in other)
        return [f"Ranked at step {self.step:,}; not ranked, with a loss of another step: {told}."] if other else []


def rank(runs: Iterable[Run]) -> Ranking:
    runs = list(runs)
    figure = "bits_per_byte" if len({run.tokenizer for run in runs if run.tokenizer}) > 1 else "validation_loss"
    latest = max((run.validated or 0 for run in runs if figure in run.figures), default=None)

    def place(run: Run) -> tuple[bool, bool, float, str]:
        known = figure in run.figures
        return not known, known and run.validated != latest, run.figures.get(figure, 0.0), run.name

    ordered = enumerate(sorted(runs, key=place), 1)
    ranked = [(run, n if figure in run.figures and run.validated == latest else None) for n, run in ordered]
    return Ranking(figure, latest, ranked)


def missing(targets: list[Target], ranking: Ranking, used: Mapping[str, str]) -> list[str]:
    """A line for each training of the stack that has no run on the volume; `used` is what cli.volume.users returns."""
    there, lines = {run.name for run in ranking.runs}, []
    for target in targets:
        if target.run not in there:
            begins = run_folder(target.run) in used
            why = "it has not begun" if begins else "removed, or its training never began"
            lines.append(f"Left out: {target.training or 'the training'}: {target.run} is not on the volume ({why}).")
    return lines


def best(pod: Pod, targets: list[Target]) -> tuple[Run, list[str]]:
    """The winner of a stack's trainings, and what its choice leaves out. Raises CommandError if none is validated."""
    ranking = rank(chosen(pod, targets, None, everything=False))
    if ranking.step is None:
        title = TITLES[ranking.figure]
        raise CommandError(f"--best: no training has a {title} yet; `trainyard status` says how far they are")
    return ranking.runs[0], [*ranking.others, *missing(targets, ranking, {})]


def remarks(ranking: Ranking) -> list[str]:
    """What a person should know about the ranking."""
    lines, runs = [], ranking.runs
    if ranking.figure == "bits_per_byte":
        lines.append("By bits per byte: their tokenizers differ, so their losses do not compare.")
    if len({run.data or run.settings.get("data.directory") for run in runs if run.settings}) > 1:
        lines.append("Their data sets differ, and with them the text that they are validated on.")
    lines += ranking.others
    if unknown := [run.name for run in runs if not run.settings]:
        lines.append(f"Settings not known yet: {', '.join(unknown)}.")
    if len(runs) == 1:
        lines.append("One run compares with nothing; --all takes every run on the volume.")
    return lines


def _table(ranking: Ranking, names: dict[str, str]) -> Table:
    figure, keys = ranking.figure, differing([run.settings for run in ranking.runs if run.settings])
    lasts = [key.rpartition(".")[2] for key in keys]
    short = {key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)}
    title = "training" if any(names.get(run.name) for run in ranking.runs) else "run"
    right = ("", TITLES[figure], "step")
    shown = table("", title, TITLES[figure], "step", "state", "differs in", right=right, whole=("state",), gap=1)
    shown.columns[1].min_width = 12
    for run, place in ranking.ranked:
        known = f"{run.figures[figure]:.4f}" if figure in run.figures else ""
        at = run.validated if known else run.figures.get("step")
        step = f"{at:,}" if at is not None else ""
        own = [f"{short[key]} {_value(run.settings.get(key))}" for key in keys] if run.settings else []
        shown.add_row(*cells(place, names.get(run.name) or run.name, known, step, run.state, ", ".join(own)))
    return shown


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if value not in (None, "") else "-"
