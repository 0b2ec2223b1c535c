"""bench.trainer.exchange: real trainings under the launcher, whose processes are forks here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.trainer import exchange
from tests.trainer.processes import Launcher


@pytest.fixture(autouse=True)
def fork_launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], env: dict[str, str], timeout: float, **_: Any) -> None:
        assert command[1:3] == ["-m", "trainer.launch"]
        node = Launcher(command[3:], env, tmp_path / "launcher.log", real=False)
        if code := node.wait(timeout):
            raise subprocess.CalledProcessError(code, command, node.output, "")

    monkeypatch.setattr(exchange.subprocess, "run", run)


def test_a_way_is_rehearsed_by_two_real_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    assert exchange.main(["--device", "cpu", "--tiny", "--only", "overlap, all-reduce"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("ZeRO-1, overlap, all-reduce: ")
    assert said[0].endswith(" exposed")
    assert "| ZeRO-1, overlap, all-reduce | " in (tmp_path / "exchange_cpu.md").read_text("utf-8")


def test_a_way_that_fails_is_a_line_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = exchange.Way("broken", {"communication.compression": "fp4"})
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(exchange, "WAYS", (broken,))
    assert exchange.main(["--device", "cpu", "--tiny"]) == 1
    assert "| broken | failed: communication.compression" in (tmp_path / "exchange_cpu.md").read_text("utf-8")
