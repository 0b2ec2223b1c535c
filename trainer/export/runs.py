"""Read run directories for the report: unfinished, interrupted and hardly begun ones as far as they got."""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer.checkpoint.format import list_checkpoints, run_of
from trainer.config.schema import stored
from trainer.contract import DONE, METRICS, STATUS, patience
from trainer.errors import UserError
from trainer.export import evaluations
from trainer.files import read_record, read_text

INHERITED = {"constructor", "hasOwnProperty", "isPrototypeOf", "toLocaleString", "toString", "valueOf", "__proto__"}
"""Names that no run has alone: each object of JavaScript has them, so Vega (6) takes them for runs that it has met."""
Series = list[tuple[int, float]]
"""Steps and values of a figure."""


@dataclass(frozen=True)
class Run:
    """The content of a run directory."""

    name: str
    lines: list[dict[str, Any]]
    """metrics.jsonl, in order."""
    status: dict[str, Any]
    done: dict[str, Any] | None
    settings: dict[str, Any]
    """By dotted key, from the newest checkpoint; empty without one."""
    evaluations: list[tuple[str, ...]] = field(default_factory=list)
    """Benchmark results of its checkpoints, as rows of evaluations.HEADER."""

    def series(self, name: str) -> Series:
        """Steps and values of a figure, where it is known and finite."""
        return [(step, value) for step, value in self._known(name) if math.isfinite(value)]

    def last(self, name: str) -> float | None:
        """The newest value; of a run that has diverged it is not finite."""
        values = self._known(name)
        return values[-1][1] if values else None

    def _known(self, name: str) -> Series:
        return [(line["step"], line[name]) for line in self.lines if line.get(name) is not None]

    def mean(self, name: str) -> float | None:
        """Over all log lines but the first, which includes the warm-up of caches and compilers."""
        values = [value for _, value in self.series(name)]
        later = values[1:] or values
        return sum(later) / len(later) if later else None

    @property
    def answers(self) -> bool:
        """Whether it learns to answer questions: its loss is then one of examples, not of tokens."""
        return self.settings.get("task") == "question_answering"

    @property
    def state(self) -> str:
        if self.done is not None:
            return "done"
        state = str(self.status.get("state", "unknown"))
        fresh = time.time() - float(self.status.get("updated", 0)) < patience(state)
        return state if fresh or state == "failed" else "interrupted"

    @property
    def step(self) -> int:
        return max((int(line["step"]) for line in self.lines), default=0)

    @property
    def training_seconds(self) -> float | None:
        """Time in steps: without evaluations, checkpoints and interruptions."""
        means = self.series("step_seconds")
        if not means:
            return None
        before = [0, *(step for step, _ in means)]
        return sum(mean * (step - start) for (step, mean), start in zip(means, before, strict=False))

    @property
    def wire(self) -> float | None:
        """Fraction of a step spent waiting for the exchange with the other workers."""
        waited, whole = self.mean("communication_seconds"), self.mean("step_seconds")
        return waited / whole if waited is not None and whole else None


def read_runs(paths: list[Path]) -> list[Run]:
    """Read the runs under distinct names. Raises UserError for a path that is not a run."""
    resolved = [run_of(path.resolve()) for path in paths]
    parts = 1
    while len({path.parts[-parts:] for path in resolved}) < len(set(resolved)) or (
        parts == 1 and INHERITED.intersection(path.name for path in resolved)
    ):
        parts += 1
    return [read(path, "/".join(path.parts[-parts:])) for path in dict.fromkeys(resolved)]


def read(path: Path, name: str) -> Run:
    if not (path / METRICS).exists():
        raise UserError(f"{path}: holds no {METRICS}; give the run.directory of a training that has begun")
    lines: list[dict[str, Any]] = []
    for text in read_text(path / METRICS, errors="replace").split("\n"):
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue  # a line that is being written
    status, done = read_record(path / STATUS), read_record(path / DONE)
    return Run(name, lines, status, done or None, _resolved(path), evaluations.of_run(path))


def _resolved(path: Path) -> dict[str, Any]:
    for folder in [*reversed(list_checkpoints(path)), path]:  # a fetched run has the newest one's file itself
        try:
            return stored(read_text(folder / "config.yaml"))
        except (OSError, yaml.YAMLError, AttributeError):
            continue
    return {}
