"""An error of one worker's accelerator is no lost peer: it is reported in one line, and tried once more at most."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.exc import TorchDynamoException

from tests.trainer import toy
from tests.trainer.processes import Workers, run_worker
from trainer.checkpoint.format import newest_checkpoint
from trainer.config.schema import Config
from trainer.contract import DEVICE
from trainer.errors import BrokenNode, UserError
from trainer.train import failures
from trainer.train.__main__ import train

Start = Callable[..., Workers]
Settings = Callable[..., list[str]]
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB"
OTHER = "CUDA error: an illegal memory access was encountered"


def second_fails_at(step: int, error: type[RuntimeError], text: str, environment: dict[str, str]) -> None:
    """Let the second worker raise in this step."""
    from trainer.parallel.ddp import DdpEngine

    real = DdpEngine.step

    def failing(self: DdpEngine, rate: float, number: int) -> object:
        if number == step and environment["RANK"] == "1":
            raise error(text)
        return real(self, rate, number)

    DdpEngine.step = failing  # pyrefly: ignore[bad-assignment]


def full_at_once(environment: dict[str, str], arguments: list[str], log: str) -> None:
    second_fails_at(1, torch.OutOfMemoryError, FULL, environment)
    os.environ["TORCHELASTIC_ERROR_FILE"] = f"{log}.{environment['RANK']}.json"
    run_worker(environment, arguments, log)


def full_later(environment: dict[str, str], arguments: list[str], log: str) -> None:
    second_fails_at(6, torch.OutOfMemoryError, FULL, environment)
    run_worker(environment, arguments, log)


def broken_at_once(environment: dict[str, str], arguments: list[str], log: str) -> None:
    second_fails_at(1, RuntimeError, OTHER, environment)
    run_worker(environment, arguments, log)


def test_memory_that_does_not_suffice_for_the_first_step_ends_the_run_and_says_what_to_try(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """One of two workers finds its device full. Once, it passed for a lost peer through ten rounds."""
    workers = start_workers(2, settings(tmp_path / "run"), full_at_once)
    assert workers.wait() == [75, 42], workers.output
    advice = "micro_batch: 2 windows of 32 tokens do not fit the memory of this machine; try micro_batch=1 "
    assert workers.output.count(advice) == 1
    assert "Traceback" not in workers.output
    told = json.loads(Path(f"{tmp_path / 'workers-0.log'}.1.json").read_text("utf-8"))
    assert told["message"]["message"].startswith(advice)
    assert told["message"]["extraInfo"]["exit_code"] == 42


def test_where_one_window_is_too_much_what_takes_less_memory_is_named() -> None:
    work = dataclasses.replace(toy.work(), samples_per_step=toy.PER_STEP)

    def said(world: int, **changes: str) -> str:
        return failures.too_large(work, toy.configuration(**changes), toy.place(0, world))

    assert said(4).startswith("micro_batch: one window of 1024 tokens does not fit the memory of this machine; try ")
    assert said(4).endswith("; try model.checkpointing=true, engine.name=fsdp, or a smaller model")
    assert "adapter.kind=lora" in said(1, model__name="gpt2-xl")
    assert "fsdp" not in said(1), "nobody to share with"
    assert "fsdp" not in said(4, optimizer__name="muon"), "the rules refuse it"


def test_memory_that_does_not_suffice_later_is_tried_once_more_and_no_oftener(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    arguments = settings(tmp_path / "run", checkpoint__every_steps=4)
    first = start_workers(2, arguments, full_later)
    assert first.wait() == [75, 75], first.output
    assert "try micro_batch=1 (in a stack training.microBatch); trying once more" in first.output
    found = newest_checkpoint(tmp_path / "run")
    assert found is not None
    assert found.step == 4, "the checkpoint before is kept"
    again = start_workers(2, arguments, full_later)
    assert again.wait() == [75, 42], again.output
    last = start_workers(2, [*arguments, "micro_batch=1"])
    assert last.wait() == [0, 0], last.output


def test_another_fault_of_a_device_ends_the_run_with_its_words(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    workers = start_workers(2, settings(tmp_path / "run"), broken_at_once)
    assert workers.wait() == [75, 42], workers.output
    assert f"step 1 failed on worker 1: RuntimeError: {OTHER}" in workers.output
    assert workers.output.count("event=peers_lost") == 1, "the first worker did lose its peer"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (
            RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4"),
            True,
        ),
        (RuntimeError("[third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 20000ms"), True),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited"), True),
        (dist.DistNetworkError("failed to recv, got 0 bytes"), True),
        (dist.DistBackendError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"), False),
        (torch.OutOfMemoryError(FULL), False),
        (RuntimeError(OTHER), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (TorchDynamoException("no triton"), False),
    ],
)
def test_only_the_words_of_those_who_exchange_mean_lost_peers(error: RuntimeError, lost: bool) -> None:
    assert failures.lost_peers(error) is lost


def test_a_library_that_finds_no_memory_is_taken_for_what_it_is() -> None:
    """cuBLAS makes its handle at its first product; torch tells its refusal as a plain RuntimeError."""
    error = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    assert failures.out_of_memory(error)
    assert failures.out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"))
    assert not failures.out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))


@pytest.mark.parametrize("begun", [False, True])
def test_a_node_with_accelerators_that_torch_does_not_find_is_not_trained_on(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPUs would be paid for while its CPU trains. A run with a checkpoint has trained, so the node is broken."""
    monkeypatch.setenv(DEVICE, "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if begun:
        (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    told: type[Exception] = BrokenNode if begun else UserError
    with pytest.raises(told, match=r"^no CUDA device: torch .* on a node with accelerators") as error:
        train(Config(), tmp_path)
    assert "\n" not in str(error.value)
    assert "workers.runtimeClass" in str(error.value), "on k3s and its like the driver is not at fault"
