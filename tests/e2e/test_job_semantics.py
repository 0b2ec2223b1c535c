"""What Kubernetes does with the Job that the stack declares: the real control plane, with KWOK's pods (level 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.simulated import Scale, declared_job, nodes
from tests.fixtures_cluster import local

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WORKERS = 12


def goes_on_when_workers_are_evicted_which_counts_as_no_failure(scale: Scale) -> None:
    """Evict twice: a limit that counted evictions would show."""
    for _ in range(2):
        before = set(scale.running())
        seconds = scale.evict(sorted(before)[:3])
        assert len(before & set(scale.running())) == WORKERS - 3, "the others were left alone"
        assert seconds < 90
    status = scale.status()
    assert not status.get("failedIndexes")
    assert not [each for each in status.get("conditions") or [] if each["type"] in ("Failed", "FailureTarget")]


def changes_its_size_without_a_new_job(scale: Scale) -> None:
    first = scale.running()
    scale.resize(WORKERS - 4)
    left = scale.running()
    assert left == first[: WORKERS - 4], "those with the lowest numbers stay as they are"
    scale.resize(WORKERS + 3)
    assert scale.running()[: WORKERS - 4] == left


def ends_with_the_first_success(scale: Scale) -> None:
    scale.end_pod(scale.running()[5], 0)
    scale.until_condition("Complete", 60)
    assert not scale.running()


def fails_at_once_at_an_exit_with_42(scale: Scale) -> None:
    scale.end_pod(scale.running()[5], 42)
    failed = scale.until_condition("Failed", 60)
    assert failed["reason"] == "PodFailurePolicy"
    assert "42" in failed["message"]
    assert not scale.running()


def makes_a_worker_again_after_75_which_counts_as_no_failure(scale: Scale, code: int = 75) -> None:
    scale.end_pod(scale.running()[0], code)
    scale.until_running(WORKERS - 1, 60)
    scale.until_running(WORKERS, 90)
    assert not scale.status().get("failedIndexes")


def makes_a_worker_again_after_143_which_counts_as_no_failure(scale: Scale) -> None:
    makes_a_worker_again_after_75_which_counts_as_no_failure(scale, 143)


def counts_a_failure_of_a_worker_and_makes_it_again(scale: Scale) -> None:
    name = scale.running()[2]
    scale.end_pod(name, 1)
    scale.until(lambda: scale.status().get("failed") == 1, 60, "the failure is counted")
    scale.until_running(WORKERS, 90)


PLAYS: list[Callable[[Scale], None]] = [
    goes_on_when_workers_are_evicted_which_counts_as_no_failure,
    changes_its_size_without_a_new_job,
    ends_with_the_first_success,
    fails_at_once_at_an_exit_with_42,
    makes_a_worker_again_after_75_which_counts_as_no_failure,
    makes_a_worker_again_after_143_which_counts_as_no_failure,
    counts_a_failure_of_a_worker_and_makes_it_again,
]


@pytest.fixture(scope="module")
def played(node: Path, node_environment: dict[str, str]) -> Iterator[list[Future[None]]]:
    """Play all at once, each with its own Job: most of the time is Kubernetes' back-off of 10 and 20 s."""
    built = local("toolchain", "kwok")
    assert built.returncode == 0, built.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(node))
        patch.setenv("PATH", node_environment["PATH"])
        job = declared_job(WORKERS)

        def begin(number: int, play: Callable[[Scale], None]) -> None:
            scale = Scale(WORKERS, {**job, "metadata": {"name": f"job-{number}"}})
            scale.create()
            play(scale)

        with nodes(), ThreadPoolExecutor(len(PLAYS)) as pool:
            yield [pool.submit(begin, number, play) for number, play in enumerate(PLAYS)]


@pytest.mark.parametrize("number", range(len(PLAYS)), ids=[play.__name__ for play in PLAYS])
def test_the_job(played: list[Future[None]], number: int) -> None:
    played[number].result()
