"""The asynchronous writer of checkpoints: when it writes, what it keeps, what it does when the storage fails."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.checkpoint.saving import Training
from tests.trainer.conftest import newest
from trainer.checkpoint.format import list_checkpoints, newest_checkpoint, step_of
from trainer.checkpoint.saver import Saver
from trainer.config.settings import Checkpoint as Settings
from trainer.config.settings import Config
from trainer.train.progress import Progress, Schedule

MEGABYTE = 2**20


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def saver_of(run: Path, training: Training, **settings: Any) -> Saver:
    return Saver(run, Settings(**settings), training.write_model, "")


def save(saver: Saver, training: Training, *steps: int) -> None:
    for step in steps:
        saver.save(step, training.snapshot())
        saver.wait()


def steps(run: Path) -> list[int]:
    return [step_of(path) for path in list_checkpoints(run)]


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits(run: Path) -> None:
    training = Training(1).step()
    writing, finish = threading.Event(), threading.Event()

    def slow(weights: dict[str, torch.Tensor], folder: Path) -> None:
        writing.set()
        assert finish.wait(30)
        training.write_model(weights, folder)

    saver = Saver(run, Settings(keep=9), slow, "")
    saver.save(10, training.snapshot())
    assert writing.wait(30)
    assert saver.busy
    assert newest_checkpoint(run) is None, "save returned before anything was there"
    threading.Timer(0.2, finish.set).start()
    saver.save(20, training.snapshot())
    assert newest(run).step == 10, "the first is complete before the second begins"
    saver.wait()
    assert newest(run).step == 20


def test_an_end_without_clean_up_lets_the_checkpoint_be_completed(run: Path) -> None:
    """As when the other workers are lost: the process then leaves by os._exit, which waits for no thread."""
    training = Training(1).step()
    begun = threading.Event()

    def slow(weights: dict[str, torch.Tensor], folder: Path) -> None:
        begun.set()
        time.sleep(0.3)
        training.write_model(weights, folder)

    child = os.fork()
    if child == 0:
        saver = Saver(run, Settings(), slow, "")
        saver.save(10, training.snapshot())
        begun.wait()
        saver.finish()
        os._exit(75)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 75
    assert newest(run).step == 10


def test_the_minutes_count_from_the_newest_checkpoint_and_zero_of_them_are_never_over(run: Path) -> None:
    now = 0.0
    training = Training(1).step()
    saver, never = (
        Saver(run, Settings(every_minutes=minutes), training.write_model, "", clock=lambda: now) for minutes in (10, 0)
    )
    now = 300
    save(saver, training, 10)  # at a step that was due
    now = 899
    assert not saver.overdue()
    now = 900
    assert saver.overdue()
    assert not never.overdue()


def test_a_full_disk_is_told_and_retried_and_costs_no_checkpoint(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    training = Training(1).step()
    saver = Saver(small_disk, Settings(keep=2, every_minutes=10), training.write_model, "", clock=lambda: now)
    save(saver, training, 10)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(MEGABYTE))
    saver.save(20, training.snapshot())
    with pytest.raises(OSError, match="No space left"):
        saver.wait()
    said = capsys.readouterr().out
    assert "event=checkpoint step=10" in said
    assert "event=checkpoint_failed step=20" in said
    assert "No space left" in said
    assert "training goes on" in said
    assert newest(small_disk).step == 10
    assert steps(small_disk) == [10]
    assert not list((small_disk / "checkpoints").glob(".*")), "what was half-written gave its space back"

    # Retries come after a pause that doubles: not at every step, and long before the ten minutes are over.
    pauses = []
    for step in range(21, 25):
        begin = now
        while not saver.overdue():
            now += 1
        pauses.append(now - begin)
        saver.save(step, training.snapshot())
        with pytest.raises(OSError, match="No space left"):
            saver.wait()
    assert pauses == [30, 60, 120, 240]
    filler.unlink()
    save(saver, training, 25)
    assert newest(small_disk).step == 25
    assert steps(small_disk) == [10, 25]
    now += 599
    assert not saver.overdue(), "back to every ten minutes"
    now += 1
    assert saver.overdue()


def test_what_a_killed_process_left_gives_its_space_back_first(small_disk: Path) -> None:
    training = Training(1).step()
    left = small_disk / "checkpoints" / ".step-00000010.4711"
    left.mkdir(parents=True)
    (left / "optimizer.safetensors").write_bytes(bytes(MEGABYTE * 7 // 4))
    saver = saver_of(small_disk, training)
    save(saver, training, 10)
    assert newest(small_disk).step == 10
    assert not left.exists()


def test_the_newest_are_kept_and_multiples_forever(run: Path) -> None:
    training = Training(1).step()
    settings = Settings(keep=2, keep_every=40, every_steps=15, every_minutes=0)
    saver = Saver(run, settings, training.write_model, "")
    schedule, progress = Schedule(Config(steps=1000, checkpoint=settings)), Progress(limit=1, first=True)
    for step in range(1, 121):
        if schedule.saves(step, overdue=False, progress=progress):
            saver.save(step, training.snapshot())
    saver.wait()
    assert steps(run) == [40, 80, 105, 120], "kept at multiples of 40, though none of them is a multiple of 15"


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_are_kept_as_asked_for_from_the_beginning_on(run: Path, keep: int) -> None:
    training = Training(1).step()
    saver = saver_of(run, training, keep=keep)
    theirs = run / "checkpoints" / "step-00000010-good"
    theirs.mkdir()  # a person's copy, which no program touches
    for number in range(1, 9):
        save(saver, training, 10 * number)
        assert steps(run) == [10 * each for each in range(max(1, number - keep + 1), number + 1)]
    assert theirs.is_dir()


def test_a_damaged_newer_one_never_takes_a_good_ones_place(run: Path) -> None:
    """As after a crash of the storage: 30 is damaged, the run went on from 10 and saves 20."""
    training = Training(1).step()
    saver = saver_of(run, training, keep=9)
    save(saver, training, 10, 30)
    damaged = run / "checkpoints" / "step-00000030" / "optimizer.safetensors"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    saver = saver_of(run, training, keep=2)
    save(saver, training, 20)
    assert newest(run).step == 20
    assert steps(run) == [10, 20, 30], "10 and 20 are the two that are kept; 30 counts for nothing"
    save(saver, training, 30)  # the run reaches step 30 again
    assert newest(run).step == 30
    assert steps(run) == [20, 30]


def test_an_incomplete_one_takes_no_good_ones_place(run: Path) -> None:
    training = Training(1).step()
    saver = saver_of(run, training, keep=2, keep_every=20)
    save(saver, training, 10, 20)
    (run / "checkpoints" / "step-00000020" / "manifest.json").unlink()
    save(saver, training, 30)
    assert steps(run) == [10, 30]


def test_an_error_of_any_kind_in_the_thread_reaches_whoever_waits(run: Path) -> None:
    def broken(weights: dict[str, torch.Tensor], folder: Path) -> None:
        raise ValueError("not a model")

    training = Training(1).step()
    saver = Saver(run, Settings(), broken, "")
    saver.save(10, training.snapshot())
    with pytest.raises(OSError, match="ValueError: not a model"):
        saver.wait()
    assert steps(run) == []
