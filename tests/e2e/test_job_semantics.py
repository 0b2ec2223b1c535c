"""What Kubernetes does with the Job that the stack declares: the real control plane, with KWOK's pods (level 4).

bench/elastic/jobs.py measures the same with a thousand workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.elastic.jobs import Scale, declared_job
from local import toolchain
from tests.fixtures_cluster import local

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WORKERS = 12


@pytest.fixture
def scale(
    node: Path, node_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Scale]:
    built = local("toolchain", "kwok")
    assert built.returncode == 0, built.stderr
    kwok = toolchain.bin_directory(toolchain.BY_NAME["kwok"])
    monkeypatch.setenv("KUBECONFIG", str(node))
    monkeypatch.setenv("PATH", f"{kwok}:{node_environment['PATH']}")
    job = declared_job(WORKERS)
    job["metadata"]["name"] = request.node.name.replace("_", "-")[:40].rstrip("-")
    with Scale(WORKERS, job) as made:
        made.create()
        yield made


def test_evicted_workers_come_back_and_count_as_no_failure(scale: Scale) -> None:
    """Twice the same: a limit that counted them would show."""
    for _ in range(2):
        before = set(scale.running())
        seconds = scale.evict(sorted(before)[:3])
        assert len(before & set(scale.running())) == WORKERS - 3, "the others were left alone"
        assert seconds < 90
    status = scale.status()
    assert not status.get("failedIndexes")
    assert not [each for each in status.get("conditions") or [] if each["type"] in ("Failed", "FailureTarget")]


def test_the_size_changes_without_a_new_job(scale: Scale) -> None:
    first = scale.running()
    scale.resize(WORKERS - 4)
    left = scale.running()
    assert left == first[: WORKERS - 4], "those with the lowest numbers stay as they are"
    scale.resize(WORKERS + 3)
    assert scale.running()[: WORKERS - 4] == left


def test_the_first_success_ends_the_job(scale: Scale) -> None:
    scale.end_pod(scale.running()[5], 0)
    scale.until_condition("Complete", 60)
    assert not scale.running()


def test_an_exit_with_42_fails_the_job_at_once(scale: Scale) -> None:
    scale.end_pod(scale.running()[5], 42)
    failed = scale.until_condition("Failed", 60)
    assert failed["reason"] == "PodFailurePolicy"
    assert "42" in failed["message"]
    assert not scale.running()


@pytest.mark.parametrize("code", [75, 143])
def test_a_coordinated_restart_is_made_again_and_counts_as_no_failure(scale: Scale, code: int) -> None:
    scale.end_pod(scale.running()[0], code)
    scale.until_running(WORKERS - 1, 60)
    scale.until_running(WORKERS, 90)
    assert not scale.status().get("failedIndexes")


def test_a_failure_of_its_own_is_counted_and_made_again(scale: Scale) -> None:
    name = scale.running()[2]
    scale.end_pod(name, 1)
    scale.until(lambda: scale.status().get("failed") == 1, 60, "the failure is counted")
    scale.until_running(WORKERS, 90)
