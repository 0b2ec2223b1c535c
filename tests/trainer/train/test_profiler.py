"""A trace of the steps that are asked for; the exchange's part of a step, and what would lower it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Settings, Start
from trainer.config.schema import load
from trainer.parallel import communication

NEEDED = ["data.directory=/d", "run.directory=/r"]


def test_the_steps_that_are_asked_for_are_traced_and_no_others(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """By the first of two workers; the log line shows the exchange's share."""
    run = tmp_path / "run"
    arguments = settings(run, steps=6, metrics__profile="3:4", evaluation__sample_tokens=0)
    workers = start_workers(2, arguments)
    assert workers.wait() == [0, 0], workers.output
    assert sorted(path.name for path in (run / "profile").iterdir()) == ["steps-3-4.json.gz", "steps-3-4.txt"]
    with gzip.open(run / "profile" / "steps-3-4.json.gz", "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    updates = [each for each in events if str(each.get("name", "")).startswith("Optimizer.step")]
    assert len(updates) == 2
    assert "aten::" in (run / "profile" / "steps-3-4.txt").read_text("utf-8")
    assert workers.output.count("event=profile path=") == 1
    assert " wire=0." in workers.output


@pytest.mark.parametrize(
    ("given", "sent", "named"),
    [
        ([], "none", "communication.compression=bf16"),
        ([], "bf16", "tokens_per_step"),
        (["engine.name=deepspeed"], "bf16", "tokens_per_step"),
    ],
)
def test_the_setting_that_lowers_the_exchange_is_named(given: list[str], sent: str, named: str) -> None:
    assert named in communication.advice(load([*NEEDED, *given]), sent)
