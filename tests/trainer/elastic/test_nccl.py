"""Which NCCL engine workers use is decided before they start, and can be changed by one variable."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch.distributed as dist

from tests.trainer import toy
from trainer.checkpoint.saver import LAST_SECONDS
from trainer.elastic import nccl, processor


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


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (4, 2), (16, 1)])
def test_the_workers_of_a_node_share_its_cores_to_compile(
    workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    processor.share_compilation(workers)
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == str(threads)
