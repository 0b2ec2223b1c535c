"""The etcd-v3 rendezvous against a real etcd: its store, its leases, and plain torchrun over it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistStoreError, PrefixStore
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from tests.trainer.conftest import ROOT, EtcdServer, wait_until
from trainer.elastic.etcd import Etcd, _encode, access
from trainer.elastic.liveness import Beat
from trainer.elastic.rendezvous_etcd import EtcdBackend, EtcdStore


def connect(server: EtcdServer, **options: Any) -> Etcd:
    return Etcd(access(server.endpoint, {}, {}), **options)


def data(etcd: Etcd, key: str) -> bytes | None:
    found = etcd.get(key)
    return found.data if found else None


@pytest.fixture
def etcd(shared_etcd: EtcdServer) -> Etcd:
    return connect(shared_etcd, retry_seconds=5)


@pytest.fixture
def store(etcd: Etcd, run_id: str) -> EtcdStore:
    return EtcdStore(etcd, run_id, timeout=timedelta(seconds=5))


def test_the_backend_keeps_torchs_contract(etcd: Etcd, run_id: str) -> None:
    backend = EtcdBackend(etcd, run_id)
    assert backend.get_state() is None
    first = backend.set_state(b"a")
    assert first is not None
    assert first[2] is True
    assert backend.get_state() == first[:2]
    assert backend.set_state(b"b") == (b"a", first[1], False)  # no token: only where there is no state
    second = backend.set_state(b"c", first[1])
    assert second is not None
    assert second[0] == b"c"
    assert second[2] is True
    assert backend.set_state(b"d", first[1]) == (b"c", second[1], False)


def test_heartbeats_are_seen_by_the_others_and_void_nobodys_change(shared_etcd: EtcdServer, run_id: str) -> None:
    ours, theirs = (EtcdBackend(connect(shared_etcd), run_id) for _ in range(2))
    written = ours.set_state(b"state")
    assert written is not None
    first, second = Beat(datetime(2026, 11, 21, tzinfo=UTC)), Beat(datetime(2026, 11, 22, tzinfo=UTC), asked=7)
    theirs.beat("theirs_1_0", first)
    assert ours.get_state() == (b"state", written[1])
    assert ours.beats == {"theirs_1_0": first}
    theirs.beat("theirs_1_0", second)
    changed = ours.set_state(b"changed", written[1])
    assert changed is not None
    assert changed[2] is True, "a heartbeat in between made the change void"
    assert theirs.get_state() == ours.get_state() == changed[:2]
    assert ours.beats == {"theirs_1_0": second}


def test_a_state_that_went_away_is_none_though_it_was_known(etcd: Etcd, run_id: str) -> None:
    backend = EtcdBackend(etcd, run_id)
    backend.set_state(b"state")
    assert backend.get_state() is not None
    assert backend.get_state() is not None, "unchanged, and therefore not sent"
    etcd._call("/kv/deleterange", {"key": _encode(f"/trainyard/rendezvous/{run_id}/state")})
    assert backend.get_state() is None


def test_the_store_has_what_torchs_agents_use(store: EtcdStore) -> None:
    wrapped = PrefixStore("round.1", store)  # torch calls it from C++ through this
    wrapped.set("address", "10.0.0.1")
    assert wrapped.get("address") == b"10.0.0.1"
    assert wrapped.add("count", 2) == 2
    assert wrapped.add("count", 3) == 5
    assert wrapped.check(["address", "count"])
    assert not wrapped.check(["address", "nothing"])
    wrapped.wait(["address"], timedelta(seconds=1))
    assert wrapped.compare_set("word", "", "first") == b"first"
    assert wrapped.compare_set("word", "other", "second") == b"first"
    assert wrapped.compare_set("word", "first", "second") == b"second"
    assert wrapped.multi_get(["address", "count"]) == [b"10.0.0.1", b"5"]
    wrapped.multi_set(["x", "y"], ["1", "2"])  # pyrefly: ignore[missing-attribute]
    assert wrapped.get("y") == b"2"
    many = [str(number) for number in range(150)]  # more than etcd takes in one transaction
    store.multi_set(many, list(many))
    assert store.multi_get(many) == [value.encode() for value in many]


def test_waiting_ends_when_the_key_comes_and_when_time_is_up(store: EtcdStore) -> None:
    threading.Timer(0.5, lambda: store.set("late", b"here")).start()
    began = time.monotonic()
    assert store.get("late") == b"here"
    assert 0.4 < time.monotonic() - began < 60
    with pytest.raises(DistStoreError, match="never"):
        store.wait(["never"], timedelta(seconds=0.3))


def test_counters_lose_no_addition(shared_etcd: EtcdServer, run_id: str) -> None:
    def add() -> None:
        own = EtcdStore(connect(shared_etcd), run_id)
        for _ in range(10):
            own.add("count", 1)

    threads = [threading.Thread(target=add) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert EtcdStore(connect(shared_etcd), run_id).get("count") == b"60"


def test_keys_stay_while_their_writer_lives_and_go_after_it(shared_etcd: EtcdServer, run_id: str) -> None:
    writer, reader = connect(shared_etcd, lease_seconds=2), connect(shared_etcd)
    writer.put(run_id, b"here")
    end = time.monotonic() + 3
    while time.monotonic() < end:  # any write renews the lease
        writer.put(run_id + "-alive", b"")
        assert reader.get(run_id) is not None
        time.sleep(0.3)
    wait_until(lambda: reader.get(run_id) is None, 10, "the key of a silent writer goes away")
    writer.put(run_id, b"again")  # a writer that was frozen so long gets a new lease
    assert reader.get(run_id) is not None


def test_calls_ride_through_a_restart_of_etcd(own_etcd: EtcdServer, run_id: str) -> None:
    etcd = connect(own_etcd, retry_seconds=30)
    etcd.put(run_id, b"before")
    own_etcd.kill()
    threading.Timer(1.5, own_etcd.start).start()
    assert data(etcd, run_id) == b"before"
    etcd.put(run_id, b"after")
    assert data(etcd, run_id) == b"after"


def test_an_etcd_that_stays_away_is_told(own_etcd: EtcdServer) -> None:
    own_etcd.kill()
    with pytest.raises(RendezvousConnectionError, match=r"cannot be reached for 1 s: .*refused"):
        connect(own_etcd, retry_seconds=1).get("x")


def test_plain_torchrun_meets_over_it(shared_etcd: EtcdServer, run_id: str, tmp_path: Path) -> None:
    """The real torchrun, with the package's entry point as an installation writes it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    information = tmp_path / "site" / "trainyard-0.1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: trainyard\nVersion: 0.1\n")
    points = project["entry-points"]["torchrun.handlers"]
    text = "".join(f"{name} = {function}\n" for name, function in points.items())
    (information / "entry_points.txt").write_text(f"[torchrun.handlers]\n{text}")
    script = tmp_path / "worker.py"
    script.write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--rdzv-backend", "etcd-v3"]
    command += ["--rdzv-endpoint", shared_etcd.endpoint, "--rdzv-id", run_id, "--rdzv-conf", "join_timeout=60"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{information.parent}"}
    node = subprocess.run(
        [*command, "--local-addr", "127.0.0.1", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert node.returncode == 0, node.stderr
    assert node.stdout == "rank 0 of 1\n"
