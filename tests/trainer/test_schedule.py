"""The learning rate at the points that a person would check by hand."""

from __future__ import annotations

import pytest

from trainer.config import Optimizer
from trainer.schedule import learning_rate


def rates(schedule: str, steps: int = 100) -> list[float]:
    settings = Optimizer(learning_rate=1.0, warmup_steps=10, schedule=schedule, final_fraction=0.1)
    return [learning_rate(step, steps, settings) for step in range(steps + 1)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_warm_up_rises_linearly_to_the_peak(schedule: str) -> None:
    assert rates(schedule)[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates(schedule)) == 1.0


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1)]
)
def test_the_decay_passes_its_middle_and_ends_where_it_should(schedule: str, middle: float, end: float) -> None:
    values = rates(schedule)
    assert values[55] == pytest.approx(middle)
    assert values[100] == pytest.approx(end)
    assert values[10:] == sorted(values[10:], reverse=True)


def test_cosine_is_flat_at_both_ends_and_linear_is_not() -> None:
    cosine, linear = rates("cosine"), rates("linear")
    assert cosine[10] - cosine[14] < (linear[10] - linear[14]) / 4
    assert cosine[96] - cosine[100] < (linear[96] - linear[100]) / 4
