"""Training on a storage that fails: full, read-only, damaged. It goes on where it can, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.trainer.conftest import Workers, losses, reached, wait_until
from trainer.checkpoint.format import list_checkpoints, newest_checkpoint

Start = Callable[[int, list[str]], Workers]
Settings = Callable[..., list[str]]


def fill(folder: Path) -> Path:
    """Take all space that is left."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def test_training_goes_on_while_the_disk_is_full_and_saves_again_when_it_is_not(
    start_workers: Start, settings: Settings, small_disk: Path
) -> None:
    run = small_disk / "run"
    workers = start_workers(1, settings(run, steps=100_000, checkpoint__every_steps=5, checkpoint__keep=1))
    wait_until(lambda: "event=checkpoint step=" in workers.output, 60, "a checkpoint")
    filler = fill(small_disk)
    wait_until(lambda: "event=checkpoint_failed" in workers.output, 60, "a failed checkpoint")
    failed = workers.output
    assert "No space left on device" in failed
    assert newest_checkpoint(run) is not None, "the one before"
    filler.unlink()
    wait_until(lambda: "event=checkpoint step=" in workers.output[len(failed) :], 60, "a checkpoint again")

    # Full once more, then SIGTERM: a save that fails does not delay the end.
    fill(small_disk)
    before = workers.output.count("event=checkpoint_failed")
    wait_until(lambda: workers.output.count("event=checkpoint_failed") > before, 60, "another failed checkpoint")
    workers.kill(signal.SIGTERM)
    assert workers.wait(20) == [143], workers.output
    assert "Traceback" not in workers.output
    found = newest_checkpoint(run)
    assert found is not None
    assert found.step >= 10
    steps = list(losses(run))
    assert steps == list(range(1, len(steps) + 1)), "no figure is lost, also of the time without space"


def test_a_read_only_run_directory_is_told_before_anything_is_computed(
    start_workers: Start, settings: Settings, small_disk: Path
) -> None:
    (small_disk / "run" / "checkpoints").mkdir(parents=True)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for run in (small_disk / "run", small_disk / "new"):
        workers = start_workers(1, settings(run))
        assert workers.wait() == [42]
        lines = workers.output.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(f"run.directory: {run} cannot be ")


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
    newest = newest_checkpoint(broken)
    assert newest is not None
    file = newest.path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert first.wait() == [0], first.output
    third = start_workers(1, settings(broken, **changes))
    assert third.wait() == [0], third.output
    assert f"event=checkpoint_damaged path={newest.path} action=skipped" in third.output
    assert f"event=resume step={newest.step - 3} " in third.output
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


def test_training_may_wait_for_each_checkpoint_and_is_the_same(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    found = []
    for asynchronous in (True, False):
        run = tmp_path / str(asynchronous)
        changes = {"checkpoint__every_steps": 3, "checkpoint__asynchronous": asynchronous, "checkpoint__keep": 9}
        workers = start_workers(2, settings(run, **changes))
        assert workers.wait() == [0, 0], workers.output
        lines = [line for line in workers.output.splitlines() if line.startswith(("step=", "event=checkpoint "))]
        found.append((run, losses(run), lines))
    assert found[0][1] == found[1][1]
    lines = found[1][2]
    for step in (3, 6, 9):
        saved = next(n for n, line in enumerate(lines) if line.startswith(f"event=checkpoint step={step} "))
        assert lines[saved - 1].startswith(f"step={step} "), "nothing happens between a step and its checkpoint"
        assert lines[saved + 1].startswith(f"step={step + 1} ")
    for path in list_checkpoints(found[0][0]):
        for file in ("model/model.safetensors", "optimizer.safetensors"):
            assert (path / file).read_bytes() == (found[1][0] / "checkpoints" / path.name / file).read_bytes()


def test_a_tensor_of_another_size_is_named(start_workers: Start, settings: Settings, tmp_path: Path) -> None:
    assert start_workers(1, settings(tmp_path, steps=2)).wait() == [0]
    workers = start_workers(1, settings(tmp_path, steps=4, model__preset="micro", sequence_length=32))
    assert workers.wait() == [42]
    assert "is the checkpoint of another model" in workers.output
    assert "Traceback" not in workers.output
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002"], "it is still there"
