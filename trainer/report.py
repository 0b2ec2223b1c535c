"""Pictures and one page from one or several runs: `python -m trainer.report RUN [RUN...] --output FOLDER`.

Runs that are still going, were interrupted or have few points are shown as far as they got.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer.checkpoint.format import list_checkpoints
from trainer.config.schema import stored
from trainer.contract import DONE, METRICS, STATUS
from trainer.errors import EXIT_USAGE, UserError
from trainer.files import read_json

STALE_SECONDS = 120
"""A run whose status is older and that is not done was interrupted: status.json is written at each log step."""
COMPILING_SECONDS = 900
"""The same before the first step, when all is compiled and nothing is logged."""


@dataclass(frozen=True)
class Run:
    """What a run directory tells."""

    name: str
    lines: list[dict[str, Any]]
    """metrics.jsonl, in order."""
    status: dict[str, Any]
    done: dict[str, Any] | None
    settings: dict[str, Any]
    """By dotted key, from the newest checkpoint; empty without one."""

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of a figure, where it is known."""
        found = [(line["step"], line[name]) for line in self.lines if line.get(name) is not None]
        return [step for step, _ in found], [value for _, value in found]

    def last(self, name: str) -> float | None:
        values = self.series(name)[1]
        return values[-1] if values else None

    @property
    def state(self) -> str:
        if self.done is not None:
            return "done"
        state = str(self.status.get("state", "unknown"))
        patience = COMPILING_SECONDS if state == "compiling" else STALE_SECONDS
        fresh = time.time() - float(self.status.get("updated", 0)) < patience
        return state if fresh or state == "failed" else "interrupted"

    @property
    def step(self) -> int:
        return max((int(line["step"]) for line in self.lines), default=0)

    @property
    def training_seconds(self) -> float | None:
        """Time in steps: without evaluations, checkpoints and interruptions."""
        steps, seconds = self.series("step_seconds")
        if not steps:
            return None
        return sum(mean * (step - before) for step, before, mean in zip(steps, [0, *steps], seconds, strict=False))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.report", description="Compare runs at a glance.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="where index.html and PNGs go")
    options = parser.parse_args(arguments)
    try:
        write(read_all(options.runs), options.output)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"--output {options.output}: cannot be written ({error.strerror})", file=sys.stderr)
        return EXIT_USAGE
    print(f"wrote {options.output / 'index.html'}")
    return 0


def write(runs: list[Run], output: Path) -> None:
    """index.html with everything in it, and each picture as a file of its own."""
    from trainer.export import report_page, report_plots

    output.mkdir(parents=True, exist_ok=True)
    pictures = report_plots.draw(runs)
    for name, content in pictures.items():
        (output / f"{name}.png").write_bytes(content)
    (output / "index.html").write_text(report_page.page(runs, pictures), encoding="utf-8")


def read_all(paths: list[Path]) -> list[Run]:
    """The runs, under names that tell them apart. Raises UserError when one is none."""
    resolved = [path.resolve() for path in paths]
    parts = 1
    while len({path.parts[-parts:] for path in resolved}) < len(set(resolved)):
        parts += 1
    return [read(path, "/".join(path.parts[-parts:])) for path in dict.fromkeys(resolved)]


def read(path: Path, name: str) -> Run:
    if not (path / METRICS).exists():
        raise UserError(f"{path}: holds no {METRICS}; give the run.directory of a training that has begun")
    lines: list[dict[str, Any]] = []
    for text in (path / METRICS).read_text("utf-8").splitlines():
        try:
            line = json.loads(text)
            int(line["step"])
        except (ValueError, KeyError, TypeError):
            continue  # a line that is being written
        lines.append(line)
    return Run(name, lines, read_json(path / STATUS) or {}, read_json(path / DONE), _settings(path))


def _settings(path: Path) -> dict[str, Any]:
    for folder in reversed(list_checkpoints(path)):
        try:
            return stored((folder / "config.yaml").read_text("utf-8"))
        except (OSError, yaml.YAMLError, AttributeError):
            continue
    return {}


if __name__ == "__main__":
    sys.exit(main())
