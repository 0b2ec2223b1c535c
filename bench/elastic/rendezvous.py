"""A rendezvous of many agents over one etcd: `python -m bench.elastic.rendezvous [MEMBERS ...]`.

The agents are threads of one process, each with its own handler and connections, and no workers: time and load are
those of the rendezvous itself. All threads share one interpreter, so that the times are upper bounds: on machines of
their own, the agents do their part of the work beside each other.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "elastic.md"
REST_SECONDS = 20
"""For the load of a round that stands."""


@dataclass(frozen=True)
class Load:
    """What etcd did so far."""

    moment: float
    requests: float
    cpu_seconds: float

    def __sub__(self, before: Load) -> Load:
        return Load(self.moment - before.moment, self.requests - before.requests, self.cpu_seconds - before.cpu_seconds)


class Server:
    """A real etcd with the stack's settings."""

    def __init__(self, folder: Path) -> None:
        from chaos.lab import find_etcd

        self.endpoint = f"127.0.0.1:{free_port()}"
        url, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{free_port()}"
        options = {"data-dir": folder, "listen-client-urls": url, "advertise-client-urls": url, "log-level": "error"}
        options |= {"listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
        self._process = subprocess.Popen(
            [find_etcd(), *(f"--{name}={value}" for name, value in options.items())],
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
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # proc(5): utime and stime
        return Load(time.monotonic(), served, ticks / os.sysconf("SC_CLK_TCK"))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=5) as reply:
            return reply.read().decode()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(members: int, folder: Path) -> dict[str, float]:
    """Times and loads of a first round, of its rest, of the loss of one member and of the round after it."""
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters

    from trainer import rendezvous_etcd
    from trainer.rendezvous import Handler

    server = Server(folder)
    found: dict[str, float] = {"members": members}
    try:

        def member(number: int) -> Handler:
            address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
            parameters = RendezvousParameters(
                "etcd-v3", server.endpoint, "bench", members - 1, members, address, join_timeout=600
            )
            return rendezvous_etcd.create(parameters)

        handlers = [member(number) for number in range(members)]
        found |= {f"first {key}": value for key, value in meet(server, handlers).items()}
        rest = watch(server, handlers, REST_SECONDS)
        found |= {
            "rest requests/s": rest.requests / rest.moment,
            "rest etcd CPU %": rest.cpu_seconds / rest.moment * 100,
        }

        handlers.pop(members // 2)._stop_heartbeats()
        lost = time.monotonic()
        each = [threading.Thread(target=see, args=(handler,)) for handler in handlers]
        run(each)
        found["loss seen by all, s"] = time.monotonic() - lost
        found |= {f"second {key}": value for key, value in meet(server, handlers).items()}
        for handler in handlers:
            handler._stop_heartbeats()
    finally:
        server.stop()
    return found


def meet(server: Server, handlers: list) -> dict[str, float]:
    before, sizes = server.load(), list[int]()

    def join(handler) -> None:
        info = handler.next_rendezvous()
        # What torch's agent does next: everybody tells its size, rank 0 answers all.
        info.store.set(f"role/{info.rank}", "1")
        if info.rank == 0:
            told = info.store.multi_get([f"role/{rank}" for rank in range(info.world_size)])
            info.store.multi_set([f"ranks/{rank}" for rank in range(info.world_size)], told)
        info.store.get(f"ranks/{info.rank}")
        sizes.append(info.world_size)

    run([threading.Thread(target=join, args=(handler,)) for handler in handlers])
    assert sizes == [len(handlers)] * len(handlers), "not everybody is in the round"
    used = server.load() - before
    return {"round, s": used.moment, "requests": used.requests, "etcd CPU s": used.cpu_seconds}


def watch(server: Server, handlers: list, seconds: float) -> Load:
    """Look as the agents do, twice a second, while nothing happens."""
    before, end = server.load(), time.monotonic() + seconds

    def look(handler) -> None:
        while time.monotonic() < end:
            assert handler.num_nodes_waiting() == 0, "a member was lost in a round at rest"
            time.sleep(0.5)

    run([threading.Thread(target=look, args=(handler,)) for handler in handlers])
    return server.load() - before


def see(handler) -> None:
    while not handler.num_nodes_waiting():
        time.sleep(0.5)


def run(threads: list[threading.Thread]) -> None:
    """Run to the end; a failure of one is the failure of all."""
    failures: list[threading.ExceptHookArgs] = []
    threading.excepthook = failures.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = threading.__excepthook__
    if failures:
        raise RuntimeError(f"{len(failures)} of {len(threads)} agents failed: {failures[0].exc_value}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.elastic.rendezvous", description=__doc__)
    parser.add_argument("members", nargs="*", type=int, default=[16, 64, 256], metavar="MEMBERS")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args()
    results = []
    for members in options.members:
        with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
            results.append(measure(members, Path(folder) / "etcd"))
        print("  ".join(f"{key} {value:.4g}" for key, value in results[-1].items()), flush=True)
    if options.write:
        head = list(results[0])
        lines = [
            "# Rendezvous of many agents over one etcd",
            "",
            f"`python -m bench.elastic.rendezvous --write`, {datetime.now(UTC):%Y-%m-%d}: {platform.machine()}, "
            f"{os.cpu_count()} processors (shared by etcd and all agents), Python {platform.python_version()}. Agents "
            "are threads of one process without workers; keep-alive 5 s x 3, last call 5 s, as shipped.",
            "",
            f"| {' | '.join(head)} |",
            f"|{'---|' * len(head)}",
            *(f"| {' | '.join(f'{result[key]:.4g}' for key in head)} |" for result in results),
        ]
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
