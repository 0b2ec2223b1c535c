"""Benchmark results of a run's checkpoints: evaluations/step-N.json in its folder, and table rows for people.

{"step": 100, "tasks": {"hellaswag": {"version": 1.0, "shots": 0, "limit": null, "samples": 10042,
  "harness": "lm-eval 0.4.13", "precision": "bf16", "metrics": {"acc_norm": {"value": 0.31, "stderr": 0.005}}}}}
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.contract import EVALUATIONS
from trainer.files import list_names, read_record, write_json

HEADER = ("step", "task", "metric", "value", "±", "shots", "examples", "version")
TEXTS = ("step", "task", "metric")
"""Columns of text; the others are numbers, aligned right."""


def perplexity(loss: float) -> float:
    """exp(loss), loss: nats a token. Capped, since the loss of a diverged run may exceed what a float holds (709)."""
    return math.exp(min(loss, 700.0))


def record(run: Path, step: int, tasks: dict[str, Any]) -> Path:
    """Add the results of some tasks to those of the step; a task that was there is replaced."""
    path = run / EVALUATIONS / f"step-{step}.json"
    path.parent.mkdir(exist_ok=True)
    before = read_record(path).get("tasks") or {}
    write_json(path, {"step": step, "tasks": before | tasks})
    return path


def rows(tasks: dict[str, Any], step: int | None = None) -> list[tuple[str, ...]]:
    """One row a figure, in the order of HEADER; `missing`: asked for, but the task's kind has no such metric."""
    found: list[tuple[str, ...]] = []
    for name, task in tasks.items():
        samples = f"{task['samples']:,}" if task.get("samples") else ""
        if task.get("limit"):
            samples = f"first {samples}"
        for metric, figure in task["metrics"].items():
            error = figure.get("stderr")
            found.append(
                (
                    "" if step is None else f"{step:,}",
                    name,
                    metric,
                    "missing" if figure["value"] is None else f"{figure['value']:.4f}",
                    "" if error is None else f"{error:.4f}",
                    str(task.get("shots", "")),
                    samples,
                    str(task.get("version", "")),
                )
            )
    return found


def of_run(run: Path, step: int | None = None) -> list[tuple[str, ...]]:
    """The rows of all steps, or of one."""
    found: dict[int, list[tuple[str, ...]]] = {}
    for name in list_names(run / EVALUATIONS, "step-*.json"):
        content = read_record(run / EVALUATIONS / name)
        if content and step in (None, content["step"]):
            found[content["step"]] = rows(content["tasks"], content["step"])
    return [row for number in sorted(found) for row in found[number]]


def text(table: Iterable[tuple[str, ...]]) -> str:
    """The rows below their header, in columns; a column without a value is left out."""
    lines = [HEADER, *table]
    kept = [index for index in range(len(HEADER)) if any(line[index] for line in lines[1:])]
    widths = {index: max(len(line[index]) for line in lines) for index in kept}
    return "\n".join(
        "  ".join(
            line[index].ljust(widths[index]) if HEADER[index] in TEXTS else line[index].rjust(widths[index])
            for index in kept
        ).rstrip()
        for line in lines
    )
