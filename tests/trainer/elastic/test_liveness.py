"""Which members count as lost: the rendezvous' state machine on a simulated clock, without a store or a wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    RendezvousSettings,
    RendezvousTimeout,
    _NodeDesc,
    _RendezvousState,
)

from trainer.elastic import rendezvous_state
from trainer.elastic.liveness import WatchingStateHolder
from trainer.elastic.rendezvous import OpExecutor

A, B, C, D = (_NodeDesc(f"10.0.0.{number}", number, 0) for number in (1, 2, 3, 4))
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime.now(UTC) + timedelta(hours=1)


class World(RendezvousBackend):
    """A store in memory that can be away, the members' heartbeats, and the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self.state = _RendezvousState()
        self.state.complete = True
        for rank, node in enumerate((A, B, C)):
            self.state.participants[node] = rank
            self.state.last_heartbeats[node] = EPOCH
        self.beating: dict[_NodeDesc, float] = {A: 0.0, B: 0.0, C: 0.0}
        """Member -> how far its clock is off."""

    @property
    def name(self) -> str:
        return "memory"

    def get_state(self) -> tuple[bytes, Any] | None:
        if self.away:
            raise RendezvousConnectionError("away")
        return rendezvous_state.encode(self.state), 1

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        raise NotImplementedError

    def watcher(self) -> WatchingStateHolder:
        settings = RendezvousSettings(
            "run",
            1,
            3,
            RendezvousTimeout(),
            keep_alive_interval=timedelta(seconds=5),
            keep_alive_max_attempt=3,
        )
        holder = WatchingStateHolder(self, settings, clock=lambda: self.now)
        holder._cache_duration = 0
        return holder

    def run(self, seconds: float, *watchers: WatchingStateHolder) -> None:
        """Let time pass: members beat every 5 s when they reach the store, watchers look every second."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            if not self.away and self.now % 5 == 0:
                for node, skew in self.beating.items():
                    if node in self.state.last_heartbeats:
                        self.state.last_heartbeats[node] = EPOCH + timedelta(seconds=self.now + skew)
            for watcher in watchers:
                try:
                    watcher.sync()
                except RendezvousConnectionError:
                    assert self.away


def members(watcher: WatchingStateHolder) -> set[_NodeDesc]:
    return set(watcher.state.participants)


@pytest.fixture
def world() -> World:
    return World()


def test_members_that_beat_stay_and_one_that_is_silent_is_lost_within_20_seconds(world: World) -> None:
    watcher = world.watcher()
    world.run(60, watcher)
    assert members(watcher) == {A, B, C}
    del world.beating[C]
    world.run(12, watcher)
    assert members(watcher) == {A, B, C}, "a member may miss a beat or two"
    world.run(8, watcher)
    assert members(watcher) == {A, B}


def test_a_member_that_falls_silent_while_it_waits_is_waited_for_no_longer(world: World) -> None:
    """Otherwise every round would end for a member that never comes."""
    world.state.wait_list.add(D)
    world.state.last_heartbeats[D] = EPOCH
    world.beating[D] = 0.0
    watcher = world.watcher()
    world.run(30, watcher)
    assert watcher.state.wait_list == {D}
    del world.beating[D]
    world.run(20, watcher)
    assert (watcher.state.wait_list, members(watcher)) == (set(), {A, B, C})


@pytest.mark.parametrize("outage", [7, 16, 600])
@pytest.mark.parametrize("begin", range(20, 25))  # at every moment between two beats
def test_an_outage_of_the_store_loses_nobody(world: World, outage: int, begin: int) -> None:
    watcher = world.watcher()
    world.run(begin, watcher)
    world.away = True
    world.run(outage, watcher)
    world.away = False
    for _ in range(30):
        world.run(1, watcher)
        assert members(watcher) == {A, B, C}


def test_who_died_in_an_outage_is_lost_soon_after_it(world: World) -> None:
    watcher = world.watcher()
    world.run(20, watcher)
    world.away = True
    del world.beating[B]
    world.run(60, watcher)
    world.away = False
    world.run(20, watcher)
    assert members(watcher) == {A, C}


def test_a_newcomer_in_an_outage_throws_nobody_out(world: World) -> None:
    """Its pod started while etcd was away: all heartbeats are older than any keep-alive when it first sees them."""
    old = world.watcher()
    world.run(20, old)
    world.away = True
    world.run(90, old)
    world.away = False
    newcomer = world.watcher()
    for _ in range(30):
        world.run(1, old, newcomer)
        assert members(newcomer) == {A, B, C}


def test_a_watcher_that_was_frozen_throws_nobody_out(world: World) -> None:
    watcher = world.watcher()
    world.run(20, watcher)
    world.run(120)
    for _ in range(20):
        world.run(1, watcher)
        assert members(watcher) == {A, B, C}


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_clocks_that_differ_lose_nobody_and_save_nobody(world: World, skew: float) -> None:
    world.beating[B] = skew
    watcher = world.watcher()
    world.run(60, watcher)
    assert members(watcher) == {A, B, C}
    del world.beating[B]
    world.run(20, watcher)
    assert members(watcher) == {A, C}


def test_when_all_are_lost_the_next_round_may_begin(world: World) -> None:
    world.beating.clear()
    world.state.redundancy_list.add(C)
    watcher = world.watcher()
    world.run(20, watcher)
    assert members(watcher) == set()
    assert (watcher.state.complete, watcher.state.round) == (False, 1)
    assert not watcher.state.redundancy_list


class Round:
    """The round after that of A, B and C, as a member of that round sees it form."""

    def __init__(self, world: World) -> None:
        self.world, self.watcher = world, world.watcher()
        world.run(10, self.watcher)
        self.watcher.remember()
        world.state.complete, world.state.participants, world.state.round = False, {}, 1

    def wait(self, *nodes: _NodeDesc) -> None:
        self.world.state.wait_list.update(nodes)
        for node in nodes:
            self.world.state.last_heartbeats[node] = EPOCH
            self.world.beating[node] = 0.0

    def join(self, *nodes: _NodeDesc) -> None:
        self.wait(*nodes)
        self.world.state.wait_list.difference_update(nodes)
        self.world.state.participants.update(dict.fromkeys(nodes, 0))
        self.world.state.deadline = LATER

    @property
    def open(self) -> bool:
        """Whether the last call goes on, a second later."""
        self.world.run(1, self.watcher)
        return self.watcher.state.deadline == LATER


def test_a_round_waits_for_who_waits_for_it_and_then_no_longer(world: World) -> None:
    forming = Round(world)
    forming.wait(C)
    forming.join(A, B)
    assert forming.open
    forming.join(C)
    assert not forming.open


@pytest.mark.parametrize(
    ("former", "members", "waits"),
    [
        (1, (A, B), False),  # C is gone
        (0, (A,), True),  # a store that lost its data knows nothing of who comes back
        (2, (A, B), True),  # who missed a round does not know whom to wait for
    ],
)
def test_a_round_waits_for_whom_it_may_not_know(
    world: World, former: int, members: tuple[_NodeDesc, ...], waits: bool
) -> None:
    forming = Round(world)
    world.state.round = former
    forming.join(*members)
    assert forming.open is waits


def test_too_few_members_wait_however_long(world: World) -> None:
    forming = Round(world)
    forming.join(A, B, C)
    world.state.deadline = None  # as torch leaves it below the minimum of members
    world.run(10, forming.watcher)
    assert forming.watcher.state.deadline is None


def test_after_a_refused_write_the_state_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = world.watcher()
    watcher.sync()

    def refuse(state: bytes, token: Any = None) -> tuple[bytes, Any, bool]:
        faster = rendezvous_state.encode(world.state)
        world.state.wait_list.add(D)  # while this member pauses, yet another one writes
        world.state.last_heartbeats[D] = EPOCH
        return faster, 2, False

    monkeypatch.setattr(world, "set_state", refuse)
    watcher.mark_dirty()
    assert watcher.sync() is False
    assert watcher.state.wait_list == {D}, "the next change would be one of a state that is gone, and be refused"


@pytest.mark.parametrize(
    ("most", "let_in", "complete"), [(4, {B, C, D}, False), (3, {B, C, D}, True), (2, {B, D}, True)]
)
def test_who_opens_a_round_lets_in_all_who_wait_with_one_write(
    world: World, most: int, let_in: set[Any], complete: bool
) -> None:
    """Otherwise each of a thousand members writes the state once more. Nobody takes the place of the one who opens."""
    settings = RendezvousSettings("run", 2, most, RendezvousTimeout(), timedelta(seconds=5), 3)
    opener = OpExecutor(D, world.watcher(), settings)
    opener._state = _RendezvousState()
    opener._state.wait_list = {B, C, D}
    opener._add_to_participants()
    assert opener._state.participants.keys() == let_in
    assert opener._state.wait_list == {B, C, D} - let_in
    assert opener._state.complete is complete
    assert complete or opener._state.deadline is not None, "the last call has begun"
