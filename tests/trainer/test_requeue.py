"""Which training lets go of its nodes, and which tries again; tests/e2e/test_job_controller.py has a real cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainer.contract import QUEUED, STOPPED
from trainer.requeue import decide, held, rest

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
HOLD = timedelta(minutes=15)
LONG_AGO = NOW - timedelta(days=2)


def before(minutes: float) -> str:
    return (NOW - timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


def job(name: str = "a", least: int = 2, wanted: int = 2, **marks: str) -> dict[str, Any]:
    """The API's Job; marks: its annotations, `stopped` or `queued`."""
    box = {"args": ["python", "-m", "trainer.launch", "--nnodes", f"{least}:1000", "--"]}
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "7",
            "annotations": {{"stopped": STOPPED, "queued": QUEUED}[key]: text for key, text in marks.items()},
        },
        "spec": {
            "parallelism": wanted,
            "suspend": bool(marks),
            "template": {"spec": {"containers": [box]}},
        },
        "status": {},
    }


def done(name: str, minutes: float, kind: str = "Complete") -> dict[str, Any]:
    """A Job that ended so many minutes ago."""
    found = job(name)
    found["status"]["conditions"] = [{"type": kind, "status": "True", "lastTransitionTime": before(minutes)}]
    return found


def queued(name: str = "a", minutes: float = 10, **options: Any) -> dict[str, Any]:
    """A Job that let go of its nodes so many minutes ago."""
    return job(name, queued=f"{before(minutes)}/{before(minutes - 60)}", **options)


def placed(minutes: float, node: str = "n1", **changes: Any) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": before(minutes)}
    return {
        "metadata": {"creationTimestamp": before(minutes + 3), **changes},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [condition]},
    }


def waits(minutes: float, **changes: Any) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "metadata": {"creationTimestamp": before(minutes), **changes},
        "spec": {},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


@pytest.mark.parametrize(
    ("pods", "least", "nodes", "minutes"),
    [
        ([placed(5), waits(9)], 2, 1, 5),  # its first node came 5 minutes ago
        ([placed(2000), waits(4)], 2, 1, 4),  # it trained for a day, and lost a node 4 minutes ago
        ([placed(8), placed(7), waits(9)], 3, 1, 8),  # two pods on one node
        ([placed(5), waits(9)], 1, 0, 0),  # it trains with one
        ([waits(9), waits(9)], 2, 0, 0),  # it holds nothing
        ([placed(5)], 2, 0, 0),  # the other is in back-off
        ([placed(5, deletionTimestamp="now"), waits(9)], 2, 0, 0),
    ],
)
def test_what_is_held_and_since_when(pods: list[dict[str, Any]], least: int, nodes: int, minutes: float) -> None:
    found = held(job(least=least), pods)
    if not nodes:
        assert found is None
        return
    assert found is not None
    assert (found.nodes, NOW - found.since) == (nodes, timedelta(minutes=minutes))


A_HOLDS = (job("a"), [placed(16), waits(20)])
B_HOLDS = (job("b"), [placed(17), waits(20)])
A_TRAINS = (job("a"), [placed(90, "n1"), placed(90, "n2")])
DONE = [placed(90)]


@pytest.mark.parametrize(
    ("trainings", "nodes", "began", "acts"),
    [
        ([A_HOLDS], 0, LONG_AGO, "a lets go"),
        ([A_TRAINS, B_HOLDS], 0, LONG_AGO, "b lets go"),
        ([A_HOLDS, B_HOLDS], 0, LONG_AGO, "a lets go"),  # the other perhaps gets its nodes: one at a look
        ([(queued("a", 60), [])], 0, LONG_AGO, "a tries"),
        # Another is done, failed or was stopped since.
        ([(done("b", 5), DONE), (queued("a"), [])], 0, LONG_AGO, "a tries"),
        ([(job("b", stopped=before(5)), []), (queued("a"), [])], 0, LONG_AGO, "a tries"),
        ([(done("b", 15), DONE), (queued("a"), [])], 0, LONG_AGO, ""),
        # An `up` changed what there is to share, and made this program anew.
        ([(queued("a"), [])], 0, NOW - timedelta(minutes=1), "a tries"),
        ([(queued("a"), [])], 0, NOW - timedelta(minutes=11), ""),
        # The most urgent first, and one at a look.
        ([(queued("a", 61), []), (queued("b", 200), [])], 0, LONG_AGO, "a tries"),
        # The stack's own nodes: what more urgent ones want is theirs.
        ([A_TRAINS, (queued("b", 200), [])], 3, LONG_AGO, ""),
        ([A_TRAINS, (queued("b", 200), [])], 4, LONG_AGO, "b tries"),
        # A person's word stands, and a cluster's own queue has its Jobs.
        ([(job("a", queued=f"{before(99)}/{before(9)}", stopped=before(5)), [])], 0, LONG_AGO, ""),
        ([({**job("a"), "spec": {**job("a")["spec"], "suspend": True}}, [])], 0, LONG_AGO, ""),
    ],
)
def test_who_lets_go_and_who_tries_again(trainings: list[Any], nodes: int, began: datetime, acts: str) -> None:
    found = decide(trainings, HOLD, nodes, began, NOW)
    if not acts:
        assert found is None
        return
    assert found is not None
    who, patch = found
    assert f"{who['metadata']['name']} {'lets go' if patch['spec']['suspend'] else 'tries'}" == acts
    assert patch["metadata"]["resourceVersion"] == "7", "else it might undo `trainyard stop`"


def test_the_mark_is_read_back_and_none_waits_for_ever() -> None:
    (name, _), (_, patch) = ("a", None), decide([A_HOLDS], HOLD, 0, LONG_AGO, NOW) or ({}, {})
    marked = job(name, queued=patch["metadata"]["annotations"][QUEUED])
    assert rest(marked) == (NOW, NOW + timedelta(hours=1))
    marked["spec"]["suspend"] = False
    assert rest(marked) is None, "somebody has let it go on by hand"
