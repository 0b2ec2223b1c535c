"""A hostile pod's bytes in the rendezvous are refused in one line, run no code, and end no training."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from tests.trainer.conftest import EtcdServer, wait_until
from tests.trainer.elastic.meeting import meet
from tests.trainer.toy import Bomb
from trainer.elastic import etcd, rendezvous_etcd, rendezvous_state
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


def test_heartbeats_that_have_keys_of_their_own_are_not_in_the_state() -> None:
    apart = rendezvous_state.decode(rendezvous_state.encode(full_state(), heartbeats=False))
    never = dict.fromkeys(full_state().last_heartbeats, rendezvous_state.NEVER)
    assert vars(apart) | {"deadline": None} == vars(full_state()) | {"deadline": None, "last_heartbeats": never}


def test_a_thousand_members_write_the_state_in_at_most_16_mib() -> None:
    """Each of them writes it once in a round: here half of them have left the last one for the next."""
    nodes = [_NodeDesc(f"10.{number * 7 % 4}.{number * 31 % 256}.{number % 250}", 7, number) for number in range(1000)]
    state = _RendezvousState()
    state.participants, state.wait_list = {node: rank for rank, node in enumerate(nodes[:500])}, {*nodes[500:]}
    now = datetime.now(UTC)
    state.last_heartbeats = {node: now - timedelta(microseconds=4211 * rank) for rank, node in enumerate(nodes)}
    assert len(rendezvous_state.encode(state, heartbeats=False)) * len(nodes) < 16 << 20
    assert len(rendezvous_state.encode(state)) * len(nodes) > 16 << 20, "with heartbeats, which have keys of their own"


def changed(**values: Any) -> bytes:
    return zlib.compress(
        json.dumps(json.loads(zlib.decompress(rendezvous_state.encode(full_state()))) | values).encode()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"-",
        b"\xff\xfe\x00garbage",
        json.dumps({"round": 1}).encode(),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b'{"round": ' + b"9" * 10_000 + b"}"),
        zlib.compress(json.dumps({"round": 1}).encode()),
        changed(more=1),
        changed(round=True),
        changed(round=-1),
        changed(round=1e300),
        changed(closed="no"),
        changed(deadline="2026-11-22T00:00:00"),
        changed(deadline=5),
        changed(participants={"nobody_1_1": 0}),
        changed(participants=["10.0.0.1_12_0"]),
        changed(wait_list="10.0.0.1_12_0"),
        changed(wait_list=[["10.0.0.1", 12, 0]]),
        changed(last_heartbeats={}),
        changed(last_heartbeats={"no member\nat all": "2026-11-22T00:00:00+00:00"}),
        zlib.compress(zlib.decompress(rendezvous_state.encode(full_state())) + b" " * rendezvous_state.LARGEST_BYTES),
    ],
    ids=map(str, itertools.count()),  # the bytes hold a time: workers would collect other names
)
def test_what_is_no_state_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(RendezvousStateError) as error:
        rendezvous_state.decode(data)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


class EtcdPlace:
    def __init__(self, server: EtcdServer, run_id: str) -> None:
        self._endpoint, self._run_id = server.endpoint, run_id

    def join(self, address: str) -> Handler:
        return rendezvous_etcd.create(parameters("etcd-v3", self._endpoint, self._run_id, address))

    def write(self, data: bytes) -> None:
        Etcd(access(self._endpoint, {}, {})).put(f"{rendezvous_etcd.PREFIX}{self._run_id}/state", data)


def parameters(backend: str, endpoint: str, run_id: str, address: str) -> RendezvousParameters:
    options = {"keep_alive_interval": 1, "last_call_timeout": 1, "join_timeout": 40, "retry_seconds": 20}
    return RendezvousParameters(backend, endpoint, run_id, 2, 2, address, **options)


@pytest.fixture
def place(shared_etcd: EtcdServer, run_id: str) -> EtcdPlace:
    return EtcdPlace(shared_etcd, run_id)


@pytest.fixture
def pair(place: EtcdPlace) -> Iterator[list[Handler]]:
    handlers = [place.join(f"127.0.0.{number}") for number in (1, 2)]
    yield handlers
    for handler in handlers:
        handler._stop_heartbeats()


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda path: pickle.dumps(Bomb(path)),
    "garbage": lambda path: b"\x80\xff\x00\n{",
    "a huge one": lambda path: b"9" * 1_200_000,  # etcd takes no more than 1.5 MiB
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_state_is_refused_and_the_rendezvous_goes_on(
    kind: str, place: EtcdPlace, pair: list[Handler], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "executed"
    hostile = HOSTILE[kind](path)
    if kind == "a pickle":  # it works: unpickling it makes the file
        pickle.loads(hostile)
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


def test_hostile_heartbeats_are_silence(shared_etcd: EtcdServer, run_id: str) -> None:
    ours = rendezvous_etcd.EtcdBackend(Etcd(access(shared_etcd.endpoint, {}, {})), run_id)
    now = datetime.now(UTC)
    ours.beat("good_1_0", now)
    for number, beat in enumerate((b"\xff", b"soon", b"2026-11-22T00:00:00", b"9" * 100_000)):
        ours._etcd.put(f"{rendezvous_etcd.PREFIX}{run_id}/beats/bad_{number}_0", beat)
    assert ours.get_state() is None
    assert ours.beats == {"good_1_0": now}


def test_an_answer_that_would_fill_the_memory_is_not_read(
    shared_etcd: EtcdServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Etcd(access(shared_etcd.endpoint, {}, {}), retry_seconds=0)
    ours.put(run_id, b"x" * 100_000)
    monkeypatch.setattr(etcd, "LARGEST_ANSWER", 50_000)
    with pytest.raises(Exception, match="answer to /kv/range is larger than"):
        ours.get(run_id)
    monkeypatch.undo()
    assert ours.get(run_id) is not None, "the connection serves on"
