"""One page about one or several runs: `python -m trainer.report RUN [RUN...] --output FOLDER`.

Figures side by side, pictures, settings that differ, samples: one file without a script. Runs that are still going,
were interrupted or have few points are shown as far as they got.
"""

import argparse
import base64
import math
import sys
from html import escape
from pathlib import Path
from typing import Any

from trainer.config import schema
from trainer.errors import EXIT_USAGE, UserError
from trainer.export import evaluations, plots
from trainer.export.plots import Run, colour, shortened

HIDDEN = {"run.directory", "metrics.wandb_project", "metrics.prometheus_port"}
"""Settings of the machine, not of the training."""
CSS = """
:root { color-scheme: light; }
body { font: 14px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #222; background: #f6f7f9;
  margin: 0; }
main { max-width: 1360px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 10px; }
p.note { color: #666; margin: 0 0 16px; }
.card { background: #fff; border: 1px solid #e3e5e8; border-radius: 8px; overflow-x: auto; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 16px; }
.grid .card { padding: 10px; } img { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; } th, td { padding: 7px 12px; text-align: left; white-space: nowrap; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 130px; max-width: 230px; }
th { font-weight: 600; color: #555; border-bottom: 1px solid #e3e5e8; } tr + tr td { border-top: 1px solid #f0f1f3; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.best { font-weight: 700; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 8px; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { white-space: pre-wrap; margin: 0; padding: 12px 16px; } .state { color: #666; }
h3 { font-size: 14px; margin: 0; padding: 10px 16px 0; }
"""
Column = tuple[str, str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.report", description="Compare runs at a glance.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="where index.html and PNGs go")
    options = parser.parse_args(arguments)
    try:
        write(plots.read_runs(options.runs), options.output)
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
    output.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(runs)
    for name, content in pictures.items():
        (output / f"{name}.png").write_bytes(content)
    (output / "index.html").write_text(page(runs, pictures), encoding="utf-8")


def page(runs: list[Run], pictures: dict[str, bytes]) -> str:
    """HTML that needs nothing beside itself."""
    names = ", ".join(run.name for run in runs)
    images = "".join(_image(name, content) for name, content in pictures.items())
    parts = [
        f"<h1>{escape(names if len(runs) <= 2 else f'{len(runs)} runs')}</h1>",
        f'<p class="note">{escape(_note(runs))}</p>',
        f'<div class="card">{_figures(runs)}</div>',
        f'<h2>Curves</h2><div class="grid">{images}</div>',
        _evaluations(runs),
        _settings(runs),
        _samples(runs),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(names)}</title>'
    head += f"<style>{CSS}</style>"
    body = "".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}</main></body></html>\n'


def _wire(run: Run) -> float | None:
    """The part of a step that waits for the exchange with the other workers."""
    waited, whole = _mean(run, "communication_seconds"), _mean(run, "step_seconds")
    return waited / whole if waited is not None and whole else None


def _note(runs: list[Run]) -> str:
    going = [run.name for run in runs if run.state not in ("done", "failed")]
    note = f"Not finished: {', '.join(going)}." if going else "All finished." if len(runs) > 1 else "Finished."
    slow = [f" {run.name} waits for the exchange: {run.status['advice']}." for run in runs if run.status.get("advice")]
    return note + "".join(slow)


def _figures(runs: list[Run]) -> str:
    """One row a run; the best of a column in bold where runs compete."""
    columns: list[Column] = [
        ("training loss", "min", lambda run: run.last("loss")),
        ("validation loss", "min", lambda run: run.last("validation_loss")),
        ("perplexity", "min", _perplexity),
        ("bits/byte", "min", lambda run: run.last("bits_per_byte")),
        *([("F1", "max", lambda run: run.last("f1"))] if any(run.last("f1") is not None for run in runs) else []),
        ("tokens/s", "max", lambda run: _mean(run, "tokens_per_second")),
        ("MFU", "max", lambda run: _mean(run, "mfu")),
        ("wire", "min", _wire),
        ("training time", "", lambda run: run.training_seconds),
        ("memory", "", lambda run: run.last("memory_bytes")),
    ]
    head = "<th>run</th><th>state</th><th class=number>step</th><th class=number>workers</th>"
    head += "".join(f"<th class=number>{name}</th>" for name, _, _ in columns)
    values = [[value(run) for _, _, value in columns] for run in runs]
    rows = []
    for number, run in enumerate(runs):
        steps = f"{run.step:,} / {run.status['steps']:,}" if run.status.get("steps") else f"{run.step:,}"
        cells = (
            f'<td class=name><span class="swatch" style="background:{colour(number)}"></span>{escape(run.name)}</td>'
        )
        cells += f"<td class=state>{escape(run.state)}</td><td class=number>{steps}</td>"
        cells += f"<td class=number>{escape(str(run.status.get('world_size', '')))}</td>"
        for index, (name, better, _) in enumerate(columns):
            column = [row[index] for row in values if row[index] is not None]
            best = better and len(column) > 1 and values[number][index] == (min if better == "min" else max)(column)
            shown = _shown(name, values[number][index])
            cells += f'<td class="number{" best" if best else ""}">{shown}</td>'
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _perplexity(run: Run) -> float | None:
    loss = run.last("validation_loss")
    if loss is None or run.settings.get("task") == "question_answering":
        return None
    return math.exp(min(loss, 700.0))


def _mean(run: Run, name: str) -> float | None:
    """Over the log lines but the first, which holds the warm-up of caches and compilers."""
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


def _image(name: str, content: bytes) -> str:
    data = base64.b64encode(content).decode()
    return f'<div class="card"><img alt="{name.replace("_", " ")}" src="data:image/png;base64,{data}"></div>'


def _evaluations(runs: list[Run]) -> str:
    """What benchmarks said of each run's checkpoints."""
    rows = [(run.name, *row) for run in runs for row in run.evaluations]
    if not rows:
        return ""
    names = ("run", *evaluations.HEADER)
    right = ["" if name in ("run", *evaluations.TEXTS) else " class=number" for name in names]
    lines = [
        "".join(f"<{tag}{place}>{escape(cell)}</{tag}>" for cell, place in zip(row, right, strict=True))
        for tag, row in [("th", names), *(("td", row) for row in rows)]
    ]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<h2>Benchmarks</h2><div class="card"><table>{table}</table></div>'


def _settings(runs: list[Run]) -> str:
    known = [run for run in runs if run.settings]
    if not known:
        return "<h2>Settings</h2><p class=note>No run has a checkpoint yet, which is where its settings are kept.</p>"
    defaults = schema.flat(schema.Config())
    keys = [key for key in dict.fromkeys(key for run in known for key in run.settings) if key not in HIDDEN]
    differing = [key for key in keys if len({str(run.settings.get(key)) for run in known}) > 1]
    changed = [
        key for key in keys if key not in differing and str(known[0].settings.get(key)) != str(defaults.get(key))
    ]
    parts = []
    if len(known) > 1:
        body = _table(differing, known, defaults) if differing else "<pre>None: only chance differs.</pre>"
        parts.append(f'<h2>Settings that differ between the runs</h2><div class="card">{body}</div>')
    if changed:
        title = "Settings that differ from the defaults" + (" in all of them" if len(known) > 1 else "")
        parts.append(f'<h2>{title}</h2><div class="card">{_table(changed, known[:1], defaults)}</div>')
    return "".join(parts)


def _table(keys: list[str], runs: list[Run], defaults: dict[str, Any]) -> str:
    several = len(runs) > 1
    head = "<th>setting</th>" + "".join(
        f"<th>{escape(shortened(run.name)) if several else 'value'}</th>" for run in runs
    )
    rows = [f"<tr>{head}<th>default</th></tr>"]
    for key in keys:
        cells = "".join(f"<td>{escape(str(run.settings.get(key, '–')))}</td>" for run in runs)
        rows.append(
            f"<tr><td><code>{escape(key)}</code></td>{cells}<td class=state>{escape(str(defaults.get(key)))}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _samples(runs: list[Run]) -> str:
    shown = [(run, str(run.done["sample"])) for run in runs if run.done and run.done.get("sample")]
    if not shown:
        return ""
    cards = "".join(
        f'<div class="card"><h3>{escape(run.name)}</h3><pre>{escape(text)}</pre></div>' for run, text in shown
    )
    return f'<h2>Samples</h2><div class="grid">{cards}</div>'


if __name__ == "__main__":
    sys.exit(main())
