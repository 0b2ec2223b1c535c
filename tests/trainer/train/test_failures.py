"""An error of one worker's accelerator is no lost peer: it is reported in one line, and tried once more at most."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from tests.trainer import toy
from tests.trainer.conftest import Settings, Start
from tests.trainer.processes import run_worker
from trainer.config.schema import Config
from trainer.contract import DEVICE, EXIT_FATAL
from trainer.errors import BrokenNode, Retry, TrainingError, UserError
from trainer.parallel.ddp import DdpEngine
from trainer.tasks.work import Work
from trainer.train import __main__ as worker
from trainer.train import failures
from trainer.train.__main__ import agreed_work, train
from trainer.train.metrics import machine

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB"
OTHER = "CUDA error: an illegal memory access was encountered"


def full_at_once(environment: dict[str, str], arguments: list[str], log: str) -> None:
    """Let the device of the second worker be full at its first update."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError(FULL)

    if environment["RANK"] == "1":
        DdpEngine.step = full  # pyrefly: ignore[bad-assignment]
    os.environ["TORCHELASTIC_ERROR_FILE"] = f"{log}.{environment['RANK']}.json"
    run_worker(environment, arguments, log)


def test_memory_that_does_not_suffice_halves_the_micro_batch(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """One of two workers finds its device full; with half the micro-batch both make the same steps."""
    workers = start_workers(2, settings(tmp_path / "run"), full_at_once)
    assert workers.wait() == [75, 75], workers.output
    said = f"micro_batch: 2 x 32 tokens do not fit the memory of {machine(torch.device('cpu'))}; "
    said += "the next round, or the same command again, takes micro_batch=1"
    assert workers.output.count(said) == 1
    assert "Traceback" not in workers.output
    told = json.loads(Path(f"{tmp_path / 'workers-0.log'}.1.json").read_text("utf-8"))
    assert told["message"]["message"] == said
    assert told["message"]["extraInfo"]["exit_code"] == 75
    again = start_workers(2, settings(tmp_path / "run"))
    assert again.wait() == [0, 0], again.output
    assert "event=batch micro_batch=1 " in again.output


def sized(windows: int) -> Work:
    """A step of eight windows."""
    return dataclasses.replace(toy.work(), batches=SimpleNamespace(per_step=8 // windows), samples_per_step=8)


def test_it_is_halved_until_one_window_is_too_much(tmp_path: Path) -> None:
    """Unless the settings change, from which more or less memory follows."""
    place, config, cpu = toy.place(0, 1), toy.configuration(), torch.device("cpu")
    for windows, smaller in ((8, 4), (4, 2), (2, 1)):
        found = failures.judge(torch.OutOfMemoryError(FULL), sized(windows), config, tmp_path, place, 0)
        assert isinstance(found, Retry)
        assert failures.largest(tmp_path, config, cpu) == smaller
    assert failures.largest(tmp_path, toy.configuration(engine__name="fsdp"), cpu) is None
    found = failures.judge(torch.OutOfMemoryError(FULL), sized(1), config, tmp_path, place, 0)
    assert isinstance(found, TrainingError)
    tmp_path.joinpath("file").write_text("")
    told = failures.judge(torch.OutOfMemoryError(FULL), sized(8), config, tmp_path / "file", place, 0)
    assert isinstance(told, TrainingError), "nobody could be told of it"
    assert str(told).endswith("; try micro_batch=4 (in a stack training.microBatch)")


def test_workers_that_see_different_data_are_refused_before_the_first_step(tmp_path: Path) -> None:
    made, cpu = SimpleNamespace(windows=2, data="a"), torch.device("cpu")
    for data in ("a", "b"):
        others = SimpleNamespace(device=cpu, together=lambda act: act(), gather=lambda own, data=data: [own, [2, data]])
        task = SimpleNamespace(make_work=lambda *_: made)
        with pytest.raises(UserError, match="the workers see different data") if data == "b" else nullcontext():
            assert agreed_work(cast(Any, task), toy.configuration(), tmp_path, cast(Any, others)) is made


class PanicException(BaseException):
    """As pyo3 raises it where Rust gives up."""


def test_a_tokenizer_whose_library_panics_is_no_reason_for_another_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def panics(*_: object) -> None:
        raise PanicException("Onig(retry-limit-in-match over)")

    monkeypatch.setattr(worker, "train", panics)
    assert worker.main([f"run.directory={tmp_path}", f"data.directory={tmp_path}"]) == EXIT_FATAL
    assert capsys.readouterr().err.startswith("--tokenizer: cannot encode the data (Onig(")


def test_where_one_window_is_too_much_what_takes_less_memory_is_named(tmp_path: Path) -> None:
    def said(world: int, **changes: str) -> str:
        config, place = toy.configuration(**changes), toy.place(0, world)
        return str(failures.judge(torch.OutOfMemoryError(FULL), sized(1), config, tmp_path, place, 0))

    assert said(4).startswith(
        f"micro_batch: 1 x 1024 tokens do not fit the memory of {machine(torch.device('cpu'))}; try "
    )
    assert said(4).endswith("; try model.checkpointing=true, engine.name=fsdp, a smaller model")
    assert "adapter.kind=lora" in said(1, model__name="gpt2-xl")
    assert "fsdp" not in said(1), "nobody to share with"
    assert "fsdp" not in said(4, model__name="gpt2-xl", adapter__kind="lora"), "the rules refuse it"


def test_a_later_fault_is_tried_once_more_and_no_oftener(tmp_path: Path) -> None:
    def judged(round_: int, rank: int, step: int) -> type[Exception]:
        place = dataclasses.replace(toy.place(rank, 2), round=round_)
        return type(failures.judge(RuntimeError(OTHER), toy.work(), toy.configuration(), tmp_path, place, step))

    assert judged(1, 0, 0) is TrainingError, "the first step would fail again"
    assert [judged(1, 0, 5), judged(1, 1, 5)] == [Retry, Retry], "both workers of a round may have seen it"
    assert judged(2, 0, 5) is TrainingError
    assert judged(3, 0, 5) is Retry
    assert judged(4, 0, 6) is Retry, "it came further"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (
            RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4"),
            True,
        ),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited"), True),
        (dist.DistNetworkError("failed to recv, got 0 bytes"), True),
        (dist.DistBackendError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"), False),
        (torch.OutOfMemoryError(FULL), False),
        (RuntimeError(OTHER), False),
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
