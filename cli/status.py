"""Show on one screen how a training is doing, or in a table how all of a stack are.

The Job's state, its pods, the round, step, loss, speed and time to go, and why rounds and pods have ended so far.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from cli.cluster import AT_ONCE, GoneError, TrainingJob, moment, node_kinds, silence
from cli.progress import age, time_to_go
from cli.runs import AsJson
from cli.table import cells, table, wide
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, chosen, node_price
from cli.training_status import TrainingStatus, look
from trainer.plain import counted, plain

INCIDENTS = 12
"""How many of the newest are shown."""
AGED = {"loss": "loss", "validation_loss": "validation", "tokens_per_second": "speed", "eta_seconds": "time to go"}
"""Figure -> its name beside its age."""
STYLES = {"Running": "green", "Complete": "bold green", "Failed": "bold red"}
"""Condition -> how it is shown."""


def status(
    stack: RunningStack = "", training: TrainingName = "", kubeconfig: Kubeconfig = None, as_json: AsJson = False
) -> None:
    targets = chosen(stack, training, kubeconfig)
    found = all_of(targets, node_price(stack))
    if as_json:
        told = list(map(json_of, found))
        print(json.dumps(told, indent=1, default=lambda value: value.isoformat(timespec="seconds")))
        return
    wide().print(screen(found[0], targets[0]) if len(targets) == 1 else overview(found, targets[0]))


def json_of(found: TrainingStatus) -> dict[str, Any]:
    """One object, of which `told` says when each figure was true."""
    told = dataclasses.asdict(found)
    record = told.pop("record")
    told |= {key: record[key] for key in ("round", "figures", "checkpoint")}
    return told | {"told": {figure: moment(seconds) for figure, seconds in record["times"].items()}}


def all_of(targets: list[Target], price: float | None = None) -> list[TrainingStatus]:
    """How some trainings are, with the kinds of their nodes; `price` is USD per hour of a node. Raises CommandError."""

    def ask(target: Target) -> TrainingStatus:
        try:
            return look(TrainingJob.of(target), price)
        except GoneError as error:
            if len(targets) == 1:
                raise
            return TrainingStatus(target.job, "Gone", str(error), training=target.training)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(ask, targets))
    kinds = node_kinds(TrainingJob.of(targets[0]).core) if any(each.running for each in found) else {}
    running = [sorted({pod.node for pod in each.pods if pod.state == "Running"}) for each in found]
    nodes = [Counter(kinds[node] for node in each if node in kinds) for each in running]
    return [dataclasses.replace(each, nodes=dict(counts)) for each, counts in zip(found, nodes, strict=True)]


def overview(found: list[TrainingStatus], target: Target) -> Group:
    """A line for each training, then why they are so and what they wait for, and on which nodes they run."""
    figures = ("step", "loss", "valid.", "workers", "cost", "left", "age")
    shown = table("training", "state", *figures, right=figures, whole=("state",), gap=1)
    shown.columns[0].min_width = 12
    lines = []
    for each in found:
        known, told = each.figures, each.record.times.get("step")
        row = cells(
            each.training,
            Text(each.condition, STYLES.get(each.condition, "yellow")),
            each.step.removeprefix("step "),
            *(f"{known[key]:.3f}" if key in known else "" for key in ("loss", "validation_loss")),
            f"{each.running}/{each.wanted}",
            f"${each.cost:,.2f}" if each.cost else "",
            time_to_go(known["eta_seconds"]) if known.get("eta_seconds") and each.running else "",
            age(each.seen.timestamp() - told) if told else "",
        )
        shown.add_row(*row)
        lines += [f"{each.training}: {each.headline}"] if each.why else []
        lines += [f"{each.training}: on {_kinds(each)}"] if each.nodes else []
    return Group(Text(f"{target.namespace} on {target.context}"), shown, *map(Text, map(plain, lines)))


def _kinds(found: TrainingStatus) -> str:
    """How many nodes of which kind train."""
    return ", ".join(f"{count} {kind}" for kind, count in found.nodes.items())


def screen(found: TrainingStatus, target: Target) -> Group:
    parts: list[Any] = [_head(found, target), _training(found)]
    if "step" in found.figures and found.figures.get("steps"):
        # The bar does not end its line.
        parts += [ProgressBar(total=found.figures["steps"], completed=found.figures["step"], width=60), Text("")]
    parts.append(pods := table("index", "pod", "node", "state", "for", "rank"))
    for pod in found.pods:
        pods.add_row(*cells(pod.index, pod.name, pod.node, pod.state, found.ago(pod.since), pod.rank))
    for node, since in found.silent_nodes.items():
        parts.append(Text(plain(silence(node, found.ago(since))), "yellow"))
    if found.incidents:
        hidden = len(found.incidents) - INCIDENTS
        title = "what happened" + (f" ({hidden} earlier ones not shown)" if hidden > 0 else "")
        parts.append(happened := table("ago", "who", title))
        for incident in found.incidents[-INCIDENTS:]:
            happened.add_row(*cells(found.ago(incident.time), incident.who, incident.cause))
    return Group(*parts)


def _head(found: TrainingStatus, target: Target) -> Text:
    # What has ended took so long; it is not so since then.
    how = " for " if found.ended is None else ", took " if found.condition == "Complete" else " after "
    parts = [
        (plain(found.headline), STYLES.get(found.condition, "yellow")),
        f"{how}{time_to_go(found.lasted)}" if found.started else "",
        f"   {target.namespace}/{found.job} on {target.context}",
        f"\nworkers  {found.running} of {found.wanted} run, {found.failed} failed",
        f", {found.ended_for_it} ended for it" if found.ended_for_it else "",
        f"\nnodes    {plain(_kinds(found))}" if found.nodes else "",
        f"\ncost     about ${found.cost:,.2f} so far, for the workers' nodes by list prices" if found.cost else "",
    ]
    return Text.assemble(*parts)


def _training(found: TrainingStatus) -> Text:
    """The newest step, and how old its figures are, those of one time together."""
    record, figures, times = found.record, found.figures, found.record.times
    if not found.step:
        return Text(f"training no step yet{f': {found.starting}' if found.starting else ''}")
    words = [f"round {record.round}", *found.described]
    if "world_size" in figures:
        words.append(counted(figures["world_size"], "process", "processes"))
    words += [] if record.resumed is None else [f"resumed from step {record.resumed}"]
    words += [] if record.checkpoint is None else [f"newest checkpoint: step {record.checkpoint}"]
    words += [found.starting] if found.starting else []
    known = [("step", "step"), *((key, name) for key, name in AGED.items() if key in figures)]
    known += [("checkpoint", "checkpoint")] if record.checkpoint is not None else []
    ages: dict[str, list[str]] = {}
    for key, name in known:
        ago = f"{found.ago(times[key])} ago" if key in times else "the time of the checkpoint it resumed from"
        ages.setdefault(ago, []).append(name)
    first, *others = ages
    told = ", ".join([first, *(f"{' and '.join(ages[each])} {each}" for each in others)])
    return Text(f"training {'  '.join(words)}\nas of    {told}")
