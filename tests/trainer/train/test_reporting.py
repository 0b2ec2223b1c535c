"""What a run says of itself: when each figure was written, advice that follows the run, errors that have no text."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.train.test_metrics import figures, reporter
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


@pytest.mark.parametrize(
    ("shares", "told", "at_the_end"),
    [
        ([0.9, 0.9, *[0.01] * 30], True, False),  # one slow step after the first
        ([0.01] * 30 + [0.9], False, False),  # one slow step at the end
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


def test_an_error_without_a_text_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = "TimeoutError"

    def fail(*_: Any, **__: Any) -> Any:
        raise TimeoutError

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
