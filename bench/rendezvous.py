"""A rendezvous of many agents over one etcd: `python -m bench.rendezvous [MEMBERS ...]`.

The agents are threads of a few processes. Each has its own handler and connections but no workers, so that time and
load are those of the rendezvous itself. All agents and etcd share this machine's processors, so the times are upper
bounds: on separate machines the agents work in parallel.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np

from bench import page
from bench.trainer.setup import processor_seconds
from faults.fault import until
from faults.lab import etcd_command

GROUPS = 4
"""Processes that run the agents."""
REST_SECONDS = 20
"""How long the load of an undisturbed round is measured."""


class Server:
    """A real etcd with the stack's settings."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.endpoint = f"127.0.0.1:{port}"
        self._process = subprocess.Popen(
            etcd_command(folder, f"http://{self.endpoint}", f"http://127.0.0.2:{port}"),
            env={**os.environ, "ETCD_UNSAFE_NO_FSYNC": "true"},
        )
        until(self._metrics, 20, "etcd")

    def load(self) -> np.ndarray:
        """Return seconds, requests, CPU seconds and MiB of the store so far."""
        lines = self._metrics().splitlines()

        def total(name: str) -> float:
            return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

        served, size = total("grpc_server_handled_total{"), total("etcd_mvcc_db_total_size_in_bytes ")
        return np.array([time.monotonic(), served, processor_seconds(self._process.pid), size / 2**20])

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _metrics(self) -> str:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=5) as reply,
        ):
            return reply.read().decode()
        return ""


class Group:
    """Some of the agents, as threads of one process. One method is called at a time."""

    def __init__(self, endpoint: str, numbers: range, members: int) -> None:
        from torch.distributed.elastic.rendezvous.api import RendezvousParameters

        from trainer.elastic import rendezvous_etcd

        self.sizes: list[int] = []
        self.handlers = []
        for number in numbers:
            address = f"10.0.{number // 256}.{number % 256}"
            # No round waits for the end of the last call: the first begins when it is full, the second when all
            # remaining agents are in it. The last call must last until all agents have come, on shared processors.
            parameters = RendezvousParameters(
                "etcd-v3", endpoint, "bench", members - 1, members, address, join_timeout=600, last_call_timeout=120
            )
            self.handlers.append(rendezvous_etcd.create(parameters))

    def meet(self) -> int:
        """Let all agents join the next round; return its size."""
        self.sizes.clear()
        self._each(self._join)
        assert len(set(self.sizes)) == 1, f"rounds of {sorted(set(self.sizes))} members"
        return self.sizes[0]

    def rest(self) -> None:
        """Poll twice a second, as the agents do, while nothing happens."""
        end = time.monotonic() + REST_SECONDS

        def look(handler: Any) -> None:
            while time.monotonic() < end:
                assert handler.num_nodes_waiting() == 0, "a member was lost in a round at rest"
                time.sleep(0.5)

        self._each(look)

    def vanish(self) -> None:
        """Stop the heartbeats of the last agent."""
        self.handlers.pop()._stop_heartbeats()

    def see(self) -> None:
        """Wait until each agent notices that a member is lost."""

        def look(handler: Any) -> None:
            while not handler.num_nodes_waiting():
                time.sleep(0.5)

        self._each(look)

    def _join(self, handler: Any) -> None:
        info = handler.next_rendezvous()
        # torch's agent does this next: every rank writes its entry, and rank 0 answers all of them.
        info.store.set(f"role/{info.rank}", "1")
        if info.rank == 0:
            told = info.store.multi_get([f"role/{rank}" for rank in range(info.world_size)])
            info.store.multi_set([f"ranks/{rank}" for rank in range(info.world_size)], told)
        info.store.get(f"ranks/{info.rank}")
        self.sizes.append(info.world_size)

    def _each(self, act: Callable[[Any], None]) -> None:
        """Act on all agents in parallel. Raises the first exception of any."""
        with ThreadPoolExecutor(len(self.handlers)) as pool:
            list(pool.map(act, self.handlers))


class Groups(BaseManager):
    """A process with one group."""


Groups.register("Group", Group)


def measure(members: int, folder: Path) -> dict[str, float]:
    """Measure time and load of a first round, of its rest, of the loss of a member, and of the round after that."""
    found: dict[str, float] = {"members": members}
    share = -(-members // GROUPS)
    with contextlib.ExitStack() as stack:
        stack.callback((server := Server(folder)).stop)
        groups: list[Any] = []
        for start in range(0, members, share):
            process = stack.enter_context(Groups(ctx=multiprocessing.get_context("spawn")))
            numbers = range(start, min(start + share, members))
            groups.append(process.Group(server.endpoint, numbers, members))  # pyrefly: ignore[missing-attribute]

        def everywhere(word: str) -> tuple[list[int], np.ndarray]:
            """Call a method of all groups. Returns their answers and etcd's load meanwhile."""
            before = server.load()
            with ThreadPoolExecutor(len(groups)) as pool:
                answers = list(pool.map(lambda group: getattr(group, word)(), groups))
            return answers, server.load() - before

        def round_of(size: int, name: str) -> None:
            sizes, used = everywhere("meet")
            assert set(sizes) == {size}, f"rounds of {sizes} members, not of {size}"
            figures = ("round, s", "requests", "etcd CPU s", "MiB")
            found.update(zip((f"{name} {figure}" for figure in figures), used, strict=True))

        round_of(members, "first")
        _, (seconds, requests, cpu, _) = everywhere("rest")
        found |= {"rest requests/s": requests / seconds, "rest etcd CPU %": cpu / seconds * 100}
        groups[-1].vanish()
        found["loss seen by all, s"] = everywhere("see")[1][0]
        round_of(members - 1, "second")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rendezvous", description=__doc__)
    parser.add_argument("members", nargs="*", type=int, default=[16, 64, 256], metavar="MEMBERS")
    options = parser.parse_args()
    results = []
    for members in options.members:
        with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
            results.append(measure(members, Path(folder) / "etcd"))
        print(*page.figures([results[-1]]), sep="\n", flush=True)
    page.write(
        page.results() / "rendezvous.md",
        "# Rendezvous of many agents over one etcd",
        f"`python -m bench.rendezvous`; {page.describe('torch')}: for etcd and all agents. Agents are threads of "
        f"{GROUPS} processes without workers; keep-alive 5 s x 3 as shipped; nobody waits for a last call.",
        page.figures(results),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
