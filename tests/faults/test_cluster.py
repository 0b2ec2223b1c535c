"""When a training counts as recovered."""

from __future__ import annotations

from typing import Any

import pytest

from cli.state import State as Training
from faults.cluster import Cluster
from faults.fault import Expected
from infra.parse import parse
from infra.stackfiles import stack_file_values


def told(round_: int, step: int, workers: int) -> Training:
    figures = {"step": step, "world_size": workers}
    return Training("job", "Running", None, None, workers, workers, 0, round_, figures, checkpoint=3)


class Played(Cluster):
    """A training whose state is the next of `looks` at each look, and its pods after the fault."""

    def __init__(self, looks: list[Training], uids: list[str]) -> None:
        self.looks, self.uids = looks, uids
        self.config = parse(stack_file_values("local"), "local")
        self.count = len(uids)

    def training(self) -> Training:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def worker_pods(self) -> list[dict[str, Any]]:
        return [{"metadata": {"uid": uid, "name": uid}} for uid in self.uids]

    def say(self, text: str) -> None: ...

    def until(self, condition: Any, seconds: float, what: str) -> Any:
        for _ in range(9):
            if found := condition():
                return found
        raise Expected(what)


def broken(workers: int, looks: list[Training], after: list[str]) -> str:
    before = [told(1, 5, workers)] * 2
    place = Played([*before, *looks], [f"old-{at}" for at in range(workers)])

    place._breaks(place.train()[-1:], "broken")
    place.uids = after
    return place.recovered()


def test_one_worker_that_trains_in_another_round_has_come_back() -> None:
    """The run's record counts rounds on, also where the rendezvous begins at 1 again."""
    assert "in round 2 (before: 1)" in broken(1, [told(2, 4, 1), told(2, 5, 1)], ["new"])


@pytest.mark.parametrize("after", [["old-0"], []])
def test_one_worker_that_is_still_there_or_only_gone_has_not(after: list[str]) -> None:
    with pytest.raises(Expected, match="new round"):
        broken(1, [told(1, 6, 1), told(1, 7, 1)], after)


def test_several_workers_come_back_in_another_round() -> None:
    assert "in round 2 (before: 1)" in broken(2, [told(2, 4, 2), told(2, 5, 2)], ["old-0", "new"])
    with pytest.raises(Expected, match="new round"):
        broken(2, [told(1, 6, 2), told(1, 7, 2)], ["old-0", "new"])
