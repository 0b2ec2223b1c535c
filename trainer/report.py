"""One page about one or several runs: `python -m trainer.report RUN [RUN...] --output FOLDER`.

It shows figures side by side, pictures, settings that differ and samples, in one file without scripts. Runs that are
unfinished, were interrupted or have few points are shown as far as they got.
"""

import argparse
import base64
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment

from trainer.config import schema
from trainer.config.paths import folder
from trainer.contract import MACHINE_SETTINGS
from trainer.errors import UserError, usage
from trainer.export import evaluations, plots
from trainer.export.plots import Run, colour, shortened

MANY = 4
"""Runs that have a column each in the table of settings."""
Column = tuple[str, Any, Callable[[Run], float | None]]
TEMPLATE = Path(__file__).with_suffix(".html")


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.report", description="Compare runs at a glance.")
    parser.add_argument("runs", nargs="+", type=folder, metavar="RUN", help="run directories")
    parser.add_argument("--output", required=True, type=folder, metavar="FOLDER", help="where index.html and PNGs go")
    options = parser.parse_args(arguments)
    runs = plots.read_runs(options.runs)
    try:
        write(runs, options.output)
    except OSError as error:
        raise UserError(f"--output {options.output}: cannot be written ({error.strerror})") from None
    print(f"wrote {options.output / 'index.html'}")
    return 0


def write(runs: list[Run], output: Path) -> None:
    """Write a self-contained index.html, and each picture as a PNG file."""
    output.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(runs)
    for name, content in pictures.items():
        (output / f"{name}.png").write_bytes(content)
    (output / "index.html").write_text(page(runs, pictures), encoding="utf-8")


def page(runs: list[Run], pictures: dict[str, bytes]) -> str:
    """Render the self-contained HTML page."""
    names = ", ".join(run.name for run in runs)
    known = [run for run in runs if run.settings]
    answers = any(run.last("f1") is not None for run in runs)
    columns = [column for column in COLUMNS if answers or column[0] != "F1"]
    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        names=names,
        title=names if len(runs) <= 2 else f"{len(runs)} runs",
        note=_note(runs),
        columns=[name for name, _, _ in columns],
        rows=list(zip(runs, map(colour, range(len(runs))), _figures(runs, columns), strict=True)),
        pictures={name.replace("_", " "): base64.b64encode(found).decode() for name, found in pictures.items()},
        header=("run", *evaluations.HEADER),
        texts=("run", *evaluations.TEXTS),
        evaluations=[(run.name, *row) for run in runs for row in run.evaluations],
        known=known,
        settings=list(_settings(known)) if known else [],
        samples=[(run.name, str(run.done["sample"])) for run in runs if run.done and run.done.get("sample")],
    )


def _wire(run: Run) -> float | None:
    """Fraction of a step spent waiting for the exchange with the other workers."""
    waited, whole = _mean(run, "communication_seconds"), _mean(run, "step_seconds")
    return waited / whole if waited is not None and whole else None


def _note(runs: list[Run]) -> str:
    going = [run.name for run in runs if run.state not in ("done", "failed")]
    note = f"Not finished: {', '.join(going)}." if going else "All finished." if len(runs) > 1 else "Finished."
    slow = [f" Communication slows {run.name}: {run.status['advice']}." for run in runs if run.status.get("advice")]
    return note + "".join(slow)


def _figures(runs: list[Run], columns: list[Column]) -> list[tuple[tuple[str, bool], ...]]:
    """For each run, the text of each column and whether it is the best value among several runs."""
    shown = []
    for name, better, value in columns:
        values = [value(run) for run in runs]
        known = [each for each in values if each is not None]
        best = better(known) if better and len(known) > 1 else None
        shown.append([(_shown(name, each), each is not None and each == best) for each in values])
    return list(zip(*shown, strict=True))


def _perplexity(run: Run) -> float | None:
    loss = run.last("validation_loss")
    if loss is None or run.settings.get("task") == "question_answering":
        return None
    return evaluations.perplexity(loss)


def _mean(run: Run, name: str) -> float | None:
    """Mean over all log lines but the first, which includes the warm-up of caches and compilers."""
    values = run.series(name)[1]
    later = values[1:] or values
    return sum(later) / len(later) if later else None


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name in ("MFU", "wire"):
        return f"{100 * value:.1f} %"
    if name == "training time":
        return _duration(value)
    if name == "memory":
        return f"{value / 2**30:.2f} GiB"
    return f"{value:,.0f}" if name == "tokens/s" else f"{value:.2f}" if name in ("perplexity", "F1") else f"{value:.4f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def _settings(runs: list[Run]) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """Yield each settings table: its title, its heads, and its rows of cells."""
    defaults = schema.flat(schema.Config())
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.settings) if key not in MACHINE_SETTINGS]
    differing = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
    changed = [key for key in keys if key not in differing and str(runs[0].settings.get(key)) != str(defaults.get(key))]

    def rows(keys: list[str], shown: list[Run]) -> list[list[Any]]:
        return [[key, *(run.settings.get(key, "–") for run in shown), defaults.get(key)] for key in keys]

    title = "Settings that differ between the runs"
    if len(runs) > MANY:
        # A row for each run: a sweep has many runs that differ in few keys.
        yield title, ["run", *differing], [[run.name, *(run.settings.get(k, "–") for k in differing)] for run in runs]
    elif len(runs) > 1:
        yield title, ["setting", *(shortened(run.name) for run in runs), "default"], rows(differing, runs)
    if changed:
        title = "Settings that differ from the defaults" + (" in all of them" if len(runs) > 1 else "")
        yield title, ["setting", "value", "default"], rows(changed, runs[:1])


COLUMNS: list[Column] = [
    ("training loss", min, lambda run: run.last("loss")),
    ("validation loss", min, lambda run: run.last("validation_loss")),
    ("perplexity", min, _perplexity),
    ("bits/byte", min, lambda run: run.last("bits_per_byte")),
    ("F1", max, lambda run: run.last("f1")),
    ("tokens/s", max, lambda run: _mean(run, "tokens_per_second")),
    ("MFU", max, lambda run: _mean(run, "mfu")),
    ("wire", min, _wire),
    ("training time", None, lambda run: run.training_seconds),
    ("memory", None, lambda run: run.last("memory_bytes")),
]
"""Name, function that picks the best of several values, and the value of a run."""


if __name__ == "__main__":
    sys.exit(main())
