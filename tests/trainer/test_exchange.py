"""bench.trainer.exchange: real trainings under the launcher, and a recommendation that follows from their times."""

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
    assert said[-1] == "nothing to recommend: too few ways were measured"
    assert "| ZeRO-1, overlap, all-reduce | " in (tmp_path / "exchange_cpu.md").read_text("utf-8")


def test_a_way_that_fails_is_a_line_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = exchange.Way("broken", {"communication.compression": "fp4"})
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(exchange, "WAYS", (broken,))
    assert exchange.main(["--device", "cpu", "--tiny"]) == 1
    assert "| broken | failed: communication.compression" in (tmp_path / "exchange_cpu.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"ddp, bf16": 0.1, "ZeRO-1": 0.15}, "recommended: ddp, bf16, the default; the next takes 1.50 times as long"),
        (
            {"ddp, bf16": 0.2, "ddp, bf16, ProcessGroupNCCL2": 0.1},
            "recommended: ddp, bf16, ProcessGroupNCCL2 (communication.compression=bf16, TORCH_DIST_USE_NCCL2=1): the "
            "default takes 2.00 times as long",
        ),
    ],
)
def test_the_fastest_is_recommended_with_its_settings(seconds: dict[str, float], said: str) -> None:
    found: dict[str, tuple[float, float] | str] = {name: (value, 0.0) for name, value in seconds.items()}
    assert exchange.recommendation(found | {"ZeRO-1, overlap": "failed: it"}) == said
