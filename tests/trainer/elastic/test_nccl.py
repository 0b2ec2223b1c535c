"""Which NCCL engine workers use is decided before they start, and can be changed by one variable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer import toy
from trainer.checkpoint.saver import LAST_SECONDS
from trainer.elastic import nccl, processor
from trainer.launch import launch, parse


def maker(given: dict[str, str]) -> str:
    """The function by which torch makes the backend `nccl`."""
    for name in nccl.DEFAULTS:
        os.environ.pop(name, None)
    os.environ.update(given)
    nccl.choose()
    Backend: Any = dist.Backend
    Backend._ensure_backend_registered("nccl")
    return Backend._plugins["NCCL"].creator_fn.__name__


@pytest.mark.parametrize(
    ("given", "made_by"), [({}, "_create_nccl_process_group"), ({nccl.ENGINE: "1"}, "_create_nccl2_process_group")]
)
def test_torch_takes_the_older_engine_unless_it_is_asked_for_the_other(given: dict[str, str], made_by: str) -> None:
    assert toy.apart(maker, given) == made_by


def test_a_lost_peer_ends_no_process_that_writes_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 is CleanUpOnly; the other engine waits longer before it aborts than the saver may take."""
    for name in nccl.DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    nccl.choose()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2"
    assert int(os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"]) >= 1000 * LAST_SECONDS
    for name in nccl.DEFAULTS:
        monkeypatch.setenv(name, "7")
    nccl.choose()
    assert [os.environ[name] for name in nccl.DEFAULTS] == ["7"] * len(nccl.DEFAULTS), "what is given stays"


def test_a_header_of_torch_still_numbers_the_modes_as_we_do() -> None:
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    assert f"CleanUpOnly = {nccl.DEFAULTS['TORCH_NCCL_ASYNC_ERROR_HANDLING']}," in header.read_text("utf-8")


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (4, 2), (16, 1)])
def test_the_workers_of_a_node_share_its_cores_to_compile(
    workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    processor.share_compilation(workers)
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == str(threads)


def test_the_launcher_decides_both_before_it_starts_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in (*nccl.DEFAULTS, "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.delenv(name, raising=False)
    found: dict[str, str] = {}

    class Started(Exception):
        """In place of the workers."""

    def stop(*_: object, **__: object) -> None:
        found.update(os.environ)
        raise Started

    monkeypatch.setattr(processor, "bind_workers", stop)
    options, _ = parse(["--standalone", "--nproc-per-node", "2"])
    with pytest.raises(Started):
        launch(options, [], tmp_path)  # pyrefly: ignore[bad-argument-type]
    assert nccl.DEFAULTS.items() <= found.items()
    assert "TORCHINDUCTOR_COMPILE_THREADS" in found


class Group:
    """A process group whose backend for accelerators is of this class."""

    def __init__(self, name: str) -> None:
        self._backend = type(name, (), {})()

    def _get_backend(self, device: torch.device) -> object:
        return self._backend


@pytest.mark.parametrize(
    ("given", "name", "said"),
    [
        ("0", "ProcessGroupNCCL", "TORCH_DIST_USE_NCCL2=0: it overlaps the exchange with the backward pass"),
        (
            "1",
            "ProcessGroupNCCL2",
            "=1: computing waits for each bucket, and communication_seconds counts the last one alone; TORCH_DIST",
        ),
        (None, "ProcessGroupNCCL2", "TORCH_DIST_USE_NCCL2 is not set: computing waits"),
    ],
)
def test_the_log_says_which_engine_and_why(
    given: str | None, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(nccl.ENGINE, raising=False)
    if given is not None:
        monkeypatch.setenv(nccl.ENGINE, given)
    told = nccl.described(Group(name), torch.device("cuda"))
    assert told["backend"] == name
    assert said in told["reason"]


def test_the_class_is_asked_of_torchs_own_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert nccl.described(dist.group.WORLD, torch.device("cpu"))["backend"] == "ProcessGroupGloo"
    finally:
        dist.destroy_process_group()
