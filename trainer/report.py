"""One page about one or several runs: `python -m trainer.report RUN [RUN...] --output FOLDER`.

It shows figures side by side, charts, settings that differ and samples, in one file that loads nothing. Vega, which
draws the charts, stands in it (0.9 MB). Runs that are unfinished, were interrupted or have few points are shown as far
as they got.
"""

import argparse
import base64
import functools
import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from trainer.config import schema
from trainer.config.paths import folder
from trainer.contract import MACHINE_SETTINGS, differing
from trainer.errors import UserError, usage
from trainer.export import charts, evaluations
from trainer.export.charts import colour
from trainer.export.runs import Run, read_runs

MANY = 4
"""Up to so many runs have a column each in the tables; more have a row each."""
VEGA_LITE = "6.1"
"""Of the versions in vl-convert 1.9.0. 6.4 shows `undefined` for every text at the nearest point (findings/)."""
TEMPLATE, SCRIPT = (Path(__file__).with_suffix(suffix) for suffix in (".html", ".js"))


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    best: bool = False
    """Whether it is the best of several runs."""
    colour: str = ""
    """Of the run that it names."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    title: str
    heads: list[Any]
    """A cell or a text for each column."""
    rows: list[list[Any]]

    def turned(self) -> "Table":
        """With a row for each column."""
        heads, *rows = map(list, zip(self.heads, *self.rows, strict=True))
        return Table(self.title, heads, rows)


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.report", description="Compare runs at a glance.")
    parser.add_argument("runs", nargs="+", type=folder, metavar="RUN", help="run directories")
    parser.add_argument("--output", required=True, type=folder, metavar="FOLDER", help="where index.html goes")
    options = parser.parse_args(arguments)
    shown = page(read_runs(options.runs), vega())
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "index.html").write_text(shown, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {options.output}: cannot be written ({error.strerror})") from None
    print(f"wrote {options.output / 'index.html'}")
    return 0


def page(runs: list[Run], script: str) -> str:
    """Render the self-contained HTML page. script: what draws its charts; it runs no other."""
    names = ", ".join(run.name for run in runs)
    known = [run for run in runs if run.settings]
    judged = [[run.name, *row] for run in runs for row in run.evaluations]
    benchmarks = [Table("Benchmarks", ["run", *evaluations.HEADER], judged)] if judged else []
    answers = any(run.last("f1") is not None for run in runs)
    samples = [(run.name, str(run.done["sample"])) for run in runs if run.done and run.done.get("sample")]
    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        title=names if len(runs) <= 2 else f"{len(runs)} runs",
        note=_note(runs),
        summary=_compared("", [each for each in FIGURES if each.name != "F1" or answers], runs),
        charts=charts.draw(runs),
        tables=[*benchmarks, *_settings(known), _compared("Where and when", ORIGIN, runs)],
        samples=samples,
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


@functools.cache
def vega() -> str:
    """Vega, Vega-Lite and report.js as text that a script element can hold. Takes two seconds."""
    # Here alone: the package is V8, for which nobody waits who only reads a run.
    import vl_convert

    script = vl_convert.javascript_bundle(SCRIPT.read_text("utf-8"), VEGA_LITE)
    return script.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _note(runs: list[Run]) -> str:
    going = [run.name for run in runs if run.state not in ("done", "failed")]
    failed = [f" {run.name} failed: {run.status['message']}." for run in runs if run.state == "failed"]
    done = "" if failed else "All finished." if len(runs) > 1 else "Finished."
    note = f"Not finished: {', '.join(going)}." if going else done
    slow = [f" Communication slows {run.name}: {run.status['advice']}." for run in runs if run.status.get("advice")]
    return "".join([note, *failed, *slow, f" Page of {_date(time.time())}."])


def _compared(title: str, columns: list["Column"], runs: list[Run]) -> Table:
    """The figures of each run; the best are marked where several runs are done and differ."""
    rows: list[list[Any]] = [[Cell(run.name, colour=colour(number))] for number, run in enumerate(runs)]
    for column in columns:
        values = [column.value(run) for run in runs]
        texts = ["–" if value is None else column.show(value) for value in values]
        done = {
            value: text
            for run, value, text in zip(runs, values, texts, strict=True)
            if run.done and column.best and value is not None and math.isfinite(value)
        }
        best = done[column.best(done)] if column.best and len(set(done.values())) > 1 else None
        for row, run, text in zip(rows, runs, texts, strict=True):
            row.append(Cell(text, best=bool(run.done) and text == best))
    return _placed(Table(title, ["run", *(column.name for column in columns)], rows))


def _placed(table: Table) -> Table:
    """A column for each of few runs; a row for each of many, as a sweep has."""
    return table if len(table.rows) > MANY else table.turned()


def _settings(runs: list[Run]) -> Iterator[Table]:
    """The settings in which the runs differ, and those in which all differ from the defaults."""
    if not runs:
        return
    defaults = schema.flat(schema.Config())
    differ = differing([run.settings for run in runs])
    if differ:
        rows = [[run.name, *(run.settings.get(key, "–") for key in differ)] for run in runs]
        yield _placed(Table("Settings that differ between the runs", ["run", *differ], rows))
    own, kept = runs[0].settings, {*differ, *MACHINE_SETTINGS}
    changed = [key for key in own if key not in kept and str(own[key]) != str(defaults.get(key))]
    if changed:
        title = "Settings that differ from the defaults" + (" in all of them" if len(runs) > 1 else "")
        rows = [[key, runs[0].settings.get(key), defaults.get(key)] for key in changed]
        yield Table(title, ["setting", "value", "default"], rows)


def _perplexity(run: Run) -> float | None:
    loss = run.last("validation_loss")
    return None if loss is None or run.answers else evaluations.perplexity(loss)


def _data(run: Run) -> str:
    return PurePath(str(run.settings.get("data.directory") or run.settings.get("question_answering.train") or "–")).name


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


@dataclass(frozen=True)
class Column:
    """A figure of a run in the summary."""

    name: str
    value: Callable[[Run], Any]
    """None: the run has none."""
    show: Callable[[Any], str] = str
    best: Callable[[Any], Any] | None = None
    """Picks the best of several values."""


def _progress(run: Run) -> str:
    return f"{run.step:,}" + (f" / {run.status['steps']:,}" if run.status.get("steps") else "")


FIGURES = [
    Column("state", lambda run: run.state),
    Column("step", _progress),
    Column("training loss", lambda run: run.last("loss"), "{:.4f}".format, min),
    Column("validation loss", lambda run: run.last("validation_loss"), "{:.4f}".format, min),
    Column("perplexity", _perplexity, "{:.2f}".format, min),
    Column("bits/byte", lambda run: run.last("bits_per_byte"), "{:.4f}".format, min),
    Column("F1", lambda run: run.last("f1"), "{:.2f}".format, max),
    Column("tokens/s", lambda run: run.mean("tokens_per_second"), "{:,.0f}".format, max),
    Column("MFU", lambda run: run.mean("mfu"), "{:.1%}".format, max),
    Column("wire", lambda run: run.wire, "{:.1%}".format),
    Column("training time", lambda run: run.training_seconds, _duration),
    Column("memory", lambda run: run.last("memory_bytes"), lambda count: f"{count / 2**30:.2f} GiB"),
]
ORIGIN = [
    Column("workers", lambda run: run.status.get("world_size")),
    Column("machine", lambda run: run.status.get("machine")),
    Column("stack", lambda run: run.status.get("stack")),
    Column("data", _data),
    Column("began", lambda run: run.lines[0].get("time") if run.lines else None, _date),
    Column("last figure", lambda run: run.lines[-1].get("time") if run.lines else None, _date),
]


if __name__ == "__main__":
    sys.exit(main())
