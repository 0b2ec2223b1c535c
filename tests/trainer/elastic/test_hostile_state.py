"""The rendezvous state: what is written is read, and bytes that are none run no code and end no training."""

from __future__ import annotations

import json
import logging
import pickle
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from tests.trainer.conftest import EtcdServer, wait_until
from tests.trainer.elastic.meeting import meet
from tests.trainer.toy import Bomb
from trainer.elastic import rendezvous_etcd, rendezvous_state
from trainer.elastic.etcd import Etcd, access
from trainer.elastic.rendezvous import Handler


def full_state() -> _RendezvousState:
    state, now = _RendezvousState(), datetime.now(UTC)
    state.round, state.complete, state.deadline = 7, True, now + timedelta(seconds=5)
    nodes = [
        _NodeDesc(address, 12, number) for number, address in enumerate(("10.0.0.1", "fe80::1%eth0", "a_b.c", "d"))
    ]
    state.participants = {nodes[0]: 1, nodes[1]: 0}
    state.wait_list, state.redundancy_list = {nodes[2]}, {nodes[3]}
    state.last_heartbeats = dict.fromkeys(nodes, now)
    return state


def test_a_state_is_read_as_it_was_written() -> None:
    for state in (_RendezvousState(), full_state()):
        assert vars(rendezvous_state.decode(rendezvous_state.encode(state))) == vars(state)
    apart = rendezvous_state.decode(rendezvous_state.encode(full_state(), heartbeats=False))
    never = dict.fromkeys(full_state().last_heartbeats, rendezvous_state.NEVER)
    assert vars(apart) | {"deadline": None} == vars(full_state()) | {"deadline": None, "last_heartbeats": never}


def changed(**values: Any) -> bytes:
    return zlib.compress(
        json.dumps(json.loads(zlib.decompress(rendezvous_state.encode(full_state()))) | values).encode()
    )


@pytest.mark.parametrize(
    "data",
    [b"", json.dumps({"round": 1}).encode(), zlib.compress(b"[]"), changed(participants={"nobody": 0})],
    ids=["nothing", "not packed", "a list", "no member"],
)
def test_what_is_no_state_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(RendezvousStateError) as error:
        rendezvous_state.decode(data)
    assert "\n" not in str(error.value)


class EtcdPlace:
    def __init__(self, server: EtcdServer, run_id: str) -> None:
        self._endpoint, self._run_id = server.endpoint, run_id

    def join(self, address: str) -> Handler:
        options = {"keep_alive_interval": 1, "last_call_timeout": 1, "join_timeout": 40, "retry_seconds": 20}
        parameters = RendezvousParameters("etcd-v3", self._endpoint, self._run_id, 2, 2, address, **options)
        return rendezvous_etcd.create(parameters)

    def write(self, data: bytes, key: str = "state") -> None:
        Etcd(access(self._endpoint, {}, {})).put(f"{rendezvous_etcd.PREFIX}{self._run_id}/{key}", data)


@pytest.fixture
def place(shared_etcd: EtcdServer, run_id: str) -> EtcdPlace:
    return EtcdPlace(shared_etcd, run_id)


@pytest.fixture
def pair(place: EtcdPlace) -> Iterator[list[Handler]]:
    handlers = [place.join(f"127.0.0.{number}") for number in (1, 2)]
    yield handlers
    for handler in handlers:
        handler._stop_heartbeats()


def test_in_place_of_a_refused_state_nobody_asks_for_a_round_yet(place: EtcdPlace, pair: list[Handler]) -> None:
    """Rounds count from 0 again: whoever asked for that number before would be let into a round and not know it."""
    meet(*pair)
    still, other = pair
    still._stop_heartbeats()
    place.write(f"{datetime.now(UTC).isoformat()} 0".encode(), f"beats/{still._this_node}")
    place.write(b"no state")
    wait_until(lambda: other.num_nodes_waiting() > 0, 10, "it sees that its round is void")
    assert other._state_holder.asking() == set()


def test_a_hostile_state_is_refused_and_the_rendezvous_goes_on(
    place: EtcdPlace, pair: list[Handler], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "executed"
    hostile = pickle.dumps(Bomb(path))
    pickle.loads(hostile)  # it works: unpickling it makes the file
    path.unlink()
    assert sorted(info.rank for info in meet(*pair)) == [0, 1]
    with caplog.at_level(logging.WARNING):
        place.write(hostile)
        for each in pair:
            wait_until(lambda each=each: each.num_nodes_waiting() > 0, 10, "each sees that its round is void")
        assert sorted(info.rank for info in meet(*pair)) == [0, 1]
    assert not path.exists()
    refusals = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
    assert 1 <= len(refusals) <= 2, "one line for each member that saw it"
    assert all(f"{len(hostile)} bytes" in line and "\n" not in line for line in refusals)
