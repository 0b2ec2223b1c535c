"""Fixtures for every test: a kubeconfig like the local node's, and recordings of the program without a cloud."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

# Before any test loads torch: two cores are shared by several workers, and a process that is forked from one with more
# threads hangs in its first product.
os.environ["OMP_NUM_THREADS"] = "1"

from review.recording import Recording, record

# A job in the background begins with it ignored, and what tests start would never hear of it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.fixtures_cluster", "tests.fixtures_google"]

OFFER = {
    "registry": "registry.test:5000",
    "registryInsecure": True,
    "builder": "buildah",
    "storagePath": "/srv/trainyard",
    "baseImage": "registry.test:5000/base@sha256:" + "a" * 64,
    "etcdImage": "registry.test:5000/etcd@sha256:" + "b" * 64,
}


def write_kubeconfig(path: Path, context: str, offer: dict[str, object] | None) -> Path:
    """A kubeconfig with one context; `offer` is what the local node says of itself in an extension."""
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
    """Let the collector pass over the million objects of what was imported: 0.7 s in each of hundreds of searches."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a run of minutes, the ten files that took longest."""
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
    """infra/buildah.py shortens them for the process of a dynamic provider; pulumi's SDK needs them in this one."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


@pytest.fixture(autouse=True)
def no_google_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is logged in to Google Cloud: what a test sees does not hang on who runs it."""
    for name in ("GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")


@pytest.fixture
def local_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """KUBECONFIG points at a file with the context trainyard-local and its extension."""
    path = write_kubeconfig(tmp_path / "kubeconfig", "trainyard-local", OFFER)
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture(scope="session")
def local_stack(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The resources of Pulumi.local.yaml; one recording for all tests that only look."""
    kubeconfig = write_kubeconfig(tmp_path_factory.mktemp("local") / "kubeconfig", "trainyard-local", OFFER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        return record("local")
