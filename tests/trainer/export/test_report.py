"""The report shows what the runs wrote, also of runs that have hardly begun."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import toy
from trainer import report
from trainer.checkpoint.format import checkpoint_folder
from trainer.config import schema as config
from trainer.export import model_card, plots
from trainer.models.origin import Source
from trainer.train.metrics import Reporter, StepFigures


def make(run: Path, steps: int, total: int = 100, done: bool = False, **changes: Any) -> Path:
    """A run directory as training leaves it after `steps`, written by what writes it in training."""
    run.mkdir(parents=True)
    settings = toy.configuration(steps=total, metrics__tensorboard="false")
    reporter = Reporter(run, settings, toy.place(size=4))
    reporter.start(0, {})
    reporter.validation(0, 10.8)
    for step in range(10, steps + 1, 10):
        times: dict[str, Any] = {
            "step_seconds": 2.0,
            "data_seconds": 0.1,
            "compute_seconds": 1.5,
            "communication_seconds": 0.3,
        }
        figures = StepFigures(
            step=step,
            loss=10.0 - step / 20,
            learning_rate=6e-4,
            gradient_norm=1.0,
            tokens_per_second=250_000.0,
            tokens_per_second_per_device=62_500.0,
            samples_per_second=244.0,
            eta_seconds=2.0 * (total - step),
            epoch=0.1,
            checkpoint_seconds=0.05,
            memory_bytes=3 * 2**30,
            bytes_sent_per_step=1,
            **times,
        )
        reporter.training(figures)
    if steps:
        reporter.validation(steps, 10.2 - steps / 20, {"bits_per_byte": 2.5})
        path = checkpoint_folder(run, steps)
        path.mkdir(parents=True)
        text = config.resolved(settings)
        for key, value in changes.items():
            text, count = re.subn(rf"(?m)^  {key}: .*$", f"  {key}: {value}", text)
            assert count == 1
        (path / "config.yaml").write_text(text)
    if done:
        reporter.status(state="done")
        (run / "DONE").write_text(json.dumps({"step": steps, "sample": "Rays & <beams> of light"}))
    reporter.close()
    return run


def rows(page: str) -> list[list[str]]:
    """The text of the cells of every table row."""
    found = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.split(r"</t[dh]>", row)][:-1] for row in found]


def test_two_runs_are_compared_in_one_file(tmp_path: Path) -> None:
    first = make(tmp_path / "first", 100, done=True)
    second = make(tmp_path / "second", 40, learning_rate=0.0012)
    output = tmp_path / "report"
    assert report.main([str(first), str(second), "--output", str(output)]) == 0
    assert sorted(path.name for path in output.iterdir()) == [
        "index.html",
        "learning_rate.png",
        "loss.png",
        "step_time.png",
        "throughput.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in output.glob("*.png"))
    page = (output / "index.html").read_text()
    assert page.count('src="data:image/png;base64,') == 4
    assert "http" not in page, "it needs nothing from elsewhere"
    cells = rows(page)
    assert [
        "first",
        "done",
        "100 / 100",
        "4",
        "5.0000",
        "5.2000",
        "181.27",
        "2.5000",
        "250,000",
        "–",
        "15.0 %",
        "3:20 min",
        "3.00 GiB",
    ] in cells
    assert cells[2][:6] == ["second", "training", "40 / 100", "4", "8.0000", "8.2000"]
    assert ["optimizer.learning_rate", "0.0006", "0.0012", "0.0006"] in cells
    assert "run.seed" not in page, "the same in both, and the default"
    assert "Rays &amp; &lt;beams&gt; of light" in page


def test_a_run_that_stopped_or_has_just_begun_is_shown_as_what_it_is(tmp_path: Path) -> None:
    stopped = make(tmp_path / "stopped", 50)
    status = json.loads((stopped / "status.json").read_text())
    (stopped / "status.json").write_text(json.dumps(status | {"updated": time.time() - 1000}))
    with open(stopped / "metrics.jsonl", "a") as file:
        file.write('{"step": 60, "lo')  # torn by a kill
    compiling = make(tmp_path / "compiling", 0)
    ago = {"state": "compiling", "updated": time.time() - 300}
    (compiling / "status.json").write_text(json.dumps(json.loads((compiling / "status.json").read_text()) | ago))
    begun = make(tmp_path / "begun", 0)
    (begun / "status.json").write_text(
        (begun / "status.json").read_text().replace('"world_size": 4', '"world_size": "<b>"')
    )
    empty = make(tmp_path / "empty", 0)
    (empty / "metrics.jsonl").write_text("")
    output = tmp_path / "report"
    report.write(plots.read_runs([stopped, compiling, begun, empty]), output)
    states = {row[0]: row[1:3] for row in rows((output / "index.html").read_text()) if len(row) > 3}
    assert states["stopped"] == ["interrupted", "50 / 100"]
    assert states["compiling"] == ["compiling", "0 / 100"]
    assert states["begun"] == ["starting", "0 / 100"]
    assert "<td class=number>&lt;b&gt;</td>" in (output / "index.html").read_text()
    assert states["empty"] == ["starting", "0 / 100"]
    for one in (begun, empty):
        report.write(plots.read_runs([one]), output)


def test_f1_has_a_column_where_a_run_has_it(tmp_path: Path) -> None:
    run = make(tmp_path / "run", 10)
    assert "F1" not in rows(report.page(plots.read_runs([run]), {}))[0]
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 10, "validation_loss": 1.5, "exact_match": 83.96, "f1": 90.87}\n')
    head, cells = rows(report.page(plots.read_runs([run]), {}))[:2]
    assert cells[head.index("F1")] == "90.87"


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [make(tmp_path / place / "gpt2", 10) for place in ("monday", "tuesday")]
    assert [run.name for run in plots.read_runs([*runs, runs[0]])] == ["monday/gpt2", "tuesday/gpt2"]


def test_the_parts_of_a_step_add_up(tmp_path: Path) -> None:
    parts = plots.split(plots.read(make(tmp_path / "run", 30), "run"))
    assert parts == pytest.approx(
        {
            "compute_seconds": 1.5,
            "communication_seconds": 0.3,
            "data_seconds": 0.1,
            "other": 0.1,
            "checkpoint_seconds": 0.05,
        }
    )


def test_a_folder_that_is_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path), "--output", str(tmp_path / "report")]) == 2
    assert "holds no metrics.jsonl" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    run = make(tmp_path / "run", 10)
    assert report.main([str(run), "--output", str(tmp_path / "file" / "report")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["$\\frac{1}$", "cost $5 or $6", r"\alpha $x_$"])
def test_a_runs_name_is_text_and_no_tex(name: str) -> None:
    lines = [{"step": step, "loss": 1.0, "step_seconds": 1.0} for step in (1, 2)]
    runs = [plots.Run(each, lines, {}, None, {}) for each in (name, "other")]
    assert set(plots.draw(runs)) == {"loss", "throughput", "learning_rate", "step_time"}


def test_the_speed_of_every_run_is_inside_the_picture() -> None:
    from matplotlib.figure import Figure

    def run(speed: float) -> plots.Run:
        lines = [{"step": step, "tokens_per_second": speed} for step in (1, 2)]
        return plots.Run(str(speed), lines, {}, None, {})

    axes = Figure().subplots()
    for number, speed in enumerate((1000.0, 3000.0, 500.0)):
        plots._throughput(axes, run(speed), 1, number)
    assert axes.get_ylim()[0] == 0
    assert 3000 < axes.get_ylim()[1] < 4000


def test_the_perplexity_of_a_diverged_run_is_a_number_in_report_and_model_card(tmp_path: Path) -> None:
    run = make(tmp_path / "run", 20)
    line = json.dumps({"step": 20, "validation_loss": 1000.0})
    (run / "metrics.jsonl").write_text(line + "\n")
    assert "perplexity" in report.page([plots.read(run, "run")], {})
    rows = dict(model_card._figures(Source("model", figures={"validation_loss": 1000.0}), {}, language=True))
    assert float(rows["validation perplexity"]) > 1e300


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: apt-get install chromium")
@pytest.mark.parametrize(
    "names", [("a",), ("gpt2-small-3f2a9c11", "a-very-long-name-of-a-run-that-somebody-chose", "c", "d")]
)
def test_no_table_scrolls_sideways(names: tuple[str, ...], tmp_path: Path) -> None:
    """At 1200 pixels, with every column and with settings that are long."""
    runs = []
    for number, name in enumerate(names):
        figures = {
            name: 0.4123 for name in ("loss", "validation_loss", "bits_per_byte", "mfu", "communication_seconds")
        }
        figures |= {
            "tokens_per_second": 1.2e7,
            "memory_bytes": 7.9e10,
            "f1": 90.87,
            "step_seconds": 1.3,
            "step": 100_000,
        }
        settings = {"model.name": f"/data/weights/{'a-long-name-' * 6}{number}", "steps": 100_000 + number}
        status = {"state": "done", "steps": 100_000, "world_size": 128}
        runs.append(plots.Run(name, [figures, figures], status, {"step": 100_000}, settings))
    measure = "document.title=[...document.querySelectorAll('.card')].map(c=>c.scrollWidth-c.clientWidth).join(' ')"
    page = report.page(runs, {}).replace("</body>", f"<script>{measure}</script></body>")
    (tmp_path / "index.html").write_text(page)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", f"file://{tmp_path / 'index.html'}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<title>([\d ]+)</title>", shown)
    assert found is not None
    assert set(found[1].split()) == {"0"}, found[1]


def test_a_sweep_shows_the_first_runs_in_colour_and_a_row_of_settings_for_each(tmp_path: Path) -> None:
    runs = [make(tmp_path / f"lr-{number}", 20, done=True, learning_rate=number / 1000) for number in range(1, 10)]
    assert report.main([*map(str, runs), "--output", str(tmp_path / "report")]) == 0
    cells = rows((tmp_path / "report" / "index.html").read_text())
    assert ["run", "optimizer.learning_rate"] in cells
    assert ["lr-9", "0.009"] in cells
    colours = [plots.colour(number) for number in range(9)]
    assert len(set(colours)) == len(plots.COLOURS) + 1, "no two of the best look alike"
    names = [str(handle.get_label()) for handle in plots._legend(plots.read_runs(runs), losses=True)]
    assert names == [*(f"lr-{number}" for number in range(1, 8)), "2 more", "training", "validation"]
