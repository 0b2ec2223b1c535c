"""Training on a storage that damages checkpoints: it goes on where it can, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.trainer.conftest import Settings, Start, losses, newest, reached, wait_until
from trainer.checkpoint.format import list_checkpoints


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before_and_loses_nothing(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    changes: dict[str, Any] = {"steps": 12, "checkpoint__every_steps": 3, "optimizer__schedule": "constant"}
    first = start_workers(1, settings(straight, **changes))
    second = start_workers(1, settings(broken, **{**changes, "steps": 100_000}))
    wait_until(lambda: reached(broken, 10), 60, "step 10")
    second.kill()
    second.wait()
    damaged = newest(broken)
    file = damaged.path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert first.wait() == [0], first.output
    third = start_workers(1, settings(broken, **changes))
    assert third.wait() == [0], third.output
    assert f"event=checkpoint_damaged path={damaged.path} action=skipped" in third.output
    assert f"event=resume step={damaged.step - 3} " in third.output
    assert losses(broken) == losses(straight)


def test_a_run_without_a_good_checkpoint_does_not_go_on_with_random_weights(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """A run that began with model.name builds only the model's shape from a checkpoint: its weights are random."""
    first = start_workers(1, settings(tmp_path / "base", steps=1))
    assert first.wait() == [0], first.output
    named = {"model__preset": "", "model__name": tmp_path / "base", "checkpoint__every_steps": 2}
    run = tmp_path / "run"
    assert start_workers(1, settings(run, steps=2, **named)).wait() == [0]
    (found,) = list_checkpoints(run)
    file = found / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    (run / "DONE").unlink()
    again = start_workers(1, settings(run, steps=4, **named))
    assert again.wait() == [42], again.output
    assert "is damaged, and none is overwritten; move the folder away to begin again" in again.output
    assert list_checkpoints(run) == [found]


def test_training_may_wait_for_each_checkpoint(start_workers: Start, settings: Settings, tmp_path: Path) -> None:
    workers = start_workers(1, settings(tmp_path, checkpoint__every_steps=3, checkpoint__asynchronous=False))
    assert workers.wait() == [0], workers.output
    lines = [line for line in workers.output.splitlines() if line.startswith(("step=", "event=checkpoint "))]
    for step in (3, 6, 9):
        saved = next(n for n, line in enumerate(lines) if line.startswith(f"event=checkpoint step={step} "))
        assert lines[saved - 1].startswith(f"step={step} "), "nothing happens between a step and its checkpoint"
        assert lines[saved + 1].startswith(f"step={step + 1} ")
