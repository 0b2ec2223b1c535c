"""DDP, DeepSpeed and DiLoCo: the same updates, checkpoints that any of them takes up, what each of them refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import Workers, losses, metrics
from trainer import checkpoint

Start = Callable[[int, list[str]], Workers]
Settings = Callable[..., list[str]]

SMALL = {"train__micro_batch": 4, "evaluation__sample_tokens": 0, "evaluation__batches": 1, "optimizer__warmup_steps": 2}


def curve(run: Path) -> list[float]:
    """Losses, then gradient norms, which show what AdamW would hide: a gradient that is wrong by a factor."""
    return [*losses(run).values(), *(line["gradient_norm"] for line in metrics(run) if "gradient_norm" in line)]


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.newest(run)
    assert found is not None
    return load_file(found.path / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the tests of this module share: the run that all engines must reproduce, made by the first that needs it."""
    return {}


@pytest.fixture
def straight(reference: dict[str, Any], start_workers: Start, settings: Settings, tmp_path: Path) -> list[float]:
    """Ten steps by one worker under DDP."""
    if not reference:
        workers = start_workers(1, settings(tmp_path / "straight", train__steps=10, **SMALL))
        assert workers.wait() == [0], workers.output
        reference["curve"] = curve(tmp_path / "straight")
    return reference["curve"]


@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_computes_the_same_run_and_resumes_at_other_sizes_and_engines(
    start_workers: Start, settings: Settings, tmp_path: Path, straight: list[float], stage: int
) -> None:
    """Two workers under ZeRO, then three (uneven shares), then one under DDP, then ZeRO again: one curve."""
    changes: dict[str, Any] = {**SMALL, "engine__zero_stage": stage}
    attempts = [(2, "deepspeed", 4), (3, "deepspeed", 6), (1, "ddp", 8), (1 if stage == 1 else 2, "deepspeed", 10)]
    for world, engine, last in attempts:
        arguments = settings(tmp_path, train__steps=10, engine__name=engine, **changes)
        limited = [*arguments, f"train.steps={last}", "optimizer.schedule_steps=10"]
        workers = start_workers(world, limited)
        assert workers.wait(120) == [0] * world, workers.output
        assert "Traceback" not in workers.output
        (tmp_path / "DONE").unlink()
    assert curve(tmp_path) == pytest.approx(straight, abs=2e-5)
    if stage == 1:
        assert max(line.get("bytes_sent_per_step", 0) for line in metrics(tmp_path)) > 0
