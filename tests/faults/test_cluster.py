"""When a training counts as recovered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cli.training_status import TrainingStatus as Training
from faults.cluster import Cluster, Pods
from faults.fault import Expected
from infra.parse import parse
from infra.stackfiles import stack_file_values
from trainer.record import Record


def told(round_: int, step: int, workers: int) -> Training:
    figures = {"step": step, "world_size": workers}
    record = Record(round=round_, figures=figures, checkpoint=3)
    return Training("job", "Running", wanted=workers, active=workers, record=record)


class Played(Cluster):
    """A training whose state is the next of `looks` at each look, and its pods after the fault."""

    def __init__(self, looks: list[Training], uids: list[str]) -> None:
        self.looks, self.uids, self.status = looks, uids, dict[str, Any]()
        self.stack: Any = SimpleNamespace(say=lambda _: None)
        self.config = parse(stack_file_values("local"), "local")
        self.count = len(uids)

    def training(self) -> Training:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def worker_pods(self) -> list[dict[str, Any]]:
        return [{"metadata": {"uid": uid, "name": uid}} for uid in self.uids]

    def pods(self, selector: str, namespace: str | None = None) -> list[dict[str, Any]]:
        """Those that have ended, too."""
        ended: Any = {"metadata": {"uid": "old-0", "name": "train-0"}, "status": {"message": "the node says why"}}
        return [ended, *self.worker_pods()]

    def target(self) -> Any:
        return SimpleNamespace(job="train")

    def job(self) -> dict[str, Any]:
        return {"metadata": {"uid": "the same"}, "status": self.status}

    def until(self, condition: Any, seconds: float, what: str) -> Any:
        for _ in range(9):
            if found := condition():
                return found
        raise Expected(what)


def broken(looks: list[Training], after: list[str], **status: Any) -> str:
    """Break the last of the workers. after: the pods that are there then."""
    before = [told(1, 5, len(after) or 1)] * 2
    place = Played([*before, *looks], [f"old-{at}" for at in range(len(after) or 1)])

    def breaks(pods: Pods) -> tuple[Pods, str]:
        place.uids, place.status = after, status
        return pods[-1:], "broken"

    return place.survive(breaks)


ONE, TWO = ([told(2, step, workers) for step in (4, 5)] for workers in (1, 2))
"""Two steps of a new round. The run's record counts rounds on, also where the rendezvous begins at 1 again."""


@pytest.mark.parametrize(
    ("looks", "after", "status", "wrong"),
    [
        (ONE, ["new"], {}, ""),
        (TWO, ["old-0", "new"], {}, ""),
        ([told(1, 6, 1), told(1, 7, 1)], ["old-0"], {}, "new round"),
        ([told(1, 6, 1), told(1, 7, 1)], [], {}, "new round"),
        ([told(1, 6, 2), told(1, 7, 2)], ["old-0", "new"], {}, "new round"),
        (ONE, ["old-0"], {}, "is still there"),
        (TWO, ["newer", "new"], {}, "1 worker beside the broken ones were lost; train-0: the node says why"),
        (TWO, ["old-0", "new"], {"failedIndexes": "1"}, "an index was given up"),
    ],
)
def test_a_training_has_come_back_when_all_workers_train_in_a_new_round(
    looks: list[Training], after: list[str], status: dict[str, Any], wrong: str
) -> None:
    if not wrong:
        assert "in round 2 (before: 1)" in broken(list(looks), after, **status)
        return
    with pytest.raises(Expected, match=wrong):
        broken(list(looks), after, **status)
