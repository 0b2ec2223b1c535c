"""Charts of runs in Vega-Lite, each with its data: charts.yaml has what does not depend on the runs.

A run has the same colour in all charts. The colours are Okabe and Ito's, which people with any colour vision tell apart
(jfly.uni-koeln.de/color, 2008). Names of runs are values in the data, never part of an
expression or of a field's name.
"""

import copy
import math
from pathlib import Path
from typing import Any

import yaml

from trainer.contract import differing
from trainer.export.runs import Run, Series

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FURTHER = "#c4c4c4"
"""Of runs beyond these colours, which `trainyard compare` gives in their ranking."""
PARTS = ("compute", "communication", "data", "other", "checkpoint")
POINTS = 1500
"""Points of a line chart, of all runs together: three such charts are 400 kB of a page."""
FEW_POINTS = 25
"""Up to this many points each is marked: a line alone would not show one or two."""
SHORT = 18
"""Characters of names of which two stand side by side in a legend at 400 pixels."""
DECADE = 10
"""Values that differ by this factor or more get a logarithmic axis: a linear one shows the largest alone."""
TEMPLATES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
Chart = dict[str, Any]
"""A Vega-Lite specification."""


def draw(runs: list[Run]) -> dict[str, Chart]:
    """The charts that have data, by name."""
    drawn = {
        "loss": loss(runs),
        "sweep": sweep(runs),
        "throughput": curves(runs, "Throughput", "tokens per second", {"": "tokens_per_second"}, {"zero": True}),
        "learning-rate": learning_rate(runs),
        "step-time": step_time(runs),
    }
    return {name: chart for name, chart in drawn.items() if chart["data"]["values"]}


def loss(runs: list[Run]) -> Chart:
    """The axis leaves out the steep first tenth: what there is to compare lies below.

    A run that has not come so far shows its last point.
    """
    factors, _ = _horizontal(runs)
    begin = max((run.step * factor for run, factor in zip(runs, factors, strict=True)), default=0) / 10
    shown: list[float] = []
    for run, factor in zip(runs, factors, strict=True):
        points = run.series("loss")
        late = [value for step, value in points + run.series("validation_loss") if step * factor >= begin]
        shown += late or [value for _, value in points[-1:]]
    few = all(len(run.series("loss")) <= FEW_POINTS for run in runs)
    scale = {"zero": False} if few or not shown else {"domain": [min(shown), max(shown)], "nice": True}
    unit = ("nats" if any(run.answers for run in runs) else "nats per token") + ", dashed: validation"
    return curves(runs, "Loss", unit, {"training": "loss", "validation": "validation_loss"}, scale, smooth=True)


def learning_rate(runs: list[Run]) -> Chart:
    rates = [[rate for _, rate in run.series("learning_rate") if rate > 0] for run in runs]
    peaks = [max(found) for found in rates if found]
    scale: dict[str, Any] = {"zero": True}
    if peaks and max(peaks) >= DECADE * min(peaks):
        # Two decades below the lowest peak: the end of a decay to zero has no place on it.
        scale = {"type": "log", "domain": [min(peaks) / DECADE**2, max(peaks)], "clamp": True}
    chart = curves(runs, "Learning rate", "", {"": "learning_rate"}, scale)
    chart["encoding"]["y"]["axis"] = {"format": "~g"}
    return chart


def curves(
    runs: list[Run], title: str, unit: str, figures: dict[str, str], scale: dict[str, Any], smooth: bool = False
) -> Chart:
    """Lines over steps. figures: kind of line -> its figure. smooth: over 3 % of the points, where there are many."""
    factors, across = _horizontal(runs)
    rows: list[dict[str, Any]] = []
    longest = 0
    for run, factor, named in reversed(list(zip(runs, factors, _named(runs), strict=True))):  # the first lies on top
        for kind, figure in figures.items():
            points = thinned(run.series(figure), POINTS // len(runs) // len(figures))
            longest = max(longest, len(points))
            rows += [{**named, "kind": kind, "x": x * factor, "y": float(f"{y:.6g}")} for x, y in points]
    chart = _chart("curves", title, unit, rows)
    _, mean, _, hover = chart["layer"]
    reach = max(1, longest // 66) if smooth and longest > FEW_POINTS else 0
    mean["transform"][1]["frame"] = [-reach, reach]
    mean["mark"]["point"] = longest <= FEW_POINTS
    chart["encoding"]["color"] |= _legend(runs)
    chart["encoding"]["x"]["title"] = across
    chart["encoding"]["y"]["scale"] = scale
    _, x, y, kind = hover["encoding"]["tooltip"]
    x["title"], y["title"] = across, title.lower()
    if len(figures) == 1:
        hover["encoding"]["tooltip"].remove(kind)
    return chart


def sweep(runs: list[Run]) -> Chart:
    """The last validation loss over the setting that the runs vary; without data if they are no sweep."""
    key = swept(runs)
    rows: list[dict[str, Any]] = [
        {**named, "x": run.settings[key], "y": loss, "step": run.step, "state": run.state}
        for run, named in zip(runs, _named(runs), strict=True)
        if key and (loss := run.last("validation_loss")) is not None and math.isfinite(loss)
    ]
    unfinished = any(row["state"] != "done" for row in rows)
    chart = _chart("sweep", "Validation loss at the end", "pale: of a run that is not done" if unfinished else "", rows)
    values: list[float] = [row["x"] for row in rows]
    if values and min(values) > 0 and max(values) >= DECADE * min(values):
        chart["encoding"]["x"]["scale"]["type"] = "log"
    chart["encoding"]["x"]["axis"]["values"] = sorted(set(values))
    _, points = chart["layer"]
    points["encoding"]["color"] |= _legend(runs)
    title = (key or "").rpartition(".")[2].replace("_", " ")
    chart["encoding"]["x"]["title"] = points["encoding"]["tooltip"][1]["title"] = title
    return chart


def swept(runs: list[Run]) -> str | None:
    """The one setting in which runs differ, if it is a number of at least three values."""
    keys = differing([run.settings for run in runs])
    values = {run.settings.get(keys[0]) for run in runs} if len(keys) == 1 else set()
    return keys[0] if len(values) > 2 and all(type(value) in (int, float) for value in values) else None


def step_time(runs: list[Run]) -> Chart:
    measured = [(run, parts) for run in runs if (parts := split(run))]
    rows = [
        {"run": run.name, "part": part, "order": order, "value": float(f"{1000 * seconds:.4g}")}
        for run, parts in measured
        for order, (part, seconds) in enumerate(parts.items())
    ]
    chart = _chart("parts", "Time of a step", "milliseconds", rows)
    chart["encoding"]["y"]["axis"]["labels"] = len(runs) > 1
    longest = max((sum(parts.values()) for _, parts in measured), default=0.0)
    chart["encoding"]["x"]["scale"] = {"domainMax": 1300 * longest}  # leaves room for the sum
    return chart


def split(run: Run) -> dict[str, float] | None:
    """Mean seconds of each part of a step; None where the run did not measure."""
    whole = run.mean("step_seconds")
    if whole is None:
        return None
    parts = {name: run.mean(f"{name}_seconds") or 0.0 for name in PARTS}
    parts["other"] = max(0.0, whole - parts["compute"] - parts["communication"] - parts["data"])
    return parts


def thinned(points: Series, most: int) -> Series:
    """At most so many points: the means of neighbours, each at its last step."""
    size = max(1, math.ceil(len(points) / max(1, most)))
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def colour(number: int) -> str:
    return COLOURS[number] if number < len(COLOURS) else FURTHER


def _named(runs: list[Run]) -> list[dict[str, str]]:
    """For each run the fields that name it; the runs without a colour of their own share an entry of the legend."""
    more = f"{len(runs) - len(COLOURS)} more"
    return [{"run": run.name, "colour": run.name if n < len(COLOURS) else more} for n, run in enumerate(runs)]


def _legend(runs: list[Run]) -> dict[str, Any]:
    domain = list(dict.fromkeys(named["colour"] for named in _named(runs)))
    scale = {"domain": domain, "range": [colour(number) for number in range(len(domain))]}
    columns = 1 if max(map(len, domain)) > SHORT else 2
    return {"scale": scale, "legend": {"columns": columns} if len(runs) > 1 else None}


def _chart(template: str, title: str, subtitle: str, rows: list[dict[str, Any]]) -> Chart:
    title_ = {"text": title, "subtitle": subtitle}
    return copy.deepcopy(TEMPLATES["every"] | TEMPLATES[template]) | {"title": title_, "data": {"values": rows}}


def _horizontal(runs: list[Run]) -> tuple[list[int], str]:
    """Factors for the steps of each run: the axis shows tokens if the runs differ in tokens per step."""
    per_step = [run.settings.get("tokens_per_step") for run in runs]
    if None in per_step or len(set(per_step)) == 1 or any(run.answers for run in runs):
        return [1] * len(runs), "step"
    return [int(count or 1) for count in per_step], "tokens"
