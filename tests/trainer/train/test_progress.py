"""Skipped steps, divergence, and what has changed since the checkpoint: counted exactly, told clearly."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer import toy
from tests.trainer.conftest import done, metrics, newest, status
from trainer.config import schema as config
from trainer.errors import Stopped, TrainingError
from trainer.parallel.engine import Outcome
from trainer.tasks.work import Interrupted
from trainer.train import resume
from trainer.train.feed import Feed, draw_seed
from trainer.train.loop import Loop, train
from trainer.train.progress import Progress, Schedule, check_first_loss, check_weights


def outcomes(progress: Progress, flags: list[int], first: int = 0) -> None:
    for step, flag in enumerate(flags, first + 1):
        progress.note(step, Outcome(torch.tensor(1.0), torch.tensor(float(flag))))
    progress.settle()


def test_updates_and_skips_are_counted_apart_and_survive_a_resume() -> None:
    progress = Progress(limit=5, first=False)
    outcomes(progress, [1, 1, 0, 0, 1, 0])
    assert (progress.updates, progress.skipped, progress.in_a_row) == (3, 3, 0)
    again = Progress(limit=5, first=False)
    again.load(progress.state(), 6)
    outcomes(again, [0, 1], first=6)
    assert (again.updates, again.skipped, again.in_a_row) == (4, 4, 1)


@pytest.mark.parametrize(
    ("skipped", "overdue", "saved"),
    [
        ([], [], [4, 6, 8]),
        ([4, 5], [], [6, 8]),  # after the next step that is not skipped, once
        ([], [1, 5], [1, 4, 5, 6, 8]),
        ([1], [1], [2, 4, 6, 8]),
        ([8, 9], [9], [4, 6]),  # the last step saves anyway
    ],
)
def test_a_checkpoint_is_written_when_it_is_due_and_after_no_skipped_step(
    skipped: list[int], overdue: list[int], saved: list[int]
) -> None:
    progress = Progress(limit=5, first=False)
    schedule = Schedule(toy.configuration(steps=10, checkpoint__every_steps=4, checkpoint__keep_every=6))
    found = []
    for step in range(1, 11):
        progress.note(step, Outcome(torch.tensor(1.0), torch.tensor(float(step in skipped))))
        found += [step] if schedule.saves(step, step in overdue, progress) else []
    assert found == saved


class Validation:
    """A termination notice interrupts the second one, if it is given."""

    def __init__(self, notice: bool) -> None:
        self._calls, self._notice = 0, notice

    def loss(self, *_: object) -> float:
        self._calls += 1
        if self._notice and self._calls == 2:
            raise Interrupted
        return 1.0


def stopped_and_resumed(run: Path) -> None:
    """Six steps, every second of which is validated."""
    config = toy.configuration(steps=6, evaluation__every=2, run__directory=run)
    work: Any = dataclasses.replace(toy.work(), validation=Validation(True))
    with pytest.raises(Stopped):
        train(work, config, run, toy.place())
    train(dataclasses.replace(work, validation=Validation(False)), config, run, toy.place())


def test_a_validation_that_a_notice_interrupts_is_made_after_a_step_of_the_next_round(tmp_path: Path) -> None:
    toy.apart(stopped_and_resumed, tmp_path)
    assert [line["step"] for line in metrics(tmp_path) if "validation_loss" in line] == [0, 3, 4, 6]


class Overflow(toy.Batches):
    """The loss of step 1 is infinite."""

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        values, targets = super().get(step, number)
        return values, targets * (math.inf if step == 1 else 1)


def test_a_skipped_step_does_not_advance_the_learning_rate(tmp_path: Path) -> None:
    changes = {"optimizer__warmup_steps": 5, "optimizer__learning_rate": 0.5, "metrics__every": 1}
    work: Any = dataclasses.replace(toy.work(), batches=Overflow())
    reporter: Any = SimpleNamespace()
    loop: Any = Loop(work, toy.configuration(**changes), tmp_path, toy.place(), torch.float32, reporter)
    rates: list[float] = []
    loop.report = lambda loss, rate, *_: rates.append(rate)
    with contextlib.closing(Feed(work.batches, toy.place(), 0, False)) as batches:
        for _ in range(4):
            loop.one_step(batches)
    assert rates == pytest.approx([0.1, 0.2, 0.2, 0.3])


class Noisy(toy.Net):
    """Draws a number in each pass, as the router of a PhiMoE does without any dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def forward(self, values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.drawn.append(float(torch.rand(())))
        return super().forward(values, targets)


def test_what_any_model_draws_depends_on_the_step_and_not_on_a_resume(tmp_path: Path) -> None:
    reporter: Any = SimpleNamespace()
    drawn = []
    for first in (0, 2):
        net: Any = Noisy()
        work = dataclasses.replace(toy.work(), net=net, module=net)
        loop = Loop(work, toy.configuration(), tmp_path, toy.place(), torch.float32, reporter)
        loop.step = first
        with contextlib.closing(Feed(work.batches, toy.place(), first, False)) as batches:
            while loop.step < 4:
                loop.one_step(batches)
        drawn.append(net.drawn)
    assert len(set(drawn[0])) == 4 * toy.PER_STEP
    assert drawn[1] == drawn[0][2 * toy.PER_STEP :]


def test_every_micro_batch_of_every_step_and_seed_draws_its_own_numbers() -> None:
    seeds = {draw_seed(seed, step, number) for seed in (0, 1, 1337) for step in range(50) for number in range(40)}
    assert len(seeds) == 3 * 50 * 40


def test_too_many_skips_in_a_row_end_the_training_with_the_step_and_advice() -> None:
    progress = Progress(limit=3, first=False)
    outcomes(progress, [1, 1, 0, 1, 1])
    with pytest.raises(TrainingError, match=r"the 3 steps up to 6 were not finite.*lower optimizer\.learning_rate"):
        outcomes(progress, [1], first=5)


def test_an_unexpected_first_loss_is_told_and_an_expected_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    check_first_loss(10.98, 10.82, first=True)
    check_first_loss(3.1, None, first=True)
    assert capsys.readouterr().out == ""
    check_first_loss(float("nan"), 10.82, first=True)
    check_first_loss(12.4, 10.82, first=True)
    assert capsys.readouterr().out.count("event=first_loss_unexpected") == 2


def test_weights_that_are_no_numbers_are_never_saved() -> None:
    good = torch.ones(3)
    check_weights({"a": good, "b": torch.ones(2, dtype=torch.int64)}, 5, toy.place())
    with pytest.raises(TrainingError, match=r"after step 5 are not finite \(wte\)"):
        check_weights({"a": good, "wte": torch.tensor([1.0, float("nan")])}, 5, toy.place())


def finding(world: Any) -> str:
    weights = {"wte": torch.tensor([1.0, math.nan]), "b": torch.ones(2)} if world.first else {}
    with pytest.raises(TrainingError) as raised:
        check_weights(weights, 5, world)
    return str(raised.value)


def test_workers_without_weights_name_what_is_no_number_too(tmp_path: Path) -> None:
    """As with FSDP; the launcher may pass on any worker's message."""
    first, second = toy.drive(2, finding, folder=tmp_path)
    assert first == second
    assert "after step 5 are not finite (wte)" in first


def test_settings_that_matter_are_told_when_they_change(tmp_path: Path) -> None:
    common = ["data.directory=/data", "run.directory=/run"]
    path = tmp_path / "config.yaml"
    path.write_text(config.resolved(config.load([*common, "micro_batch=4"])))
    same = config.load([*common, "metrics.every=3"])
    assert resume.changes(path, same) == [], "micro-batches and log lines change no result"
    other = config.load([*common, "optimizer.learning_rate=0.001", "tokens_per_step=65536"])
    assert resume.changes(path, other) == [
        ("tokens_per_step", 524_288, 65_536),
        ("optimizer.learning_rate", 6e-4, 0.001),
    ]


def told_of_data(run: Path) -> list[list[str]]:
    """Train on with other data each time; return what each attempt says of them."""
    told = []
    for steps, data in ((2, "a" * 64), (4, "a" * 64), (6, "b" * 64), (8, "")):
        work: Any = dataclasses.replace(toy.work(), validation=Validation(False), data=data)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            train(work, toy.configuration(steps=steps, run__directory=run), run, toy.place())
        told.append([line for line in said.getvalue().splitlines() if "key=data" in line])
        assert [found["data"] for found in (newest(run).state, status(run), done(run))] == [data] * 3
    return told


def test_data_that_were_prepared_anew_in_the_same_place_are_told(tmp_path: Path) -> None:
    """The path is the same, so no setting has changed."""
    said = toy.apart(told_of_data, tmp_path)
    assert [len(lines) for lines in said] == [0, 0, 1, 0]
    assert f"key=data before={'a' * 12} now={'b' * 12} effect='the data were prepared anew" in said[2][0]
