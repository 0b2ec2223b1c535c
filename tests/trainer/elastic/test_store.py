"""The c10d fallback: a store on a stable pod that may restart, rounds over it, and a training from end to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousParameters

from tests.ports import free_port
from tests.trainer.conftest import losses, wait_until
from tests.trainer.elastic.meeting import meet
from tests.trainer.processes import HOLD, ROOT, Launcher, context, run_store
from trainer.elastic import network, rendezvous_c10d
from trainer.elastic.rendezvous import Handler
from trainer.elastic.rendezvous_c10d import Connection, ReconnectingStore, StoreBackend


class StorePod:
    """`python -m trainer.store` as its pod runs it, in a process that has torch loaded already."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._process: BaseProcess | None = None

    def start(self) -> None:
        self._process = context().Process(target=run_store, args=(self.port,))
        self._process.start()
        assert network.wait_reachable("127.0.0.1", self.port, 60, connect=True) is None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int | None:
        assert self._process is not None
        assert self._process.pid is not None
        if self._process.is_alive():
            os.kill(self._process.pid, number)
        self._process.join(10)
        return self._process.exitcode


@pytest.fixture
def pod() -> Iterator[StorePod]:
    made = StorePod(free_port())
    made.start()
    yield made
    made.kill()


def join(port: int, address: str, low: int, high: int) -> Handler:
    options = {"keep_alive_interval": 1, "last_call_timeout": 1, "join_timeout": 60, "retry_seconds": 40}
    return rendezvous_c10d.create(
        RendezvousParameters("c10d", f"127.0.0.1:{port}", "run", low, high, address, **options)
    )


def test_the_state_is_swapped_and_the_store_serves_torchs_agents(pod: StorePod) -> None:
    backend = StoreBackend(Connection("127.0.0.1", pod.port), "swap")
    assert backend.get_state() is None
    first = backend.set_state(b"\x80a\x00")
    assert first is not None
    assert (first[0], first[2]) == (b"\x80a\x00", True)
    assert backend.set_state(b"b") == (*first[:2], False)
    second = backend.set_state(b"c", first[1])
    assert second is not None
    assert second[2] is True
    assert backend.set_state(b"d", first[1]) == (b"c", second[1], False)

    store = ReconnectingStore(Connection("127.0.0.1", pod.port), "swap")  # torch's C++ side keeps no reference to it
    wrapped = PrefixStore("round.1", store)
    wrapped.set("address", "10.0.0.1")
    assert wrapped.add("count", 2) == 2
    assert wrapped.multi_get(["address", "count"]) == [b"10.0.0.1", b"2"]
    assert wrapped.check(["address"])
    assert not wrapped.check(["nothing"])
    with pytest.raises(RuntimeError):
        wrapped.wait(["never"], timedelta(seconds=0.3))
    assert wrapped.get("address") == b"10.0.0.1", "a wait that was over did not cost the connection"


def test_a_restart_of_the_store_is_a_new_round_by_itself(pod: StorePod) -> None:
    """Its state is gone with it: every member finds that it is in no round, and joins the next."""
    handlers = [join(pod.port, f"127.0.0.{number}", 2, 2) for number in (1, 2)]
    assert {info.world_size for info in meet(*handlers)} == {2}
    pod.kill()
    assert handlers[0].num_nodes_waiting() == 0, "training goes on without the store"
    pod.start()
    for each in handlers:
        wait_until(lambda each=each: each.num_nodes_waiting() > 0, 15, "each sees that the round is gone")
    infos = meet(*handlers)
    assert sorted(info.rank for info in infos) == [0, 1]
    for each in handlers:
        each.shutdown()


def test_a_round_waits_for_a_store_that_is_away(pod: StorePod) -> None:
    handler = join(pod.port, "127.0.0.1", 1, 1)
    pod.kill()
    back = threading.Timer(3, pod.start)
    back.start()
    assert meet(handler)[0].world_size == 1
    handler.shutdown()
    back.join()


def test_a_store_that_stays_away_is_told() -> None:
    with pytest.raises(RendezvousConnectionError, match=r"cannot be reached for 1 s: .*refused"):
        Connection("127.0.0.1", free_port(), retry_seconds=1).call(lambda store: store.num_keys())


def test_the_store_ends_with_its_pod_and_says_when_its_port_is_taken(pod: StorePod) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "trainer.store", "--port", str(pod.port), "--host", "127.0.0.1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "FATAL"},
        check=False,
    )
    assert second.returncode == 2
    assert f"--port {pod.port}: cannot listen on it" in second.stderr
    assert "Traceback" not in second.stderr
    assert pod.kill(signal.SIGTERM) == 0


def test_two_nodes_train_to_the_end_over_it_through_its_restart(
    pod: StorePod, start_launcher: Callable[..., Launcher], settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    options = ["--nnodes", "2:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{pod.port}"]
    run, hold = tmp_path / "run", tmp_path / "round-is-lost"
    arguments = settings(run, steps=20)
    nodes = [start_launcher(arguments, options, environment={HOLD: str(hold)}) for _ in range(2)]
    wait_until(lambda: "world_size=2" in "".join(node.output for node in nodes), 90, "a round of two")
    pod.kill()
    pod.start()
    wait_until(lambda: any("event=new_round" in node.output for node in nodes), 60, "the round's loss is noticed")
    hold.touch()
    assert [node.wait(120) for node in nodes] == [0, 0], "".join(node.output for node in nodes)
    assert max(losses(run)) == 20


def test_one_machine_alone_needs_no_store(
    start_launcher: Callable[..., Launcher], settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    launcher = start_launcher(settings(tmp_path / "run", steps=4), ["--standalone", "--nproc-per-node", "2"])
    assert launcher.wait(120) == 0, launcher.output
    assert "event=round round=1 world_size=2" in launcher.output
