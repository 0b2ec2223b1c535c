"""What a run says of itself: when each figure was written, advice that follows the run, errors that have no text."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer import toy
from tests.trainer.train.test_metrics import figures, lines, reporter
from trainer import launch, report
from trainer.elastic import network
from trainer.errors import UserError
from trainer.export import runs
from trainer.parallel import communication
from trainer.train import loop


def test_status_json_says_when_each_figure_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1000.0, 10.0)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    tell = reporter(tmp_path)
    tell.validation(0, 9.0)
    tell.training(figures(10))
    tell.status(state="compiling")
    status = json.loads((tmp_path / "status.json").read_text())
    times = status["times"]
    assert times["validation_loss"] < times["loss"] == times["tokens_per_second"] == times["step"] < times["state"]
    assert times["state"] < status["updated"]
    tell.close()
    resumed = reporter(tmp_path, step=10)
    told = json.loads((tmp_path / "status.json").read_text())
    assert "loss" not in told["times"], "a figure of the checkpoint has no time"
    resumed.close()


@pytest.mark.parametrize("times", [[1], "x", None, 5])
def test_a_status_json_of_somebody_else_ends_no_training(times: Any, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"times": times, "step": "x", "writer": ["y"]}))
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step": 1, "loss": 2.0}\n\xff\xfe\n[]\n{"step": Infinity}\n{"step": [1]}\n' + b"[" * 100_000 + b"\n"
    )
    tell = reporter(tmp_path, step=5)
    tell.training(figures(10))
    tell.end("failed", UserError("x"))
    tell.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 10]


@pytest.mark.parametrize(
    ("shares", "told", "at_the_end"),
    [
        ([0.9, 0.9, *[0.01] * 30], True, False),  # one slow step after the first
        ([0.9, *[0.01] * 5], False, False),  # the first alone
        ([0.01] * 30 + [0.9], False, False),  # one slow step at the end
        ([0.01, *[0.3] * 5], True, True),
        ([0.01] * 3 + [0.5] * 9, True, True),
    ],
)
def test_advice_on_the_exchange_is_that_of_the_whole_run(
    shares: list[float], told: bool, at_the_end: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share, tell = communication.Share("compress it"), reporter(tmp_path)
    for number, each in enumerate(shares, 1):
        tell.training(figures(number, communication_seconds=each, step_seconds=1.0), share.add(each, 1.0, True))
    tell.close()
    assert capsys.readouterr().out.count("event=exchange_slow share=") == told
    page = report.page([runs.read(tmp_path, "run")], "")
    assert ("Communication slows run: compress it" in page) == at_the_end


EMPTY = [OSError(), TimeoutError(), ConnectionError(""), BlockingIOError("   ")]


@pytest.mark.parametrize("error", EMPTY, ids=lambda error: type(error).__name__)
def test_an_error_without_a_text_is_told_by_its_kind(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = type(error).__name__

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("socket.getaddrinfo", fail)
    assert network.wait_reachable("h", 1, 0) == kind
    monkeypatch.undo()
    tell = reporter(tmp_path)
    monkeypatch.setattr("trainer.train.metrics.write_json", fail)
    tell._exporters = [SimpleNamespace(name="mine", write=fail, close=lambda: None)]
    tell.training(figures(1))
    assert capsys.readouterr().out.count(f"reason='{kind}'") == 2
    # A last checkpoint that fails without a word has not been written.
    saver = SimpleNamespace(wait=fail)
    ended: Any = SimpleNamespace(world=SimpleNamespace(first=True), saver=saver)
    assert loop.Loop.conclude(ended, tmp_path) == kind
    monkeypatch.setattr(launch, "run_directory", lambda _: (_ for _ in ()).throw(UserError()))
    arguments = ["--standalone", "--", "data.directory=/d", f"run.directory={tmp_path}"]
    assert launch.main(arguments) == 42
    assert capsys.readouterr().err.strip() == "UserError"


METRICS = {
    "NaN and infinity": '{"step": 2, "loss": NaN, "tokens_per_second": Infinity, "step_seconds": 1e400}',
    "text": '{"step": 2, "loss": "low", "step_seconds": "1", "communication_seconds": []}',
    "a step of text": '{"step": "two", "loss": 1.0}',
    "a step that is no whole number": '{"step": 2.5, "loss": 1.0}',
    "a list": "[1, 2]",
    "null": "null",
    "5,000 digits": '{"step": ' + "9" * 5000 + "}",
    "a huge number": '{"step": 2, "loss": 1e308, "step_seconds": 1e308, "memory_bytes": 1e300}',
    "nothing but depth": "[" * 100_000,
}


@pytest.mark.parametrize("line", METRICS.values(), ids=METRICS)
def test_a_report_of_a_run_that_somebody_wrote_to(line: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    good = '{"step": 1, "loss": 3.0, "step_seconds": 1.0, "communication_seconds": 0.1, "memory_bytes": 1}'
    (run / "metrics.jsonl").write_bytes(f"{good}\n{line}\n".encode() + b"\xff\n")
    (run / "status.json").write_text('{"steps": "many", "updated": [], "state": 5, "world_size": {}}')
    (run / "DONE").write_text("[]")
    (run / "evaluations").mkdir()
    for number, content in enumerate(('{"step": 1}', '{"step": 1, "tasks": {"x": 5}}', '{"step": [], "tasks": {}}')):
        (run / "evaluations" / f"step-{number}.json").write_text(content)
    assert "3.0000" in report.page(runs.read_runs([run]), "") or '"loss": 1e308' in line


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_done_names_the_model_of_an_adapter(adapter: str, tmp_path: Path) -> None:
    settings = toy.configuration(model__name="/data/weights/q", adapter__kind=adapter)
    ended: Any = SimpleNamespace(
        world=SimpleNamespace(first=True),
        saver=SimpleNamespace(wait=lambda: None),
        step=7,
        figures={},
        work=SimpleNamespace(sample=None, results=dict, data=""),
        engine=SimpleNamespace(divided=False),
        config=settings,
        folder=tmp_path,
        reporter=SimpleNamespace(status=lambda **_: None),
    )
    assert loop.Loop.conclude(ended, tmp_path / "checkpoints") == ""
    done = json.loads((tmp_path / "DONE").read_text())
    assert done.get("adapter_of") == ("/data/weights/q" if adapter == "lora" else None)
