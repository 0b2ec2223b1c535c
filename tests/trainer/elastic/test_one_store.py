"""Two runs on one etcd never meet, and a rendezvous that is closed, claimed or deserted says so by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.conftest import EtcdServer, Launcher, Settings, wait_until
from tests.trainer.elastic.test_hostile_state import EtcdPlace, changed
from trainer import launch
from trainer.elastic import nursery
from trainer.elastic.rendezvous import OWNER


@pytest.fixture
def place(shared_etcd: EtcdServer, run_id: str) -> EtcdPlace:
    return EtcdPlace(shared_etcd, run_id)


def test_runs_at_the_same_time_never_meet_and_nodes_of_one_run_do(
    start_launcher: Callable[..., Launcher], settings: Settings, tmp_path: Path
) -> None:
    """Without --rdzv-id. The second node of the first run spells its directory in another way."""
    run, other, link = tmp_path / "run", tmp_path / "other", tmp_path / "link"
    link.symlink_to(tmp_path)
    members = [(run, "2:3"), (f"{link}/./other/../run/", "2:3"), (other, "1:3")]
    nodes = [
        start_launcher(settings(folder, steps=100_000), ["--rdzv-id", "", "--nnodes", size]) for folder, size in members
    ]
    sizes = ["world_size=2", "world_size=2", "world_size=1"]
    for each, size in zip(nodes, sizes, strict=True):
        wait_until(lambda each=each, size=size: f"event=round round=1 {size}" in each.output, 90, size)
    assert "round=2" not in "".join(each.output for each in nodes)


@pytest.fixture
def told(place: EtcdPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run a launcher in this process; return its exit code and last words."""
    words = tmp_path / "words"
    monkeypatch.setenv("TRAINYARD_TERMINATION_LOG", str(words))
    monkeypatch.setattr(nursery, "is_safe", lambda: False)  # no fork of a process that runs other tests

    def run(arguments: list[str], *more: str) -> tuple[int, str]:
        timing = "keep_alive_interval=1,last_call_timeout=1,join_timeout=90"
        options = ["--rdzv-endpoint", place._endpoint, "--rdzv-conf", timing, "--local-addr", "127.0.0.1", *more]
        code = launch.main([*options, "--", *arguments])
        return code, json.loads(words.read_text("utf-8")).get("message", "")

    return run


def test_one_id_for_two_runs_is_refused(
    place: EtcdPlace, told: Callable[..., tuple[int, str]], settings: Settings, run_id: str, tmp_path: Path
) -> None:
    place.write(b"another run", f"store/{OWNER}")
    code, message = told(settings(tmp_path / "second"), "--rdzv-id", run_id)
    assert code == 42
    assert message.startswith(f"--rdzv-id {run_id}: another run than the one in {tmp_path / 'second'} has it; leave")


@pytest.mark.parametrize("done", ["never", "late"])
def test_a_closed_rendezvous_is_named_and_not_tried_again(
    place: EtcdPlace,
    told: Callable[..., tuple[int, str]],
    settings: Settings,
    run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    done: str,
) -> None:
    """Closed by another member, before or while this node waits; over NFS its DONE may come into sight later."""
    run, appears = tmp_path / "run", launch.appears

    def comes_into_sight(path: Path, _: float) -> bool:
        if done == "late":
            record = json.dumps({"step": 7, "message": "done"})
            threading.Timer(0.2, lambda: path.write_text(record)).start()
        return appears(path, 30 if done == "late" else 0)

    monkeypatch.setattr(launch, "appears", comes_into_sight)
    place.write(changed(closed=True))
    code, message = told(settings(run), "--rdzv-id", run_id)
    if done == "late":
        assert (code, message) == (0, "done")
    else:
        assert code == 42
        assert message.startswith(f"rendezvous {run_id} is closed, but {run} has no DONE: ")
        assert (
            "nothing is lost: start the run with another --rdzv-id, or on a cluster with `trainyard resume`" in message
        )


def test_a_node_that_no_other_joins_says_so_and_comes_again(
    told: Callable[..., tuple[int, str]], settings: Settings, tmp_path: Path
) -> None:
    code, message = told(settings(tmp_path / "run"), "--nnodes", "2:2", "--rdzv-conf", "join_timeout=1,close_timeout=1")
    assert code == 75
    assert message.endswith("fewer than 2 nodes came before join_timeout was over")
