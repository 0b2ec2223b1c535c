"""Show on one screen how a training is doing.

The Job's state, its pods, the round, step, loss, speed and time to go, and why rounds and pods have ended so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.cluster import TrainingJob, record, silence, started
from cli.progress import time_to_go, validation_text
from cli.state import State, state
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, target_of
from trainer.contract import STATUS
from trainer.plain import counted, plain
from workloads.layout import DATA

INCIDENTS = 12
"""How many of the newest are shown."""
AGED = {"loss": "loss", "validation_loss": "validation", "tokens_per_second": "speed", "eta_seconds": "time to go"}
"""Figure -> its name beside its age."""


def status(stack: RunningStack = "", training: TrainingName = "", kubeconfig: Kubeconfig = None) -> None:
    target = target_of(stack, training)
    Console().print(screen(read(target, kubeconfig), target, datetime.now(UTC)))


def read(target: Target, kubeconfig: str | None = None) -> State:
    """Ask the cluster. Raises CommandError."""
    job = TrainingJob.of(target, kubeconfig)
    found, pods = job.read()
    logs = {pod["metadata"]["name"]: job.log_end(pod["metadata"]["name"]) for pod in started(pods)}
    return state(found, pods, logs, status_file(target), "" if pods else job.refusal(), job.silent_nodes(pods))


def status_file(target: Target) -> dict[str, Any] | None:
    """The run's status.json, where this machine sees the shared volume."""
    if not target.data_folder or not target.run_directory or not target.run_directory.startswith(f"{DATA}/"):
        return None
    try:
        text = Path(target.data_folder + target.run_directory.removeprefix(DATA), STATUS).read_text("utf-8")
    except (OSError, ValueError):
        return None
    return record(text) or None


def screen(found: State, target: Target, now: datetime) -> Group:
    """The whole screen."""
    parts: list[Any] = [_head(found, target, now), _training(found, now)]
    if "step" in found.figures and found.figures.get("steps"):
        # The bar does not end its line.
        parts += [ProgressBar(total=found.figures["steps"], completed=found.figures["step"], width=60), Text("")]
    parts += [_pods(found, now), *_silent(found, now)]
    if found.incidents:
        parts.append(_incidents(found, now))
    return Group(*parts)


def _head(found: State, target: Target, now: datetime) -> Text:
    end = found.ended or now
    lasted = f" for {time_to_go((end - found.started).total_seconds())}" if found.started else ""
    style = {"R": "green", "C": "bold green", "F": "bold red"}.get(found.condition[0], "yellow")
    text = Text.assemble(
        (plain(found.condition), style), f"{lasted}   {target.namespace}/{found.job} on {target.context}"
    )
    # Not the Job's `active`, which counts pods without a node.
    running = sum(pod.state == "Running" for pod in found.pods)
    text.append(f"\nworkers  {running} of {found.wanted} run, {found.failed} failed")
    waits = [pod.state for pod in found.pods if pod.state.startswith("waiting for a node")]
    if waits:
        text.append(f", {len(waits)} {plain(waits[0])}", "yellow")
    return text


def _training(found: State, now: datetime) -> Text:
    figures = found.figures
    if "step" not in figures:
        return Text("training no step yet")
    words = [f"round {found.round}", f"step {figures['step']}/{figures.get('steps', '?')}"]
    if "loss" in figures:
        words.append(f"loss {figures['loss']:.3f}")
    if "validation_loss" in figures:
        words.append(validation_text(figures))
    if "tokens_per_second" in figures:
        words.append(f"{figures['tokens_per_second']:,.0f} tokens/s")
    if figures.get("eta_seconds"):
        words.append(f"{time_to_go(figures['eta_seconds'])} to go")
    if "world_size" in figures:
        words.append(counted(figures["world_size"], "process", "processes"))
    if found.checkpoint is not None:
        words.append(f"newest checkpoint: step {found.checkpoint}")
    return Text("training " + "  ".join(words) + f"\nas of    {', '.join(_ages(found, now))}")


def _ages(found: State, now: datetime) -> Iterator[str]:
    """How old the figures are, those of one time together."""
    known = {"step": "step", **{key: AGED[key] for key in AGED if key in found.figures}}
    known |= {"checkpoint": "checkpoint"} if found.checkpoint is not None else {}
    ages: dict[str, list[str]] = {}
    for key, name in known.items():
        told = found.told.get(key)
        age = (
            f"{time_to_go((now - told).total_seconds())} ago" if told else "the time of the checkpoint it resumed from"
        )
        ages.setdefault(age, []).append(name)
    first, *others = ages
    yield first
    yield from (f"{' and '.join(ages[age])} {age}" for age in others)


def _silent(found: State, now: datetime) -> Iterator[Text]:
    nodes = {pod.node: pod.silent for pod in found.pods if pod.silent}
    for node, since in nodes.items():
        yield Text(plain(silence(node, time_to_go((now - since).total_seconds()))), "yellow")


def _pods(found: State, now: datetime) -> Table:
    table = Table("index", "pod", "node", "state", "for", "round", "rank", box=None, padding=(0, 2, 0, 0))
    for pod in found.pods:
        age = time_to_go((now - pod.since).total_seconds()) if pod.since else ""
        current = pod.round == found.round and pod.state == "Running"
        rank = str(pod.rank) if pod.rank is not None and current else ""
        table.add_row(
            str(pod.index),
            Text(plain(pod.name)),
            Text(plain(pod.node)),
            Text(plain(pod.state)),
            age,
            str(pod.round or ""),
            rank,
        )
    return table


def _incidents(found: State, now: datetime) -> Table:
    hidden = len(found.incidents) - INCIDENTS
    title = "what happened" + (f" ({hidden} earlier ones not shown)" if hidden > 0 else "")
    table = Table("ago", "pod", title, box=None, padding=(0, 2, 0, 0))
    for incident in found.incidents[-INCIDENTS:]:
        table.add_row(
            time_to_go((now - incident.time).total_seconds()), Text(plain(incident.pod)), Text(plain(incident.cause))
        )
    return table
