"""The subject of a proof: a temporary stack from the values of a stack file, with its cluster and training.

It has a name (prove-NAME), a state and a namespace (trainyard-prove-NAME) of its own, so a running stack NAME is not
touched. Every wait here ends at the cost limit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cli.target import PROOF
from faults.cluster import Cluster
from faults.stack import Stack
from infra.config import StackConfig
from infra.cost import estimate
from infra.parse import cluster_kind
from infra.stackfiles import stack_file_values
from infra.trainings import KEYS
from prove.engine import State

MAX_HOURS = 6
"""Limit of a proof's training, in case the proof dies: three times what a proof takes."""
LONG = 1_000_000
"""Steps of a training that runs until the proof replaces it."""


class Subject(Cluster):
    """The stack that the steps are played on. `say` shows a wait; its commands keep the files `held` open."""

    def __init__(self, stack: str, state: State, say: Callable[[str], None], held: tuple[int, ...] = ()) -> None:
        self.name, self.state, self.folder = stack, state, state.file.parent
        values = overridden(stack_file_values(stack), stack, state)
        if cluster_kind(values) != "existing":
            # The user has no use for this cluster's credentials: leave their kubeconfig alone.
            os.environ["KUBECONFIG"] = str(self.folder / "kubeconfig")
        super().__init__(Stack(PROOF + stack, self.folder, dict(os.environ), values, state.check_limit, say, held))
        state.usd_per_hour = state.usd_per_hour or hourly(self.config)
        if state.usd_per_hour and "values" not in state.notes:
            # A dead proof checks no limit, so the training must end by itself.
            hours = min(MAX_HOURS, max(1, state.limit_usd / state.usd_per_hour))
            self.stack.write(job={"maxHours": round(hours, 1)})

    def tool(self, command: str, *arguments: str) -> str:
        """Run a command of trainyard on the stack, which must succeed."""
        return self.stack.change([sys.executable, "-m", "cli", command, "--stack", self.stack.name, *arguments])

    def up(self, **sections: dict[str, Any]) -> None:
        self.stack.write(**sections)
        self.state.notes["values"] = self.stack.values
        self.state.save()
        super().up()

    def cordon(self, node: str, closed: bool) -> None:
        """Noted in the state, so that a later process opens what a killed one has closed."""
        if closed:
            self.state.notes["cordoned"] = node
            self.state.save()
        super().cordon(node, closed)
        if not closed:
            self.state.notes.pop("cordoned", None)


def hourly(config: StackConfig) -> float:
    """USD an hour at full size, of the dearest machines that may come; infinite where a list price is missing."""
    nodes, rates = config.nodes, [0.0]
    if nodes is None:
        return 0.0
    consumption = "on_demand" if nodes.fallback == "on_demand" else nodes.consumption
    for machine_type in nodes.machine_types:
        change = {"machine_type": machine_type, "consumption": consumption}
        bill = estimate(replace(config, nodes=nodes.model_copy(update=change)))
        if bill is not None:
            rates.append(float("inf") if bill.at_full is None else bill.at_full)
    return max(rates)


def overridden(values: dict[str, Any], stack: str, state: State) -> dict[str, Any]:
    """The stack file's values, with a name, a sample text and a training of the proof's own.

    The machines, the model, its engine, precision and batches stay, because they are what is proved. Left out is what a
    run of days needs: text and weights from the web, a schedule with an end, secrets that only the stack's own key
    opens.
    """
    if kept := state.notes.get("values"):
        return kept
    # One training, whatever trainings the stack has.
    changed: dict[str, Any] = {key: dict(value) for key, value in values.items() if key not in ("secrets", *KEYS)}
    run = f"prove-{int(time.time()):x}"
    state.notes["run"] = run
    cluster, workers = changed.setdefault("cluster", {}), changed.setdefault("workers", {})
    nodes, training = changed.get("nodes"), dict(changed.get("training") or {})
    cluster.update(deletionProtection=False)
    if nodes:
        # Short: Google allows 30 characters for a service account.
        cluster.update(name=PROOF + stack)
        workers.update(count=min(2, nodes.get("max", 2)), min=1)
    elif not workers.get("gpus"):
        # Three of them fit on a node with two processors.
        workers.update(count=2, min=1, cpu=min(0.3, workers.get("cpu", 1)), memoryGib=2)
    storage = changed.setdefault("storage", {})
    # The user's disk or file system, with the user's data.
    for key in ("retain", "disk"):
        storage.pop(key, None)
    # A vocabulary that is learnt from the text needs nothing from the web. With GPT-2's 50,257 words in its place the
    # local stack's proof trained 7.3 million parameters, and not the stack's 1.0 million.
    tokenizer = str(changed.get("dataset", {}).get("tokenizer", ""))
    learnt = {"tokenizer": tokenizer} if tokenizer.startswith("train:") else {}
    changed["dataset"] = {"name": run, "input": ["sample"], **learnt}
    changed["job"] = {"name": run, "maxHours": MAX_HOURS}
    for key in ("task", "distillation", "adapter", "epochs"):
        training.pop(key, None)
    model = training.get("model", {})
    if "name" in model or "config" in model:
        # Train a GPT-2 from scratch instead: nothing is fetched, and it fits small pods.
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
        # The proof waits for the first one; on an existing cluster the model is small and saved in a moment.
        checkpoint={"everySteps": LONG, "everyMinutes": 0.1 if nodes is None else 0.5, "keep": 2},
    )
    changed["training"] = training
    if not state.short:
        changed["check"] = {"megabytes": 256, "storageMegabytes": 256, **changed.get("check", {}), "enabled": True}
    return changed
