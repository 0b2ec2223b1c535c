"""The record of a run: written whole by rank 0, read from status.json or one line of a log, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.train.test_metrics import figures, reporter
from trainer import log, record
from trainer.record import Incident


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher of its own: what it notes is in its environment."""
    monkeypatch.setenv(record.INCIDENTS, "")
    monkeypatch.setenv(record.INDEX, "0")


def written(folder: Path) -> record.Record:
    found = record.read(json.loads((folder / "status.json").read_text()))
    assert found is not None
    return found


def test_the_newest_line_of_the_log_is_status_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell = reporter(tmp_path)
    tell.saved = lambda: (10, 1000.0)
    tell.validation(0, 9.0, {"bits_per_byte": 2.5})
    tell.training(figures(10))
    tell.end("terminated", "")
    told = capsys.readouterr().out.splitlines()
    found = record.newest(map(record.of_line, told))
    assert found == written(tmp_path)
    assert (found.state, found.round, found.members, found.checkpoint) == ("terminated", 1, {"0": 0}, 10)
    assert found.figures["validation_step"] == 0
    assert found.times["checkpoint"] == 1000.0
    assert {"step", "steps", "loss", "validation_loss", "tokens_per_second", "world_size"} <= found.figures.keys()


def test_rounds_and_their_incidents_are_counted_by_the_run_and_not_by_the_rendezvous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's number begins again where etcd has lost its data."""
    for number, cause in enumerate(("the rendezvous went away", "a process was lost (SIGKILL)", ""), 1):
        reporter(tmp_path, step=number).close()
        assert written(tmp_path).round == number
        if cause:
            record.note(cause, after=1)
    assert [each.cause for each in written(tmp_path).incidents] == [
        "round 1 ended: the rendezvous went away",
        "round 2 ended: a process was lost (SIGKILL)",
    ]
    assert {each.worker for each in written(tmp_path).incidents} == {"0"}


def test_what_a_person_should_know_of_is_an_incident_of_the_round(tmp_path: Path) -> None:
    log.warn("checkpoint_failed", step=1, reason="'of a run before, in this process'")
    tell = reporter(tmp_path, step=5)
    assert (written(tmp_path).resumed, written(tmp_path).incidents) == (5, ())
    log.warn("checkpoint_failed", step=10, reason=repr("no space"))
    for step in (10, 20):
        tell.training(figures(step))
    (found,) = written(tmp_path).incidents
    assert (found.worker, found.cause) == ("0", "checkpoint failed: step 10, reason no space")
    for step in range(30, 60):
        log.warn("metrics_failed", what="wandb", step=step)
        tell.training(figures(step))
    causes = [each.cause for each in written(tmp_path).incidents]
    assert causes == [f"metrics failed: what wandb, step {step}" for step in range(48, 60)], "the newest, each once"
    reporter(tmp_path).close()
    assert written(tmp_path).resumed is None


def test_time_between_rounds_is_not_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `trainyard stop`: a day later the run goes on, and has trained for the seconds of its rounds."""
    clock = [1000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    for begins, ends in ((1000.0, 1060.0), (90_000.0, 90_005.0), (200_000.0, 200_030.0)):
        clock[0] = begins
        tell = reporter(tmp_path)
        clock[0] = ends
        tell.end("terminated", "")
    found = written(tmp_path)
    assert (found.started, found.earlier_seconds, found.trained_seconds()) == (1000.0, 65.0, 95.0)


def test_of_all_who_tell_of_a_rounds_end_the_first_knows_why() -> None:
    former = {"round": 3, "began": 100.0, "members": {"0": 0, "1": 2, "2": 4}, "incidents": []}

    def told(worker: str, rank: int, *incidents: tuple[float, int, str]) -> dict[str, Any]:
        kept = [{"time": when, "worker": worker, "cause": cause, "after": after} for when, after, cause in incidents]
        return {"worker": worker, "rank": rank, "incidents": kept}

    parts = [
        told("0", 0, (90.0, 6, "told before"), (203.0, 7, "the workers left together")),
        told("0", 1, (90.0, 6, "told before"), (203.0, 7, "the workers left together")),
        told("2", 2, (201.0, 7, "a process was lost (SIGKILL)"), (204.0, 7, "1 worker left the round")),
    ]
    found = record.read(record.begin(former, parts))
    assert found is not None
    assert (found.round, found.members) == (4, {"0": 0, "2": 2})
    first, second = found.incidents
    assert first == Incident(201.0, "2", "round 3 ended: a process was lost (SIGKILL)")
    assert second.cause == "round 4 begins without worker 1"


def test_a_record_keeps_its_newest_incidents() -> None:
    former: dict[str, Any] = {}
    for number in range(record.KEPT + 5):
        record.note(f"cause {number}", after=number)
        former = record.begin(former, [record.introduce(0)])
    kept = [each["cause"] for each in former["incidents"]]
    assert len(kept) == record.KEPT
    assert kept[-1] == f"round {record.KEPT + 4} ended: cause {record.KEPT + 4}"


@pytest.mark.parametrize("line", ["", "record", "record {", "record {}", "step=1 loss=2"])
def test_other_lines_are_no_records(line: str) -> None:
    assert record.of_line(line) is None


@pytest.mark.parametrize(
    ("codes", "reason", "said"),
    [
        ([-9, 75], "", "a process was lost (SIGKILL) after step 7"),
        ([75], "a peer is lost", "begins again after step 7: a peer is lost"),
        ([143], "", "asked to leave after step 7, and has saved"),
        ([1], "no memory", "ended after step 7: no memory"),
        ([], "", "ended after step 7: no reason is known"),
    ],
)
def test_why_the_processes_of_a_worker_ended(codes: list[int], reason: str, said: str) -> None:
    assert record.ended(codes, reason, 7) == said
