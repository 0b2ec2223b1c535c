"""Small data, real worker processes and a real etcd for the trainer's tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from local import toolchain
from tests.ports import free_port
from tests.trainer import processes
from tests.trainer.processes import PRELOAD, ROOT, Launcher, Workers, run_worker, start_round
from trainer import log, prepare
from trainer.checkpoint.format import Checkpoint, newest_checkpoint
from trainer.data import shards
from trainer.record import INCIDENTS

# No deadlines: timings say nothing on cores that other tests share.
hypothesis_settings.register_profile("shared-cores", deadline=None)
hypothesis_settings.load_profile("shared-cores")

__all__ = ["PRELOAD", "ROOT", "Launcher", "Workers", "run_worker"]

Start = Callable[..., Workers]
Settings = Callable[..., list[str]]

can_compile = pytest.mark.skipif(
    not shutil.which("g++") or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="torch.compile needs a compiler and Python's headers: apt-get install g++ python3-dev",
)


@pytest.fixture(autouse=True)
def launcher_leaves_nothing() -> Iterator[None]:
    """Take back what a launcher that ran in this process leaves: its incidents, which the next workers would report,
    and its handlers, since SIGINT must end the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    os.environ.pop(INCIDENTS, None)
    log.warned.clear()


@pytest.fixture(scope="session", autouse=True)
def one_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all processes of `pytest -n` share one fork server."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        processes.FOLDER = tmp_path_factory.getbasetemp().parent


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of 500 tokens, so that models are small and steps take milliseconds."""
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    built = ByteLevelBPETokenizer()
    text = prepare.SAMPLE.read_text("utf-8")[:50_000]
    built.train_from_iterator(iter([text]), vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False)
    built.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """The first 60 kB of the sample text, in several shards."""
    folder = tmp_path_factory.mktemp("dataset")
    text = folder / "text.txt"
    text.write_text(prepare.SAMPLE.read_text("utf-8")[:60_000], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_TOKENS", 7_000)
        prepare.prepare([str(text)], folder / "data", str(tokenizer), fraction=0.2)
    return folder / "data"


@pytest.fixture
def settings(dataset: Path) -> Callable[..., list[str]]:
    """Arguments of a tiny run: 4 micro-batches of 2 windows of 32 tokens in each step."""

    def build(run: Path, **changes: Any) -> list[str]:
        values = {
            "model.preset": "tiny",
            "data.directory": dataset,
            "run.directory": run,
            "run.collective_timeout_seconds": 20,
            "steps": 12,
            "tokens_per_step": 256,
            "sequence_length": 32,
            "micro_batch": 2,
            "precision": "fp32",
            "optimizer.learning_rate": 3e-3,
            "optimizer.warmup_steps": 4,
            "evaluation.batches": 4,
            "evaluation.sample_tokens": 8,
            "checkpoint.every_steps": 0,
            "metrics.every": 1,
            "metrics.tensorboard": "false",
        }
        values |= {key.replace("__", "."): value for key, value in changes.items()}
        if {"model.name", "model.config"} & values.keys():
            del values["model.preset"]
        return [f"{key}={value}" for key, value in values.items()]

    return build


@pytest.fixture
def start_workers(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Start a round of workers: start_workers(world_size, arguments, what each of them runs)."""
    started: list[Workers] = []

    def start(world: int, arguments: list[str], target: Callable[..., None] = run_worker) -> Workers:
        started.append(start_round(world, arguments, tmp_path / f"workers-{len(started)}.log", target))
        return started[-1]

    yield start
    for workers in started:
        workers.kill()
        workers.wait(5)


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def losses(run: Path) -> dict[int, float]:
    """Training loss by step; a step that was logged twice fails the test."""
    found = [(line["step"], line["loss"]) for line in metrics(run) if "loss" in line]
    assert len(found) == len(dict(found)), f"steps logged twice: {[step for step, _ in found]}"
    return dict(found)


def done(run: Path) -> dict[str, Any]:
    """What a run that is finished has written last."""
    return json.loads((run / "DONE").read_text("utf-8"))


def status(run: Path) -> dict[str, Any]:
    return json.loads((run / "status.json").read_text("utf-8"))


def newest(run: Path) -> Checkpoint:
    """The newest checkpoint of a run that has one."""
    found = newest_checkpoint(run)
    assert found is not None
    return found


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def reached(run: Path, step: int) -> bool:
    with contextlib.suppress(json.JSONDecodeError):  # a line may be half-written while it is read
        return any(line["step"] >= step and "loss" in line for line in metrics(run))
    return False


class Disk:
    """What a power cut leaves: a kill leaves to the kernel what is not on the disk yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fsync = os.fsync
        self.pushed: dict[int, int] = {}
        """The size of each file at its last fsync, by inode."""
        monkeypatch.setattr(os, "fsync", self._push)

    def _push(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        self.pushed[found.st_ino] = found.st_size

    def lost(self, paths: Iterable[Path]) -> list[str]:
        """Names of those that it does not leave as they are now."""
        return [path.name for path in paths if not self._holds(path)]

    def _holds(self, path: Path) -> bool:
        size = self.pushed.get(path.stat().st_ino)
        return size is not None and (path.is_dir() or size == path.stat().st_size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class EtcdServer:
    """A real etcd on a port of its own, that can be killed and started again with its data."""

    def __init__(self, binary: str, folder: Path, options: list[str] | None = None, scheme: str = "http") -> None:
        self._binary, self._folder, self._options, self._scheme = binary, folder, options or [], scheme
        self._port, self._peer_port = free_port(), free_port()
        self.endpoint = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        url, peer = f"{self._scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        command = [self._binary, "--data-dir", str(self._folder), "--log-level", "error", *self._options]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += [
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
        ]
        health = f"http://127.0.0.1:{free_port()}"  # plain HTTP without a password, whatever the clients need
        command += ["--listen-metrics-urls", health]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: _healthy(health), 20, "etcd answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def lose_data(self) -> None:
        """Kill it and delete its data, as when its pod moves to another machine without its volume."""
        self.kill()
        shutil.rmtree(self._folder)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
            return json.load(reply)["health"] == "true"
    except (OSError, ValueError):
        return False


@pytest.fixture(scope="session")
def etcd_binary() -> str:
    """Path of the etcd that this checkout pins, the version that stacks run."""
    found = toolchain.program("etcd")
    if not Path(found).exists():
        pytest.fail("no etcd in the cache; make it with `.venv/bin/trainyard local toolchain etcd`")
    return found


@pytest.fixture(scope="session")
def shared_etcd(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for all tests that only use it."""
    server = EtcdServer(etcd_binary, tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_etcd(etcd_binary: str, tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that the test may kill."""
    server = EtcdServer(etcd_binary, tmp_path / "etcd")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def start_launcher(shared_etcd: EtcdServer, tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Start a node: start_launcher(workers' arguments, options=[...], environment={...})."""
    started: list[Launcher] = []

    def start(
        arguments: list[str],
        options: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Launcher:
        number = len(started)
        base = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        base |= {"TRAINYARD_TERMINATION_LOG": str(tmp_path / f"termination-{number}"), **(environment or {})}
        default = ["--rdzv-endpoint", shared_etcd.endpoint, "--rdzv-id", tmp_path.name]
        default += ["--local-addr", f"127.0.0.{number + 1}", "--rdzv-conf"]
        default += ["keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout=120"]
        command = [*default, *(options or []), "--", *arguments]
        started.append(Launcher(command, base, tmp_path / f"launcher-{number}.log"))
        return started[-1]

    yield start
    for launcher in started:
        if launcher.poll() is None:
            launcher.kill()


def termination(folder: Path, number: int) -> dict[str, Any]:
    return json.loads((folder / f"termination-{number}").read_text("utf-8"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; a checkpoint of the tiny model takes 0.5 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def run_id(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.node.name}-{tmp_path.name}"
