"""The etcd-v3 rendezvous against a real etcd: its store, its leases, its rounds, and etcd's own restart."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistStoreError, PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _RendezvousExitOp

from tests.trainer.conftest import ROOT, EtcdServer, wait_until
from trainer import rendezvous_etcd
from trainer.etcd import Etcd, access
from trainer.rendezvous import Handler
from trainer.rendezvous_etcd import EtcdBackend, EtcdStore


def connect(server: EtcdServer, **options: Any) -> Etcd:
    return Etcd(access(server.endpoint, {}, {}), **options)


def data(etcd: Etcd, key: str) -> bytes | None:
    found = etcd.get(key)
    return found.data if found else None


@pytest.fixture
def etcd(shared_etcd: EtcdServer) -> Etcd:
    return connect(shared_etcd, retry_seconds=5)


@pytest.fixture
def run_id(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.node.name}-{tmp_path.name}"


@pytest.fixture
def store(etcd: Etcd, run_id: str) -> EtcdStore:
    return EtcdStore(etcd, run_id, timeout=timedelta(seconds=5))


def test_a_swap_needs_the_revision_that_was_read(etcd: Etcd, run_id: str) -> None:
    written, now = etcd.swap(run_id, b"one", 0)
    assert written
    assert now is not None
    assert now == etcd.get(run_id)
    assert etcd.swap(run_id, b"late", 0) == (False, now)
    assert etcd.swap(run_id, b"two", now.revision)[0]
    assert etcd.swap(run_id, b"three", now.revision)[0] is False
    assert data(etcd, run_id) == b"two"


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
    wrapped.multi_set(["x", "y"], ["1", "2"])  # pyright: ignore[reportAttributeAccessIssue]
    assert wrapped.get("y") == b"2"
    assert store.num_keys() == 5
    assert wrapped.delete_key("address")
    assert not wrapped.delete_key("address")


def test_waiting_ends_when_the_key_comes_and_when_time_is_up(store: EtcdStore) -> None:
    threading.Timer(0.5, lambda: store.set("late", b"here")).start()
    began = time.monotonic()
    assert store.get("late") == b"here"
    assert 0.4 < time.monotonic() - began < 4
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
    end = time.monotonic() + 4
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
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--rdzv-backend", "etcd-v3"]
    command += ["--rdzv-endpoint", shared_etcd.endpoint, "--rdzv-id", run_id, "--rdzv-conf", "join_timeout=60"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{information.parent}"}
    nodes = [
        subprocess.Popen(
            [*command, "--local-addr", f"127.0.0.{number}", str(script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in (1, 2)
    ]
    try:
        said = [node.communicate(timeout=90)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    assert sorted(re.findall(r"rank \d of \d", "".join(said))) == ["rank 0 of 2", "rank 1 of 2"]


class Nodes:
    """Members of one rendezvous, each with an address of its own."""

    def __init__(self, endpoint: str, run_id: str, low: int, high: int) -> None:
        self._endpoint, self._run_id, self._low, self._high = endpoint, run_id, low, high
        self.handlers: dict[str, Handler] = {}

    def add(self, name: str, address: str, **changes: Any) -> None:
        options = {"keep_alive_interval": 1, "last_call_timeout": 1, "join_timeout": 40, "retry_seconds": 20}
        options |= changes
        parameters = RendezvousParameters(
            "etcd-v3", self._endpoint, self._run_id, self._low, self._high, address, **options
        )
        self.handlers[name] = rendezvous_etcd.create(parameters)

    def meet(self, names: str) -> dict[str, RendezvousInfo]:
        """All of `names` join the next round at once."""
        found: dict[str, RendezvousInfo] = {}

        def join(name: str) -> None:
            found[name] = self.handlers[name].next_rendezvous()

        threads = [threading.Thread(target=join, args=(name,), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(found) == sorted(names), f"only {sorted(found)} met"
        return found

    def vanish(self, name: str) -> None:
        self.handlers.pop(name)._stop_heartbeats()

    def end(self) -> None:
        for name in list(self.handlers):
            self.vanish(name)


@pytest.fixture
def nodes(shared_etcd: EtcdServer, run_id: str) -> Iterator[Callable[[int, int], Nodes]]:
    groups: list[Nodes] = []

    def make(low: int, high: int) -> Nodes:
        groups.append(Nodes(shared_etcd.endpoint, run_id, low, high))
        return groups[-1]

    yield make
    for group in groups:
        group.end()  # a heartbeat's thread that collects its own handler cannot join itself


def masters(found: dict[str, RendezvousInfo]) -> set[tuple[str, int]]:
    stores = [info.bootstrap_store_info for info in found.values()]
    return {(store.master_addr, store.master_port) for store in stores if store is not None}


def test_rank_zero_lost_and_replaced_and_all_agree_on_each_rounds_master(nodes: Callable[[int, int], Nodes]) -> None:
    group = nodes(2, 3)
    for name, address in zip("abc", ("127.0.0.1", "127.0.0.2", "127.0.0.3"), strict=True):
        group.add(name, address)
    first = group.meet("abc")
    assert sorted(info.rank for info in first.values()) == [0, 1, 2]
    assert first["a"].rank == 0
    assert len(masters(first)) == 1
    assert group.handlers["b"].num_nodes_waiting() == 0

    group.vanish("a")
    for name in "bc":  # seen within the keep-alive of 3 s, with nobody waiting to join
        wait_until(lambda name=name: group.handlers[name].num_nodes_waiting() > 0, 10, f"{name} sees that a is lost")
    second = group.meet("bc")
    assert {info.world_size for info in second.values()} == {2}
    assert len(masters(second)) == 1
    assert masters(second) != masters(first)
    assert group.handlers["b"].round == 2

    group.add("a", "127.0.0.1")
    third_of_a: list[RendezvousInfo] = []
    waiting = threading.Thread(target=lambda: third_of_a.append(group.handlers["a"].next_rendezvous()), daemon=True)
    waiting.start()
    wait_until(lambda: group.handlers["b"].num_nodes_waiting() == 1, 10, "b sees a waiting")
    third = group.meet("bc")
    waiting.join(30)
    assert third_of_a[0].rank == 0
    assert len(masters({**third, "a": third_of_a[0]})) == 1
    assert third["b"].world_size == 3


def test_a_member_that_leaves_is_not_waited_for(nodes: Callable[[int, int], Nodes]) -> None:
    group = nodes(1, 2)
    group.add("a", "127.0.0.1")
    group.add("b", "127.0.0.2")
    group.meet("ab")
    group.handlers["a"].leave()
    wait_until(lambda: group.handlers["b"].num_nodes_waiting() > 0, 2, "b sees at once that a left")
    assert group.meet("b")["b"].world_size == 1


def test_members_that_come_back_wait_for_no_others(nodes: Callable[[int, int], Nodes]) -> None:
    """As in the stack's Job, whose greatest number of members is never reached."""
    group = nodes(2, 1000)
    for name, address in zip("ab", ("127.0.0.1", "127.0.0.2"), strict=True):
        group.add(name, address, last_call_timeout=8)
    group.meet("ab")
    began = time.monotonic()
    assert group.meet("ab")["a"].world_size == 2
    assert time.monotonic() - began < 6, "the last call was waited for"


def test_a_member_that_changes_rounds_is_always_seen(nodes: Callable[[int, int], Nodes]) -> None:
    """Not gone for a moment: the others would begin without it."""
    group = nodes(1, 3)
    group.add("a", "127.0.0.1")
    group.add("b", "127.0.0.2")
    group.meet("ab")
    moving, watching = group.handlers["a"], group.handlers["b"]
    moving._op_executor.run(_RendezvousExitOp(), time.monotonic() + 10)  # what next_rendezvous does first
    wait_until(lambda: watching.num_nodes_waiting() == 1, 5, "b sees that a waits for the next round")
    state = watching._state_holder.state
    assert (len(state.participants), len(state.wait_list)) == (1, 1)
    moving.leave()
    assert group.meet("b")["b"].world_size == 1


def test_a_spare_that_finds_no_place_makes_no_new_round(nodes: Callable[[int, int], Nodes]) -> None:
    group = nodes(1, 2)
    for number, name in enumerate("abc", 1):
        group.add(name, f"127.0.0.{number}")
    group.meet("ab")
    found: list[str] = []

    def join(name: str) -> None:
        with contextlib.suppress(RendezvousClosedError, RendezvousGracefulExitError):
            group.handlers[name].next_rendezvous()
            found.append(name)

    threads = [threading.Thread(target=join, args=(name,), daemon=True) for name in "cab"]
    for thread in threads:
        thread.start()
        time.sleep(1.5)  # the spare has seen that the round is full; then that there is room
    wait_until(lambda: len(found) == 2, 30, "two of the three are in the next round")
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert [group.handlers[name].num_nodes_waiting() for name in found] == [0, 0]
        time.sleep(0.5)
    group.handlers[found[0]].shutdown()
    for thread in threads:
        thread.join(20)


def test_a_finished_rendezvous_sends_late_joiners_away(nodes: Callable[[int, int], Nodes]) -> None:
    group = nodes(1, 1)
    group.add("a", "127.0.0.1")
    group.meet("a")
    group.handlers["a"].shutdown()
    group.add("late", "127.0.0.2")
    with pytest.raises(RendezvousClosedError):
        group.handlers["late"].next_rendezvous()


def test_training_goes_on_while_etcd_is_away(own_etcd: EtcdServer, run_id: str) -> None:
    group = Nodes(own_etcd.endpoint, run_id, 1, 1)
    group.add("a", "127.0.0.1")
    group.meet("a")
    handler = group.handlers["a"]
    own_etcd.kill()
    time.sleep(1.1)  # past the time for which torch answers from its cache
    began = time.monotonic()
    assert handler.num_nodes_waiting() == 0
    assert time.monotonic() - began < 3, "looking after the workers must not stop meanwhile"
    own_etcd.start()
    wait_until(lambda: handler.get_backend() == "etcd-v3" and not handler.is_closed(), 5, "etcd is used again")
    assert handler.num_nodes_waiting() == 0


def test_an_outage_longer_than_the_keep_alive_loses_no_member(own_etcd: EtcdServer, run_id: str) -> None:
    """What an etcd pod that moves to another node does: away for four times the keep-alive, then back with its data."""
    group = Nodes(own_etcd.endpoint, run_id, 2, 2)
    group.add("a", "127.0.0.1")
    group.add("b", "127.0.0.2")
    group.meet("ab")
    try:
        for _ in range(3):
            assert [group.handlers[name].num_nodes_waiting() for name in "ab"] == [0, 0]
            time.sleep(1)
        own_etcd.kill()
        end = time.monotonic() + 12
        while time.monotonic() < end:
            assert [group.handlers[name].num_nodes_waiting() for name in "ab"] == [0, 0]
            time.sleep(0.5)
        own_etcd.start()
        end = time.monotonic() + 8
        while time.monotonic() < end:
            assert [group.handlers[name].num_nodes_waiting() for name in "ab"] == [0, 0]
            time.sleep(0.5)
        group.vanish("b")
        wait_until(lambda: group.handlers["a"].num_nodes_waiting() > 0, 12, "a loss after it is still seen")
    finally:
        group.end()


def test_an_etcd_that_lost_its_data_is_a_new_round_by_itself(own_etcd: EtcdServer, run_id: str) -> None:
    group = Nodes(own_etcd.endpoint, run_id, 2, 2)
    group.add("a", "127.0.0.1")
    group.add("b", "127.0.0.2")
    first = group.meet("ab")
    own_etcd.lose_data()
    own_etcd.start()
    for name in "ab":
        wait_until(lambda name=name: group.handlers[name].num_nodes_waiting() > 0, 10, f"{name} is in no round")
    second = group.meet("ab")
    group.end()
    assert sorted(info.rank for info in second.values()) == [0, 1]
    assert masters(second) != masters(first)
