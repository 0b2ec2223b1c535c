"""Show on one screen how a training is doing, or in a table how all of a stack are.

The Job's state, its pods, the round, step, loss, speed and time to go, and why rounds and pods have ended so far.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli import CommandError
from cli.cluster import GoneError, TrainingJob, node_kinds, silence
from cli.progress import age, described, time_to_go
from cli.runs import AsJson
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, chosen, node_price
from cli.training_status import TrainingStatus, look, moment_of
from cli.volume import WIDE
from trainer.plain import counted, plain

INCIDENTS = 12
"""How many of the newest are shown."""
AGED = {"loss": "loss", "validation_loss": "validation", "tokens_per_second": "speed", "eta_seconds": "time to go"}
"""Figure -> its name beside its age."""
STYLES = {"Running": "green", "Complete": "bold green", "Failed": "bold red"}
"""Condition -> how it is shown."""
WATCH_SECONDS = 2.0
"""Between two looks."""
AT_ONCE = 16
"""Trainings that are asked for in parallel."""


def status(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
) -> None:
    if watch and as_json:
        raise CommandError("--watch and --json: give one of them", code=2)
    targets = chosen(stack, training, kubeconfig)
    price = node_price(stack)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)

    def shown() -> Any:
        found = all_of(targets, price)
        if as_json:
            return json.dumps([json_of(each) for each in found], indent=1, default=_jsonable)
        now = datetime.now(UTC)
        return screen(found[0], targets[0], now) if len(targets) == 1 else overview(found, targets, now)

    if not watch:
        print(told) if isinstance(told := shown(), str) else console.print(told)
        return
    try:
        with Live(shown(), console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(shown(), refresh=True)
    except KeyboardInterrupt:
        pass


def json_of(found: TrainingStatus) -> dict[str, Any]:
    """One object, of which `told` says when each figure was true."""
    told = dataclasses.asdict(found)
    record = told.pop("record")
    told |= {key: record[key] for key in ("round", "figures", "checkpoint")}
    return told | {"told": {figure: moment_of(seconds) for figure, seconds in record["times"].items()}}


def _jsonable(value: Any) -> Any:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)


def all_of(targets: list[Target], price: float | None = None) -> list[TrainingStatus]:
    """The states of some trainings, with the kinds of their nodes and their cost. Raises CommandError."""

    def ask(target: Target) -> TrainingStatus:
        try:
            return look(TrainingJob.of(target), price)
        except GoneError as error:
            if len(targets) == 1:
                raise
            return TrainingStatus(target.job, "Gone", str(error))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(ask, targets))
    names = {pod.node for each in found for pod in each.pods if pod.node}
    kinds = node_kinds(TrainingJob.of(targets[0]).core) if names else {}
    return [_priced(each, target.training, kinds, price) for each, target in zip(found, targets, strict=True)]


def _priced(found: TrainingStatus, training: str, kinds: dict[str, str], price: float | None) -> TrainingStatus:
    """With node kinds and the cost of the training so far, of as many nodes as it wants at once."""
    counts: dict[str, int] = {}
    for node in sorted({pod.node for pod in found.pods if pod.state == "Running"}):
        if kind := kinds.get(node):
            counts[kind] = counts.get(kind, 0) + 1
    cost = None if price is None else price * found.wanted * found.lasted(datetime.now(UTC)) / 3600
    return dataclasses.replace(found, training=training, nodes=counts, cost=cost)


def overview(found: list[TrainingStatus], targets: list[Target], now: datetime) -> Group:
    """A line for each training, then what those wait for that do not run, and the nodes of the others."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("training", overflow="fold", min_width=12)
    table.add_column("state", no_wrap=True)
    for column in ("step", "loss", "valid.", "workers", "cost", "left", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    lines = []
    for each in found:
        figures, told = each.figures, each.record.times.get("step")
        losses = [f"{figures[key]:.3f}" if key in figures else "" for key in ("loss", "validation_loss")]
        step = f"{figures['step']}/{figures.get('steps', '?')}" if "step" in figures else ""
        running = sum(pod.state == "Running" for pod in each.pods)
        left = time_to_go(figures["eta_seconds"]) if figures.get("eta_seconds") and running else ""
        table.add_row(
            Text(plain(each.training)),
            Text(each.condition, STYLES.get(each.condition, "yellow")),
            step,
            *losses,
            f"{running}/{each.wanted}",
            f"${each.cost:,.2f}" if each.cost else "",
            left,
            age(now.timestamp() - told) if told else "",
        )
        if each.why:
            lines.append(Text(plain(f"{each.training}: {each.headline}")))
        elif each.nodes:
            lines.append(Text(plain(f"{each.training}: on {_kinds(each)}")))
    return Group(Text(f"{targets[0].namespace} on {targets[0].context}"), table, *lines)


def _kinds(found: TrainingStatus) -> str:
    """How many nodes of which kind train."""
    return ", ".join(f"{count} {plain(kind)}" for kind, count in found.nodes.items())


def screen(found: TrainingStatus, target: Target, now: datetime) -> Group:
    """The whole screen."""
    parts: list[Any] = [_head(found, target, now), _training(found, now)]
    if "step" in found.figures and found.figures.get("steps"):
        # The bar does not end its line.
        parts += [ProgressBar(total=found.figures["steps"], completed=found.figures["step"], width=60), Text("")]
    parts += [_pods(found, now), *_silent(found, now)]
    if found.incidents:
        parts.append(_incidents(found, now))
    return Group(*parts)


def _head(found: TrainingStatus, target: Target, now: datetime) -> Text:
    # What has ended took so long; it is not so since then.
    how = " for " if found.ended is None else ", took " if found.condition == "Complete" else " after "
    lasted = f"{how}{time_to_go(found.lasted(now))}" if found.started else ""
    text = Text.assemble(
        (plain(found.headline), STYLES.get(found.condition, "yellow")),
        f"{lasted}   {target.namespace}/{found.job} on {target.context}",
    )
    # Not the Job's `active`, which counts pods without a node.
    running = sum(pod.state == "Running" for pod in found.pods)
    text.append(f"\nworkers  {running} of {found.wanted} run, {found.failed} failed")
    if found.ended_for_it:
        text.append(f", {found.ended_for_it} ended for it")
    if found.waiting:
        text.append(f"; {plain(found.waiting)}", "yellow")
    if found.nodes:
        text.append(f"\nnodes    {_kinds(found)}")
    if found.cost:
        text.append(f"\ncost     about ${found.cost:,.2f} so far, for the workers' nodes by list prices")
    return text


def _training(found: TrainingStatus, now: datetime) -> Text:
    figures = found.figures
    if "step" not in figures:
        return Text("training no step yet")
    words = [f"round {found.record.round}", f"step {figures['step']}/{figures.get('steps', '?')}"]
    words += described({key: value for key, value in figures.items() if key != "eta_seconds" or value})
    if "world_size" in figures:
        words.append(counted(figures["world_size"], "process", "processes"))
    if found.record.checkpoint is not None:
        words.append(f"newest checkpoint: step {found.record.checkpoint}")
    return Text("training " + "  ".join(words) + f"\nas of    {', '.join(_ages(found, now))}")


def _ages(found: TrainingStatus, now: datetime) -> Iterator[str]:
    """How old the figures are, those of one time together."""
    times = found.record.times
    known = [("step", "step"), *((key, name) for key, name in AGED.items() if key in found.figures)]
    known += [("checkpoint", "checkpoint")] if found.record.checkpoint is not None else []
    ages: dict[str, list[str]] = {}
    for key, name in known:
        ago = f"{time_to_go(now.timestamp() - times[key])} ago" if key in times else ""
        ages.setdefault(ago or "the time of the checkpoint it resumed from", []).append(name)
    first, *others = ages
    yield first
    yield from (f"{' and '.join(ages[age])} {age}" for age in others)


def _silent(found: TrainingStatus, now: datetime) -> Iterator[Text]:
    for node, since in found.silent_nodes.items():
        yield Text(plain(silence(node, time_to_go((now - since).total_seconds()))), "yellow")


def _pods(found: TrainingStatus, now: datetime) -> Table:
    table = Table("index", "pod", "node", "state", "for", "rank", box=None, padding=(0, 2, 0, 0))
    for pod in found.pods:
        age = time_to_go((now - pod.since).total_seconds()) if pod.since else ""
        table.add_row(
            str(pod.index),
            Text(plain(pod.name)),
            Text(plain(pod.node)),
            Text(plain(pod.state)),
            age,
            "" if pod.rank is None else str(pod.rank),
        )
    return table


def _incidents(found: TrainingStatus, now: datetime) -> Table:
    hidden = len(found.incidents) - INCIDENTS
    title = "what happened" + (f" ({hidden} earlier ones not shown)" if hidden > 0 else "")
    table = Table("ago", "who", title, box=None, padding=(0, 2, 0, 0))
    for incident in found.incidents[-INCIDENTS:]:
        table.add_row(
            time_to_go((now - incident.time).total_seconds()), Text(plain(incident.who)), Text(plain(incident.cause))
        )
    return table
