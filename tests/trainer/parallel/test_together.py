"""Work that takes one worker minutes hits no exchange's timeout: a large checkpoint on slow storage, compiling."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.trainer import toy
from tests.trainer.conftest import Settings, Start, losses
from tests.trainer.processes import run_worker
from trainer.checkpoint.format import Checkpoint, verify_checkpoint, write_manifest
from trainer.config.schema import load
from trainer.errors import UserError
from trainer.train import compiled

SCALE = 40
"""Divides times and timeouts here."""
TIMEOUT = 120 // SCALE
XL_SECONDS = 18.7e9 / 60e6 / SCALE
"""GPT-2 XL's checkpoint of 18.7 GB, read at 60 MB/s: 312 s."""


def slow_machine(environment: dict[str, str], arguments: list[str], log: str) -> None:
    """Both read a checkpoint as slowly as XL's; the second takes longer to load it and to compile as well."""
    from trainer.checkpoint import format
    from trainer.models.gpt2 import LanguageModel
    from trainer.train import resume

    sha256, load_optimizer, second = format.sha256, format.load_optimizer, environment["RANK"] == "1"

    def reads(path: Path, *inside: Any) -> Any:
        folder = next(parent for parent in path.parents if parent.name.startswith(("step-", ".step-")))
        total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if threading.current_thread() is threading.main_thread():
            time.sleep(XL_SECONDS * path.stat().st_size / total)
        return sha256(path, *inside)

    def loads(*given: Any) -> Any:
        time.sleep(1.2 * TIMEOUT * second)
        return load_optimizer(*given)

    def compiles(*_: Any) -> None:
        time.sleep(1.2 * TIMEOUT * second)

    # pyrefly: ignore[bad-assignment]
    format.sha256, resume.load_optimizer, compiled.prepare = reads, loads, compiles
    LanguageModel.compile = lambda self: None
    run_worker(environment, arguments, log)


def test_a_slow_storage_and_a_slow_compiler_meet_no_time_out(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    arguments = settings(tmp_path / "run", evaluation__sample_tokens=0)
    first = start_workers(2, [*arguments, "steps=4", "optimizer.schedule_steps=6"])
    assert first.wait() == [0, 0], first.output
    (tmp_path / "run" / "DONE").unlink()
    slow = [*arguments, "steps=6", f"run.collective_timeout_seconds={TIMEOUT}", "compile=true"]
    again = start_workers(2, slow, slow_machine)
    assert again.wait(90) == [0, 0], again.output
    assert "event=resume step=4" in again.output
    assert "event=compile compile=true" in again.output
    assert max(losses(tmp_path / "run")) == 6


def test_each_worker_reads_a_part_of_a_checkpoint_and_all_of_them_everything(tmp_path: Path) -> None:
    optimizer, settings = "optimizer.safetensors", "config.yaml"
    sizes = {optimizer: 4000, "model/weights": 2000, settings: 3, "model/config": 2}
    (tmp_path / "model").mkdir()
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    write_manifest(tmp_path, [tmp_path / name for name in sizes], 7, {}, {})
    for damaged, reader in ((optimizer, 0), ("model/weights", 1), (settings, 0), ("model/config", 1)):
        before = (tmp_path / damaged).read_bytes()
        (tmp_path / damaged).write_bytes(b"y" * sizes[damaged])
        assert [verify_checkpoint(tmp_path, (rank, 2)) is None for rank in (0, 1)] == [reader == 0, reader == 1]
        (tmp_path / damaged).write_bytes(before)
    assert verify_checkpoint(tmp_path) == Checkpoint(tmp_path, 7, {}, {})


def test_the_model_is_compiled_where_it_pays_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["data.directory=/d", "run.directory=/r"]
    chosen = load(common)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: "/usr/bin/cc")
    assert compiled.choose(chosen, torch.device("cpu")) == (
        False,
        "a CPU gains little by it and compiles for half a minute",
    )
    assert compiled.choose(chosen, torch.device("cuda"))[0]
    modern = load([*common, "recipe=modern", "tokens_per_step=1000", "sequence_length=100", "steps=300"])
    assert compiled.choose(modern, torch.device("cpu"))[0] == compiled.builds_for_cpu()
    assert "less than" in compiled.choose(modern.model_copy(update={"steps": 299}), torch.device("cpu"))[1]
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    assert "no g++" in compiled.choose(modern, torch.device("cpu"))[1]
    assert "no C compiler" in compiled.choose(chosen, torch.device("cuda"))[1]
    asked = load([*common, "compile=True"])
    assert compiled.choose(asked, torch.device("cpu")) == (True, "asked for")
    refused = load([*common, "compile=no"])
    assert compiled.choose(refused, torch.device("cuda")) == (False, "asked for")


def test_compiled_code_for_accelerators_is_passed_on_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"kernels", None))
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda content: taken.append(content) or content)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 1)
    compiled.Cache(tmp_path, torch.device("cpu")).save()
    assert not (tmp_path / compiled.FOLDER).exists(), "another node's processor may lack an instruction"
    made = compiled.Cache(tmp_path, torch.device("cuda"))
    assert made.load() == "none"
    made.save()
    assert compiled.Cache(tmp_path, torch.device("cuda")).load() == "found"
    assert taken == [b"kernels"]
    made.path.unlink()
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 0)
    made.save()
    assert not made.path.exists(), "what was compiled elsewhere is not written once more"


def test_the_passes_that_compile_leave_nothing_behind() -> None:
    """No gradient, no hook of an engine, training mode: the first step is the one it would have been."""
    work = toy.work()
    called: list[torch.Tensor] = []
    for value in work.net.parameters():
        value.register_post_accumulate_grad_hook(called.append)
    before = [value.clone() for value in work.net.parameters()]
    batch = tuple(torch.from_numpy(part) for part in work.batches.get(0, 0))
    compiled.passes(work, toy.place(), torch.float32, batch)
    assert not called
    assert all(value.grad is None for value in work.net.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, work.net.parameters(), strict=True))
    assert work.module.training


def test_compiled_code_that_loses_the_gradient_ends_the_training() -> None:
    """As torch 2.11 makes it of an adapter: the losses are right, every gradient is 0, and nothing would be learned."""

    def losing(graph: Any, inputs: Any) -> Any:
        return lambda *values: tuple(found.detach() + 0 * found for found in graph(*values))

    work = toy.work()
    batch = tuple(torch.from_numpy(part) for part in work.batches.get(0, 0))
    work.module.compile(backend=losing)
    with pytest.raises(UserError, match=r"compile: torch \S+ compiles this model without its gradient; use compile"):
        compiled.passes(work, toy.place(), torch.float32, batch)


def test_a_pass_without_an_answer_has_no_gradient_and_may_be_compiled() -> None:
    class Unanswered(torch.nn.Module):
        def forward(self, *batch: torch.Tensor) -> torch.Tensor:
            return 0 * answered.module(*batch)

    answered = toy.work()
    work = dataclasses.replace(answered, module=Unanswered())
    compiled.passes(work, toy.place(), torch.float32, tuple(torch.from_numpy(part) for part in work.batches.get(0, 0)))
