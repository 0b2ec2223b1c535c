"""The rounds of the etcd-v3 rendezvous against a real etcd: members meet and are lost, and etcd itself restarts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _RendezvousExitOp

from tests.trainer.conftest import EtcdServer, wait_until
from tests.trainer.elastic.meeting import meet
from trainer.elastic import rendezvous_etcd
from trainer.elastic.etcd import Etcd, access
from trainer.elastic.liveness import Beat
from trainer.elastic.rendezvous import Handler, RoundOver

PATIENCE, IMPATIENCE = 60, 3
"""Seconds of silence after which a member is lost: in a test of members that live, and in one that loses some. A test's
process may not run for some seconds while others use the processors."""
PAUSE_SECONDS = 0.1
"""Between two looks of a member at the state; torch takes a second, to spare the store of a large round."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_rendezvous, "_delay", lambda seconds: time.sleep(PAUSE_SECONDS))


class Nodes:
    """Members of one rendezvous, each with an address of its own."""

    def __init__(self, endpoint: str, run_id: str, low: int, high: int) -> None:
        self._endpoint, self.run_id, self._low, self._high = endpoint, run_id, low, high
        self.handlers: dict[str, Handler] = {}

    def add(self, name: str, address: str, **changes: Any) -> None:
        options = {"keep_alive_interval": 1, "last_call_timeout": 1, "join_timeout": 40, "retry_seconds": 20}
        options |= {"keep_alive_max_attempt": PATIENCE} | changes
        parameters = RendezvousParameters(
            "etcd-v3", self._endpoint, self.run_id, self._low, self._high, address, **options
        )
        self.handlers[name] = handler = rendezvous_etcd.create(parameters)
        handler._state_holder._cache_duration = PAUSE_SECONDS  # pyrefly: ignore[bad-assignment]

    def meet(self, names: str) -> dict[str, RendezvousInfo]:
        """All of `names` join the next round at once."""
        return dict(zip(names, meet(*(self.handlers[name] for name in names)), strict=True))

    def vanish(self, name: str) -> None:
        """A member beats no more, and the others miss it soon."""
        self.handlers.pop(name)._stop_heartbeats()
        for handler in self.handlers.values():
            miss_soon(handler)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        # A handler that its own heartbeat thread collects cannot join that thread, which would go on and complain.
        for name in list(self.handlers):
            self.vanish(name)


@pytest.fixture
def nodes(shared_etcd: EtcdServer, run_id: str) -> Iterator[Callable[[int, int], Nodes]]:
    with contextlib.ExitStack() as groups:
        yield lambda low, high: groups.enter_context(Nodes(shared_etcd.endpoint, run_id, low, high))


def miss_soon(member: Handler) -> None:
    """It waits no longer than the IMPATIENCE for who is silent."""
    holder = member._state_holder
    holder._settings = replace(holder._settings, keep_alive_max_attempt=IMPATIENCE)


def etcd_of(member: Handler) -> Etcd:
    """The client with which it changes rounds."""
    backend = member._state_holder._backend
    assert isinstance(backend, rendezvous_etcd.EtcdBackend)
    return backend._etcd


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


def test_members_at_rest_beat_and_change_no_state(nodes: Callable[[int, int], Nodes]) -> None:
    """Hundreds of heartbeats in one key, each of which invalidates the others' writes, ended large rounds."""
    group = nodes(2, 2)
    group.add("a", "127.0.0.1")
    group.add("b", "127.0.0.2")
    group.meet("ab")
    backend = rendezvous_etcd.EtcdBackend(etcd_of(group.handlers["a"]), group.run_id)
    before, beats = backend.get_state(), defaultdict[str, set[Beat]](set)

    def have_beaten() -> bool:
        assert [group.handlers[name].num_nodes_waiting() for name in "ab"] == [0, 0]
        assert backend.get_state() == before
        for member, beat in backend.beats.items():
            beats[member].add(beat)
        return [len(each) > 2 for each in beats.values()] == [True, True]

    wait_until(have_beaten, 30, "both beat")


def test_a_member_beats_while_others_are_faster_with_every_change(
    nodes: Callable[[int, int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = nodes(2, 2)
    group.add("a", "127.0.0.1")
    group.add("b", "127.0.0.2")
    group.meet("ab")
    moving, watching = group.handlers["a"], group.handlers["b"]
    moving._stop_heartbeats()
    swap, others_pause = etcd_of(moving).swap, threading.Event()

    def refused(key: str, value: bytes, revision: int) -> Any:
        return swap(key, value, revision if others_pause.is_set() else revision + 1)

    monkeypatch.setattr(etcd_of(moving), "swap", refused)
    leaving = threading.Thread(
        target=lambda: moving._op_executor.run(_RendezvousExitOp(), time.monotonic() + 30), daemon=True
    )
    backend, beats = rendezvous_etcd.EtcdBackend(etcd_of(watching), group.run_id), set[Beat]()
    leaving.start()

    def has_beaten() -> bool:
        backend.get_state()
        beats.add(backend.beats[str(moving._this_node)])
        return len(beats) > 2

    wait_until(has_beaten, 30, "it beats")
    others_pause.set()
    leaving.join(20)
    assert not leaving.is_alive()
    wait_until(lambda: watching.num_nodes_waiting() == 1, 60, "b sees that a waits for the next round")


def test_who_writes_takes_all_along_who_ask_for_the_same(
    nodes: Callable[[int, int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand members, each of whose writes invalidates the others', would need minutes for a round."""
    group = nodes(3, 3)
    for number, name in enumerate("abc", 1):
        group.add(name, f"127.0.0.{number}")
    for name in "bc":  # always too late
        swap = etcd_of(group.handlers[name]).swap
        late = lambda key, value, revision, swap=swap: swap(key, value, revision + 1)  # noqa: E731
        monkeypatch.setattr(etcd_of(group.handlers[name]), "swap", late)
    writing = group.handlers["a"]

    def asked() -> bool:
        writing.num_nodes_waiting()
        return len(writing._state_holder.asking()) == 2

    for _ in range(2):
        with ThreadPoolExecutor(2) as pool:
            late_ones = [pool.submit(group.handlers[name].next_rendezvous) for name in "bc"]
            wait_until(asked, 30, "both ask for the round")
            assert {writing.next_rendezvous().world_size, *(each.result().world_size for each in late_ones)} == {3}
    assert group.handlers["c"].round == 2


def test_nobody_brings_a_member_back_that_leaves(nodes: Callable[[int, int], Nodes]) -> None:
    group = nodes(1, 3)
    for number, name in enumerate("abc", 1):
        group.add(name, f"127.0.0.{number}")
    group.meet("abc")
    leaving = group.handlers["c"]
    leaving._op_executor.run(_RendezvousExitOp(), time.monotonic() + 10)  # asks for the next round
    leaving.leave()
    assert group.meet("ab")["a"].world_size == 2


def test_members_that_come_back_wait_for_no_others(nodes: Callable[[int, int], Nodes]) -> None:
    """As in a stack's Job, which never reaches its maximum of members."""
    group = nodes(2, 1000)
    for name, address in zip("ab", ("127.0.0.1", "127.0.0.2"), strict=True):
        group.add(name, address)
    group.meet("ab")
    for handler in group.handlers.values():  # longer than they have to join: a round that waits for it fails
        handler._settings.timeout._last_call = timedelta(hours=1)
    assert group.meet("ab")["a"].world_size == 2


def test_newcomers_have_their_last_call_while_the_members_train(nodes: Callable[[int, int], Nodes]) -> None:
    group = nodes(1, 1000)
    for name, address in zip("ab", ("127.0.0.1", "127.0.0.2"), strict=True):
        group.add(name, address)
    group.meet("a")
    member, found = group.handlers["a"], list[RendezvousInfo]()
    member._settings.timeout._last_call = timedelta(hours=1)
    joining = threading.Thread(target=lambda: found.append(group.handlers["b"].next_rendezvous()), daemon=True)
    joining.start()

    def seen() -> bool:
        assert member.num_nodes_waiting() == 0, "the members train until the last call is over"
        return len(member._state_holder.state.wait_list) == 1

    wait_until(seen, 30, "the newcomer")
    member._settings.timeout._last_call = timedelta(0)
    assert member.num_nodes_waiting() == 1
    member._settings.timeout._last_call = timedelta(hours=1)
    assert group.meet("a")["a"].world_size == 2
    joining.join(30)
    assert found[0].world_size == 2


def test_a_newcomer_that_is_lost_while_it_waits_holds_nobody_up(nodes: Callable[[int, int], Nodes]) -> None:
    """It asks for the next round, as a pod does that is deleted then; it would have been its rank 0."""
    group = nodes(1, 1000)
    for name, address in zip("ab", ("127.0.0.2", "127.0.0.1"), strict=True):
        group.add(name, address)
    group.meet("a")
    member, newcomer = group.handlers["a"], group.handlers["b"]
    sync, killed = newcomer._state_holder.sync, threading.Event()

    def until_killed() -> bool | None:
        if killed.is_set():
            raise RuntimeError("killed")
        return sync()

    newcomer._state_holder.sync = until_killed

    def join() -> None:
        with contextlib.suppress(RuntimeError):
            newcomer.next_rendezvous()

    joining = threading.Thread(target=join, daemon=True)
    joining.start()

    def waits() -> bool:
        member.num_nodes_waiting()
        return len(member._state_holder.state.wait_list) == 1

    wait_until(waits, 30, "the newcomer")
    killed.set()
    joining.join(30)
    with ThreadPoolExecutor(1) as pool:
        round_of_both = pool.submit(member.next_rendezvous)
        wait_until(lambda: len(member._state_holder.state.participants) == 2, 30, "a round of both")
        miss_soon(member)
        with pytest.raises(RoundOver, match=r"nobody is left to write .*MASTER_ADDR"):
            round_of_both.result()
    assert group.meet("a")["a"].world_size == 1


def test_a_member_that_changes_rounds_is_always_seen(nodes: Callable[[int, int], Nodes]) -> None:
    """Not gone for a moment: the others would begin without it."""
    group = nodes(1, 3)
    group.add("a", "127.0.0.1")
    group.add("b", "127.0.0.2")
    group.meet("ab")
    moving, watching = group.handlers["a"], group.handlers["b"]
    moving._op_executor.run(_RendezvousExitOp(), time.monotonic() + 10)  # what next_rendezvous does first
    wait_until(lambda: watching.num_nodes_waiting() == 1, 60, "b sees that a waits for the next round")
    state = watching._state_holder.state
    assert (len(state.participants), len(state.wait_list)) == (1, 1)
    assert (watching.left_members(), watching.lost_members()) == (1, 0)
    moving.leave()
    wait_until(lambda: watching.num_nodes_waiting() == 1 == watching.lost_members(), 60, "b sees that a left for good")
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

    def seen(spares: int, waiting: int) -> bool:
        group.handlers["b"].num_nodes_waiting()
        state = group.handlers["b"]._state_holder.state
        return (len(state.redundancy_list), len(state.wait_list)) == (spares, waiting)

    threads = [threading.Thread(target=join, args=(name,), daemon=True) for name in "cab"]
    threads[0].start()
    wait_until(lambda: seen(1, 0), 30, "the spare has seen that the round is full")
    threads[1].start()
    wait_until(lambda: seen(0, 2), 30, "the spare has seen that there is room")
    threads[2].start()
    wait_until(lambda: len(found) == 2, 30, "two of the three are in the next round")
    end = time.monotonic() + 15 * PAUSE_SECONDS
    while time.monotonic() < end:
        assert [group.handlers[name].num_nodes_waiting() for name in found] == [0, 0]
        time.sleep(PAUSE_SECONDS)
    group.handlers[found[0]].shutdown()
    for thread in threads:
        thread.join(20)


def test_a_round_outlives_whoever_wrote_the_state_last(
    nodes: Callable[[int, int], Nodes], shared_etcd: EtcdServer
) -> None:
    """A spare that wrote the state last took it along when its lease ended: all trained on, and found no state."""
    group = nodes(1, 1)
    group.add("a", "127.0.0.1", lease_seconds=2)
    group.meet("a")
    lost = rendezvous_etcd.EtcdBackend(Etcd(access(shared_etcd.endpoint, {}, {}), lease_seconds=2), group.run_id)
    found = lost.get_state()
    assert found is not None
    written = lost.set_state(*found)
    assert written is not None
    assert written[2] is True
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        assert group.handlers["a"].num_nodes_waiting() == 0
        time.sleep(0.5)
    assert lost.get_state() == written[:2]


def test_training_goes_on_while_etcd_is_away(
    own_etcd: EtcdServer, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Nodes(own_etcd.endpoint, run_id, 1, 1) as group:
        group.add("a", "127.0.0.1")
        group.meet("a")
        handler = group.handlers["a"]
        own_etcd.kill()
        time.sleep(2 * PAUSE_SECONDS)  # past the time for which torch answers from its cache
        began = time.monotonic()
        assert handler.num_nodes_waiting() == 0
        assert time.monotonic() - began < 15, "looking after the workers must not stop meanwhile"
        assert handler.num_nodes_waiting() == 0
        assert caplog.text.count("rendezvous store out of reach") == 1
        own_etcd.start()
        wait_until(lambda: handler.get_backend() == "etcd-v3" and not handler.is_closed(), 60, "etcd is used again")
        assert handler.num_nodes_waiting() == 0


def test_an_etcd_that_lost_its_data_is_a_new_round_by_itself(own_etcd: EtcdServer, run_id: str) -> None:
    with Nodes(own_etcd.endpoint, run_id, 2, 2) as group:
        group.add("a", "127.0.0.1")
        group.add("b", "127.0.0.2")
        first = group.meet("ab")
        own_etcd.lose_data()
        own_etcd.start()
        for name in "ab":
            wait_until(lambda name=name: group.handlers[name].num_nodes_waiting() > 0, 10, f"{name} is in no round")
            assert group.handlers[name].left_members() == 0, "its workers still have all their peers, and can save"
        second = group.meet("ab")
        assert sorted(info.rank for info in second.values()) == [0, 1]
        assert masters(second) != masters(first)


def test_a_late_heartbeat_brings_no_lost_round_back(own_etcd: EtcdServer, run_id: str) -> None:
    with Nodes(own_etcd.endpoint, run_id, 1, 1) as group:
        group.add("a", "127.0.0.1", keep_alive_interval=60)
        group.meet("a")
        handler = group.handlers["a"]
        # As a heartbeat leaves it when it finds etcd gone.
        handler._state_holder.mark_dirty()
        own_etcd.lose_data()
        own_etcd.start()
        handler._keep_alive()
        assert handler.num_nodes_waiting() > 0
