"""Read run directories and draw their loss, learning rate, throughput and parts of a step.

A run has the same colour in all pictures. The colours are Okabe and Ito's, which people with any colour vision tell
apart (jfly.uni-koeln.de/color, 2008), and line styles repeat the distinction.
"""

import io
import itertools
import json
import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import yaml

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trainer.checkpoint.format import list_checkpoints, run_of
from trainer.config.schema import stored
from trainer.contract import COMPILING_SECONDS, DONE, METRICS, STALE_SECONDS, STATUS
from trainer.errors import UserError
from trainer.export import evaluations
from trainer.files import read_record, read_text

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FURTHER = "#c4c4c4"
"""Of runs beyond these colours, which `trainyard compare` gives in their ranking: a thin line behind the others."""
PARTS = {
    "compute_seconds": ("compute", "#2f4b66"),
    "communication_seconds": ("communication", "#6f93b3"),
    "data_seconds": ("data", "#b9cfe0"),
    "other": ("other", "#e3e3e3"),
    "checkpoint_seconds": ("checkpoint", "#E69F00"),
}
"""The parts of a step, in colours of different lightness, so that they also differ in grey."""
LOSSES = ("loss", "validation_loss")
NAME = 30
"""Characters of a run's name in a legend."""
LARGEST = 1e30
"""The largest number in a picture: a loss of a diverged run is smaller, and matplotlib's arithmetic needs room."""
FEW_POINTS = 25
"""Up to this many points each is marked: a line alone would not show one or two."""
STYLE = Path(__file__).with_suffix(".mplstyle")


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


def read_runs(paths: list[Path]) -> list[Run]:
    """Read the runs under distinct names. Raises UserError for a path that is not a run."""
    resolved = [run_of(path.resolve()) for path in paths]
    parts = 1
    while len({path.parts[-parts:] for path in resolved}) < len(set(resolved)):
        parts += 1
    return [read(path, "/".join(path.parts[-parts:])) for path in dict.fromkeys(resolved)]


def read(path: Path, name: str) -> Run:
    if not (path / METRICS).exists():
        raise UserError(f"{path}: holds no {METRICS}; give the run.directory of a training that has begun")
    lines: list[dict[str, Any]] = []
    for text in read_text(path / METRICS, errors="replace").split("\n"):
        try:
            line = _numbers(json.loads(text))
        except (ValueError, AttributeError, RecursionError):
            continue  # a line that is being written, or that somebody else wrote
        if isinstance(line.get("step"), int):
            lines.append(line)
    status, done = read_record(path / STATUS), read_record(path / DONE)
    of_numbers = {"steps", "updated"}
    status = {key: value for key, value in status.items() if key not in of_numbers} | _numbers(status, of_numbers)
    return Run(name, lines, status, done or None, _resolved(path), evaluations.of_run(path))


def _numbers(record: dict[str, Any], names: Collection[str] | None = None) -> dict[str, Any]:
    """The entries, or those of some names, that a picture can show: finite numbers of at most LARGEST."""
    kept = record.items() if names is None else [(key, record[key]) for key in names if key in record]
    return {key: value for key, value in kept if type(value) in (int, float) and abs(value) <= LARGEST}


def _resolved(path: Path) -> dict[str, Any]:
    for folder in [*reversed(list_checkpoints(path)), path]:  # a fetched run has the newest one's file itself
        try:
            return stored(read_text(folder / "config.yaml"))
        except (OSError, yaml.YAMLError, AttributeError):
            continue
    return {}


def colour(number: int) -> str:
    return COLOURS[number] if number < len(COLOURS) else FURTHER


def _line(number: int, width: float) -> dict[str, Any]:
    """How a run's line is drawn."""
    if number >= len(COLOURS):
        return {"color": FURTHER, "lw": 0.8, "zorder": 1}
    return {"color": colour(number), "lw": width}


def draw(runs: list[Run]) -> dict[str, bytes]:
    """PNG by name."""
    with pyplot.style.context(STYLE):
        return {
            "loss": _curves(runs, "Loss", "nats per token" if _language(runs) else "nats", _loss),
            "throughput": _curves(runs, "Throughput", "tokens per second", _throughput),
            "learning_rate": _curves(runs, "Learning rate", "", _learning_rate),
            "step_time": _step_time(runs),
        }


def _language(runs: list[Run]) -> bool:
    return all(run.settings.get("task", "language_model") != "question_answering" for run in runs)


def _curves(runs: list[Run], title: str, unit: str, plot: Any) -> bytes:
    handles = _legend(runs, losses=plot is _loss)
    columns = _columns(handles)
    rows = math.ceil(len(handles) / columns)
    figure, axes = pyplot.subplots(figsize=(7.2, 3.9 + 0.24 * rows), layout="constrained")
    factors, label = _horizontal(runs)
    for number, (run, factor) in enumerate(zip(runs, factors, strict=True)):
        plot(axes, run, factor, number)
    axes.set_title(f"{title}  " + (f"({unit})" if unit else ""))
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    if plot is _loss:
        _leave_out_the_fall(axes, runs, factors)
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    if not axes.lines:
        axes.text(0.5, 0.5, "no figures yet", transform=axes.transAxes, ha="center", color="#888888")
    return _png(figure)


def _legend(runs: list[Run], losses: bool) -> list[Line2D]:
    names = list(enumerate(runs))[: len(COLOURS)] if len(runs) > 1 else []
    handles = [Line2D([], [], color=colour(n), lw=2, label=_label(run.name)) for n, run in names]
    if (further := len(runs) - len(COLOURS)) > 0:
        handles.append(Line2D([], [], color=FURTHER, lw=0.8, label=f"{further} more"))
    if losses:
        handles.append(Line2D([], [], color="#666666", lw=1.6, label="training"))
        handles.append(
            Line2D([], [], color="#666666", lw=1.6, ls="--", marker="o", ms=4, mfc="white", label="validation")
        )
    return handles


def shortened(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME // 2]}…{name[-(NAME // 2 - 1) :]}"


def _label(name: str) -> str:
    """A run's name for matplotlib, which takes what stands between two dollar signs for TeX."""
    return shortened(name).replace("$", r"\$")


def _columns(handles: list[Line2D]) -> int:
    """Columns of the legend: no row is wider than the picture, about 90 characters at this size."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    return max(1, min(len(handles), 90 // (longest + 8)))


def _leave_out_the_fall(axes: Any, runs: list[Run], factors: list[int]) -> None:
    """End the loss axis where the steep first tenth ends: the losses to compare lie below.

    A run that has not come so far shows its last point.
    """
    places = [[step * factor for step in run.series("loss")[0]] for run, factor in zip(runs, factors, strict=True)]
    begin = max((end[-1] for end in places if end), default=0) / 10
    series = [_smoothed(run.series("loss")[1]) for run in runs]
    if all(len(values) <= FEW_POINTS for values in series):
        return
    above = [
        max(
            [value for step, value in zip(steps, values, strict=True) if step >= begin] or values[-1:],
            default=-math.inf,
        )
        for steps, values in zip(places, series, strict=True)
    ]
    top, lowest = max(above), min(min(run.series(name)[1], default=math.inf) for run in runs for name in LOSSES)
    if lowest < top:
        axes.set_ylim(lowest - 0.06 * (top - lowest), top + 0.04 * (top - lowest))


def _horizontal(runs: list[Run]) -> tuple[list[int], str]:
    """Factors for the steps of each run: the axis shows tokens if the runs differ in tokens per step."""
    per_step = [run.settings.get("tokens_per_step") for run in runs]
    if None in per_step or len(set(per_step)) == 1 or not _language(runs):
        return [1] * len(runs), "step"
    return [int(count or 1) for count in per_step], "tokens"


def _loss(axes: Any, run: Run, factor: int, number: int) -> None:
    steps, values = run.series("loss")
    places = [step * factor for step in steps]
    smooth = _smoothed(values)
    if number >= len(COLOURS):
        axes.plot(places, smooth, **_line(number, 0.8))
        return
    shade = colour(number)
    if len(values) > FEW_POINTS:
        axes.plot(places, values, color=shade, lw=0.8, alpha=0.25)
    axes.plot(places, smooth, color=shade, lw=1.8, **_marked(values))
    steps, values = run.series("validation_loss")
    axes.plot([s * factor for s in steps], values, color=shade, lw=1.4, ls="--", marker="o", ms=4.5, mfc="white")


def _smoothed(values: list[float]) -> list[float]:
    """A centred mean over 3 % of the points, so without a lag; few points as they are."""
    if len(values) <= FEW_POINTS:
        return values
    reach = max(1, len(values) // 66)
    sums = [0.0, *itertools.accumulate(values)]
    ends = [(max(0, place - reach), min(len(values), place + reach + 1)) for place in range(len(values))]
    return [(sums[end] - sums[begin]) / (end - begin) for begin, end in ends]


def _learning_rate(axes: Any, run: Run, factor: int, number: int) -> None:
    steps, values = run.series("learning_rate")
    axes.plot([s * factor for s in steps], values, **_line(number, 1.8), **_marked(values))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)


def _throughput(axes: Any, run: Run, factor: int, number: int) -> None:
    steps, values = run.series("tokens_per_second")
    axes.plot([s * factor for s in steps], values, **_line(number, 1.6), **_marked(values))
    # Limits that were set once no longer adapt to later runs.
    axes.set_ylim(0, max([axes.get_ylim()[1] if number else 0, *(1.05 * value for value in values)]) or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(_short))


def _marked(values: list[float]) -> dict[str, Any]:
    return {"marker": "o", "ms": 3.5} if len(values) <= FEW_POINTS else {}


def split(run: Run) -> dict[str, float] | None:
    """Mean seconds of each part of a step over the run, weighted by steps; None where the run did not measure."""
    lines = [line for line in run.lines if line.get("step_seconds") is not None]
    if not lines:
        return None
    total, before, sums = 0, 0, dict.fromkeys(PARTS, 0.0)
    for line in lines:
        steps = int(line["step"]) - before
        total, before = total + steps, int(line["step"])
        parts = {name: float(line.get(name) or 0.0) for name in PARTS if name != "other"}
        inner = parts["compute_seconds"] + parts["communication_seconds"] + parts["data_seconds"]
        parts["other"] = max(0.0, float(line["step_seconds"]) - inner)
        for name, value in parts.items():
            sums[name] += value * steps
    return {name: value / max(1, total) for name, value in sums.items()}


def _step_time(runs: list[Run]) -> bytes:
    figure, axes = pyplot.subplots(figsize=(7.2, max(2.4, 1.5 + 0.45 * len(runs))), layout="constrained")
    splits = [split(run) for run in runs]
    longest = max((sum(parts.values()) for parts in splits if parts), default=0.0)
    factor, unit = (1000.0, "ms") if longest < 1 else (1.0, "s")
    for place, parts in enumerate(splits):
        if parts is None:
            continue
        left = 0.0
        for name, (_, shade) in PARTS.items():
            width = parts[name] * factor
            axes.barh(place, width, left=left, color=shade, height=0.62)
            if parts[name] > 0.16 * longest:
                dark = name == "compute_seconds"
                label = f"{width:.3g}"
                axes.text(
                    left + width / 2, place, label, ha="center", va="center", color="white" if dark else "#222222"
                )
            left += width
        axes.text(left + 0.01 * longest * factor, place, f"{left:.3g} {unit}", va="center", color="#222222")
    axes.set_title(f"Time of a step  ({unit})")
    axes.set_yticks(range(len(runs)), [_label(run.name) for run in runs])
    for tick, number in zip(axes.get_yticklabels(), range(len(runs)), strict=True):
        tick.set_color(colour(number))
        tick.set_fontweight("bold")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, longest * factor * 1.14 or 1)
    shown = [part for name, part in PARTS.items() if name != "other" or any(p and p[name] > 0 for p in splits)]
    handles = [Rectangle((0, 0), 1, 1, color=shade) for _, shade in shown]
    figure.legend(handles, [name for name, _ in shown], loc="outside lower center", ncols=len(shown))
    if longest == 0:
        axes.text(0.5, 0.5, "no figures yet", transform=axes.transAxes, ha="center", color="#888888")
    return _png(figure)


def _short(value: float, _: Any = None) -> str:
    """12,000 as 12k."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    pyplot.close(figure)
    return buffer.getvalue()
