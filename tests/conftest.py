"""Fixtures for every test: a kubeconfig like the local node's, and recordings of the program without a cloud."""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

# Set this before any test loads torch. Several test processes share two cores, and a process forked from one with more
# threads hangs in its first matrix product.
os.environ["OMP_NUM_THREADS"] = "1"
# And this before any test loads huggingface_hub, which reads it once: else it waits for a hub that is not there.
os.environ["HF_HUB_OFFLINE"] = "1"

from review.recording import Recording, record
from trainer.elastic import processor

# Before torch is asked for its folder, and once for all processes of a run: they inherit the variable.
processor.own_compile_cache()

# A background job starts with SIGINT ignored and one under nohup with SIGHUP, and the processes that tests start would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["tests.fixtures_cluster", "tests.fixtures_google"]

OFFER = {
    "registry": "registry.test:5000",
    "registryInsecure": True,
    "builder": "buildah",
    "storagePath": "/srv/trainyard",
    "baseImage": "registry.test:5000/base@sha256:" + "a" * 64,
    "etcdImage": "registry.test:5000/etcd@sha256:" + "b" * 64,
}


def write_kubeconfig(path: Path, context: str, offer: Mapping[str, object] | None) -> Path:
    """Write a kubeconfig with one context. `offer`: the extension in which the local node describes itself."""
    extensions = [{"name": "trainyard", "extension": offer}] if offer else []
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": "https://cluster.test:6443", "extensions": extensions}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": "admin"}}],
        "users": [{"name": "admin", "user": {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def pytest_collection_finish() -> None:
    """Exclude the million imported objects from garbage collection: each of hundreds of collections saves 0.7 s."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the exit collect them: triton's binding reports what is frozen as leaked, 30 lines a process."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a run of more than a minute, list the ten slowest files."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    total = sum(seconds.values())
    if total > 60:
        terminalreporter.section(f"{total:.0f} s in tests, most of them in")
        for file, spent in sorted(seconds.items(), key=lambda item: -item[1])[:10]:
            terminalreporter.line(f"{spent:6.1f} s  {file}")


@pytest.fixture(autouse=True)
def full_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore tracebacks: infra/buildah.py shortens them for a dynamic provider, but pulumi's SDK needs them here."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


@pytest.fixture(autouse=True)
def no_google_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide any login to Google Cloud, so that no test depends on who runs it."""
    for name in ("GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")


@pytest.fixture
def local_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point KUBECONFIG at a file with the context trainyard-local and its extension."""
    path = write_kubeconfig(tmp_path / "kubeconfig", "trainyard-local", OFFER)
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context kind-kind, of a cluster that offers nothing by itself."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kind", "kind-kind", None)))


@pytest.fixture
def as_pulumi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recordings run the program as Pulumi does: also what it says. Warnings are in caplog."""
    run = runpy.run_path
    monkeypatch.setattr(runpy, "run_path", lambda path, **_: run(path, run_name="__main__"))


@pytest.fixture(scope="session")
def local_stack(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The recorded resources of Pulumi.local.yaml, shared by all tests that only read them."""
    kubeconfig = write_kubeconfig(tmp_path_factory.mktemp("local") / "kubeconfig", "trainyard-local", OFFER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        return record("local")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """What hardened machines set: nobody but its owner reads a new file."""
    before = os.umask(0o077)
    yield
    os.umask(before)
