"""The report shows what the runs wrote, also of runs that have hardly begun."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from tests.trainer import toy
from trainer import report
from trainer.checkpoint.format import checkpoint_folder
from trainer.config import schema as config
from trainer.contract import STACK
from trainer.export import charts, model_card
from trainer.export.runs import Run, read_runs
from trainer.models.loading import Source
from trainer.train import metrics
from trainer.train.metrics import Reporter, StepFigures


def make(run: Path, steps: int, total: int = 100, done: bool = False, **changes: Any) -> Path:
    """A run directory as training leaves it after `steps`, written by what writes it in training."""
    run.mkdir(parents=True)
    settings = toy.configuration(steps=total, metrics__tensorboard="false", **changes)
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
        (path / "config.yaml").write_text(config.resolved(settings))
    if done:
        reporter.status(state="done")
        (run / "DONE").write_text(json.dumps({"step": steps, "sample": "Rays & <beams> of light"}))
    reporter.close()
    return run


def page(*folders: Path) -> str:
    """Without what draws the charts, which takes seconds to put together."""
    return report.page(read_runs(list(folders)), "")


def column(page: str, number: int = 1) -> dict[str, str]:
    """The figures of a run by their names."""
    return {row[0]: row[number] for row in rows(page) if len(row) > number}


def rows(page: str) -> list[list[str]]:
    """The text of the cells of every table row."""
    found = re.findall(r"<tr>(.*?)</tr>", page.partition("<script")[0], re.DOTALL)
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.split(r"</t[dh]>", row)][:-1] for row in found]


@pytest.fixture(scope="module")
def vega() -> str:
    return report.vega()


def test_a_page_is_one_file_that_loads_nothing(tmp_path: Path, vega: str) -> None:
    run, output = make(tmp_path / "run", 100, done=True), tmp_path / "report"
    assert report.main([str(run), "--output", str(output)]) == 0
    assert [path.name for path in output.iterdir()] == ["index.html"]
    text = (output / "index.html").read_text()
    assert len(text) < 1_500_000
    digest = base64.b64encode(hashlib.sha256(vega.encode()).digest()).decode()
    assert (
        f"""content="default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"""
        in text
    )
    assert not re.search(r"<(link|script|img|iframe)[^>]* (src|href)=", text.replace(vega, ""))


def test_the_figures_of_two_runs_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STACK, "gcp-a100")
    monkeypatch.setattr(metrics, "read_processor", lambda: ("Xeon & Co", set()))
    first = make(tmp_path / "first", 100, done=True, data__directory="/data/datasets/opticks")
    text = page(first, make(tmp_path / "second", 40, optimizer__learning_rate=0.0012))
    shown = column(text)
    assert shown["run"] == "first"
    assert (shown["state"], shown["step"], shown["workers"]) == ("done", "100 / 100", "4")
    assert (shown["training loss"], shown["validation loss"]) == ("5.0000", "5.2000")
    assert (shown["perplexity"], shown["bits/byte"], shown["tokens/s"]) == ("181.27", "2.5000", "250,000")
    assert (shown["MFU"], shown["wire"], shown["memory"]) == ("–", "15.0%", "3.00 GiB")
    assert shown["training time"] == "3:20 min"
    assert (shown["machine"], shown["stack"], shown["data"]) == ("Xeon & Co", "gcp-a100", "opticks")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", shown["began"])
    shown = column(text, 2)
    assert (shown["state"], shown["step"], shown["training loss"]) == ("training", "40 / 100", "8.0000")
    assert ["optimizer.learning_rate", "0.0006", "0.0012"] in rows(text)
    assert "run.seed" not in text, "the same in both, and the default"
    assert "Rays &amp; &lt;beams&gt; of light" in text


def test_the_best_is_marked_among_runs_that_are_done_and_differ() -> None:
    def run(name: str, loss: float, sent: float, done: bool) -> Run:
        line = {"step": 1, "loss": loss, "bits_per_byte": 1.0, "communication_seconds": sent, "step_seconds": 1.0}
        return Run(name, [line], {}, {"step": 1} if done else None, {})

    text = report.page([run("a", 3.0, 0.5, True), run("b", 2.0, 0.0, True), run("stopped", 1.0, 0.1, False)], "")
    assert re.findall(r'class="best">([^<]*)<', text) == ["2.0000"]


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
    ago |= {"state": "starting", "world_size": "<b>"}
    (begun / "status.json").write_text(json.dumps(json.loads((begun / "status.json").read_text()) | ago))
    empty = make(tmp_path / "empty", 0)
    (empty / "metrics.jsonl").write_text("")
    text = page(stopped, compiling, begun, empty)
    shown = [column(text, number) for number in range(1, 5)]
    assert [each["state"] for each in shown] == ["interrupted", "compiling", "starting", "starting"]
    assert [each["step"] for each in shown] == ["50 / 100", *["0 / 100"] * 3]
    assert "<td>&lt;b&gt;</td>" in text
    assert "No figures yet." in page(empty)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [make(tmp_path / place / "gpt2", 10) for place in ("monday", "tuesday")]
    assert [run.name for run in read_runs([*runs, runs[0]])] == ["monday/gpt2", "tuesday/gpt2"]
    inherited = make(tmp_path / "constructor", 10)  # a name of JavaScript's own, under which Vega draws nothing
    assert [run.name for run in read_runs([inherited])] == [f"{tmp_path.name}/constructor"]


def test_a_folder_that_is_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], vega: str) -> None:
    assert report.main([str(tmp_path), "--output", str(tmp_path / "report")]) == 2
    assert "holds no metrics.jsonl" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    run = make(tmp_path / "run", 10)
    assert report.main([str(run), "--output", str(tmp_path / "file" / "report")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_perplexity_of_a_diverged_run_is_a_number_in_report_and_model_card(tmp_path: Path) -> None:
    run = make(tmp_path / "run", 20)
    line = json.dumps({"step": 20, "validation_loss": 1000.0})
    (run / "metrics.jsonl").write_text(line + "\n")
    assert float(column(page(run))["perplexity"]) > 1e300
    rows = dict(model_card._figures(Source("model", figures={"validation_loss": 1000.0}), {}, language=True))
    assert float(rows["validation perplexity"]) > 1e300


def trained(name: str, rate: float = 6e-4, steps: int = 1000, **settings: Any) -> Run:
    """A run of many figures, from a loss of 11 to one of 3."""
    lines = [
        {
            "step": step,
            "loss": 3 + 8 * 0.99**step,
            "learning_rate": rate * (1 - step / steps),
            "tokens_per_second": 1000.0,
            "step_seconds": 1.0,
            "compute_seconds": 0.7,
            "time": 1.79e9 + step,
        }
        for step in range(1, steps + 1)
    ]
    lines.append({"step": steps, "validation_loss": 3 + rate, "time": 1.79e9 + steps})
    return Run(name, lines, {"steps": steps}, {"step": steps}, {"optimizer.learning_rate": rate} | settings)


def drawn(chart: charts.Chart) -> str:
    """The chart as SVG, by the library that the page holds."""
    return vl_convert.vegalite_to_svg(chart | {"width": 400}, vl_version=report.VEGA_LITE)


def test_a_sweep_over_decades_has_logarithmic_axes_and_a_chart_of_what_it_varies() -> None:
    runs = [trained(f"lr-{number}", 10.0**-number) for number in range(1, 10)]
    shown = charts.draw(runs)
    assert list(shown) == ["loss", "sweep", "throughput", "learning-rate", "step-time"]
    assert shown["sweep"]["encoding"]["x"]["scale"]["type"] == "log"
    assert shown["learning-rate"]["encoding"]["y"]["scale"]["type"] == "log"
    svg = drawn(shown["sweep"])
    assert all(f">{text}<" in svg for text in ("learning rate", "lr-7", "2 more"))
    colours = [charts.colour(number) for number in range(9)]
    assert len(set(colours)) == len(charts.COLOURS) + 1, "no two of the best look alike"
    assert "not done" not in svg
    runs[0] = replace(trained("stopped", 0.1, steps=10), done=None)
    svg = drawn(charts.sweep(runs))
    assert ">pale: of a run that is not done<" in svg
    assert len(re.findall(r'aria-roledescription="circle"[^>]* opacity="0.3"', svg)) == 1, svg
    line = re.search(r'aria-roledescription="line mark"[^>]* d="([^"]*)"', svg)
    assert line
    assert len(line[1].split("L")) == 8, "the earlier step's loss is no point of the line"
    runs[0] = trained("lr-1", 0.1)
    text = report.page(runs, "")
    assert ["run", "optimizer.learning_rate"] in rows(text)
    assert ["lr-9", "1e-09"] in rows(text)
    near = charts.draw([trained("a", 1e-3), trained("b", 2e-3)])
    assert "sweep" not in near
    assert "type" not in near["learning-rate"]["encoding"]["y"]["scale"]


def test_the_axis_of_losses_begins_below_the_steep_first_tenth() -> None:
    (low, high) = charts.loss([trained("a")])["encoding"]["y"]["scale"]["domain"]
    assert low == pytest.approx(3.0, abs=0.01)
    assert high == pytest.approx(3 + 8 * 0.99**100, abs=0.01)


def test_runs_of_different_batches_are_compared_by_tokens() -> None:
    chart = charts.loss([trained("a", tokens_per_step=1000), trained("b", tokens_per_step=2000)])
    assert chart["encoding"]["x"]["title"] == "tokens"
    ends = {row["run"]: row["x"] for row in sorted(chart["data"]["values"], key=lambda row: row["x"])}
    assert ends == {"a": 1_000_000, "b": 2_000_000}


def test_a_page_of_long_runs_stays_small() -> None:
    runs = [trained(f"a-name-of-thirty-characters-{number:03}", number) for number in range(1, 41)]
    assert len(report.page(runs, "")) < 500_000
    points = [(step, float(step)) for step in range(1, 10)]
    assert charts.thinned(points, 3) == [(3, 2.0), (6, 5.0), (9, 8.0)]


def test_a_run_that_has_diverged_shows_it(tmp_path: Path) -> None:
    good, bad, failed = (make(tmp_path / name, 50, done=name != "failed") for name in ("good", "bad", "failed"))
    for folder in (bad, failed):
        with open(folder / "metrics.jsonl", "a") as file:
            file.write('{"step": 60, "loss": NaN}\n{"step": 60, "validation_loss": NaN}\n')
    status = json.loads((failed / "status.json").read_text()) | {"state": "failed", "message": "training diverged"}
    (failed / "status.json").write_text(json.dumps(status))
    text = page(bad, good, failed)
    shown = column(text)
    assert [shown[name] for name in ("training loss", "validation loss", "perplexity")] == ["nan"] * 3
    assert "Finished." not in text
    assert "failed failed: training diverged. Page of" in text
    assert 'class="best">nan' not in text
    assert "NaN" not in text, "JavaScript reads none in JSON"


HOSTILE = [
    "a" * 63,
    "$\\frac{1}{2}$",
    "<img src=x onerror=alert(1)>",
    "{{7*7}} datum.x 'q'",
    "</script><script>document.title='bad'",
]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: apt-get install chromium")
@pytest.mark.parametrize("width", [400, 1200])
def test_in_a_browser_charts_are_readable_tell_their_figures_and_run_no_foreign_script(
    width: int, tmp_path: Path, vega: str
) -> None:
    """What the page measures of itself stands in its title."""
    measure = """
setTimeout(() => {
  const labels = [...document.querySelectorAll(".chart text")].map((text) => getComputedStyle(text).fontSize);
  const sides = [document.documentElement, ...document.querySelectorAll(".grid .card")];
  const told = [...document.querySelectorAll(".chart")].map((chart) => {
    const { left, top, width } = chart.getBoundingClientRect();
    const place = { bubbles: true, clientX: left + width / 2, clientY: top + 100 };
    const found = document.elementFromPoint(place.clientX, place.clientY);
    for (const name of ["pointerover", "pointermove"]) found.dispatchEvent(new PointerEvent(name, place));
    return document.getElementById("vg-tooltip-element")?.innerText ?? "";
  });
  const wide = sides.map((side) => side.scrollWidth - side.clientWidth);
  document.title = JSON.stringify({ title: document.title, smallest: Math.min(...labels.map(parseFloat)), wide, told });
}, 500);
"""
    runs = [replace(trained(name, 10.0**-number), done=None) for number, name in enumerate(HOSTILE, 1)]
    text = report.page(runs, vega + measure)
    (tmp_path / "index.html").write_text(text)
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},4000"]
    command += ["--virtual-time-budget=5000", "--dump-dom", f"--user-data-dir={tmp_path / 'browser'}"]
    command.append(f"file://{tmp_path / 'index.html'}")
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", shown, re.DOTALL)[0]))
    assert found["title"] == "5 runs"
    assert found["smallest"] >= 11
    assert set(found["wide"]) == {0}
    assert len(found["told"]) == 5
    assert all("run\t" in each and "undefined" not in each for each in found["told"]), found["told"]
