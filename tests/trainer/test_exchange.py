"""bench.trainer.exchange: real trainings under the launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import page
from bench.trainer import exchange


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
