"""A rendezvous of many agents over one etcd: `python -m bench.elastic.rendezvous [MEMBERS ...]`.

The agents are threads of a few processes. Each has its own handler and connections but no workers, so that time and
load are those of the rendezvous itself. All agents and etcd share this machine's processors, so the times are upper
bounds: on separate machines the agents work in parallel.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench import page
from bench.trainer.setup import processor_seconds
from faults.lab import etcd_command

RESULTS = page.results() / "elastic-rendezvous.md"
GROUPS = 4
"""Processes that run the agents."""
REST_SECONDS = 20
"""How long the load of an undisturbed round is measured."""


@dataclass(frozen=True)
class Load:
    """etcd's requests and CPU time until a moment, or between two."""

    moment: float
    requests: float
    cpu_seconds: float

    def __sub__(self, before: Load) -> Load:
        return Load(self.moment - before.moment, self.requests - before.requests, self.cpu_seconds - before.cpu_seconds)


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
        end = time.monotonic() + 20
        while True:
            try:
                self._metrics()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def load(self) -> Load:
        lines = self._metrics().splitlines()
        served = sum(float(line.split()[-1]) for line in lines if line.startswith("grpc_server_handled_total{"))
        return Load(time.monotonic(), served, processor_seconds(self._process.pid))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=5) as reply:
            return reply.read().decode()


class Group:
    """Some of the agents, as threads of one process. `serve` calls one method at a time."""

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

    def rest(self) -> int:
        """Poll twice a second, as the agents do, while nothing happens."""
        end = time.monotonic() + REST_SECONDS

        def look(handler: Any) -> None:
            while time.monotonic() < end:
                assert handler.num_nodes_waiting() == 0, "a member was lost in a round at rest"
                time.sleep(0.5)

        self._each(look)
        return 0

    def vanish(self) -> int:
        """Stop the heartbeats of the last agent."""
        self.handlers.pop()._stop_heartbeats()
        return 0

    def see(self) -> int:
        """Wait until each agent notices that a member is lost."""

        def look(handler: Any) -> None:
            while not handler.num_nodes_waiting():
                time.sleep(0.5)

        self._each(look)
        return 0

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


def serve(connection: Connection, endpoint: str, numbers: range, members: int) -> None:
    """Run the process of one group."""
    group = Group(endpoint, numbers, members)
    connection.send(0)
    while (word := connection.recv()) != "end":
        try:
            connection.send(getattr(group, word)())
        except Exception as error:
            connection.send(error)
    os._exit(0)


def measure(members: int, folder: Path) -> dict[str, float]:
    """Measure time and load of a first round, of its rest, of the loss of a member, and of the round after that."""
    server, context = Server(folder), multiprocessing.get_context("spawn")
    connections, processes = [], []
    per_group = -(-members // GROUPS)
    found: dict[str, float] = {"members": members}

    def everywhere(word: str, only: int | None = None) -> tuple[list[int], Load]:
        """Call a method of all groups, or of one. Returns their answers and etcd's load meanwhile."""
        asked = connections if only is None else [connections[only]]
        before = server.load()
        for connection in asked:
            connection.send(word)
        answers = [connection.recv() for connection in asked]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers, server.load() - before

    def round_of(size: int, name: str) -> None:
        sizes, used = everywhere("meet")
        assert set(sizes) == {size}, f"rounds of {sizes} members, not of {size}"
        found[f"{name} round, s"], found[f"{name} requests"] = used.moment, used.requests
        found[f"{name} etcd CPU s"] = used.cpu_seconds

    try:
        for start in range(0, members, per_group):
            ours, theirs = context.Pipe()
            numbers = range(start, min(start + per_group, members))
            processes.append(context.Process(target=serve, args=(theirs, server.endpoint, numbers, members)))
            processes[-1].start()
            connections.append(ours)
        for connection in connections:
            connection.recv()
        round_of(members, "first")
        _, rest = everywhere("rest")
        found["rest requests/s"] = rest.requests / rest.moment
        found["rest etcd CPU %"] = rest.cpu_seconds / rest.moment * 100
        everywhere("vanish", only=len(connections) - 1)
        _, seen = everywhere("see")
        found["loss seen by all, s"] = seen.moment
        round_of(members - 1, "second")
    finally:
        for process in processes:
            process.kill()
            process.join()
        server.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.elastic.rendezvous", description=__doc__)
    parser.add_argument("members", nargs="*", type=int, default=[16, 64, 256], metavar="MEMBERS")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS}")
    options = parser.parse_args()
    results = []
    for members in options.members:
        with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
            results.append(measure(members, Path(folder) / "etcd"))
        print(*page.figures([results[-1]]), sep="\n", flush=True)
    if options.write:
        page.write(
            RESULTS,
            "# Rendezvous of many agents over one etcd",
            f"`python -m bench.elastic.rendezvous --write`; {page.describe('torch')}: for etcd and all agents. Agents "
            f"are threads of {GROUPS} processes without workers; keep-alive 5 s x 3 as shipped; nobody waits for a "
            "last call.",
            page.figures(results),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
