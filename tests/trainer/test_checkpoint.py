"""Checkpoints survive a kill at any write, damage and a full disk; transformers reads them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel as Stock

from trainer import checkpoint, model, optimizer
from trainer.config import Optimizer
from trainer.errors import UserError
from trainer.sample import sample


def trained(seed: int = 1, preset: str = "tiny") -> tuple[Any, Any]:
    """A model and its optimizer after one step."""
    net = model.build(preset, vocabulary=500, end_of_text=0, seed=seed)
    adam = optimizer.build(net, Optimizer())
    tokens = torch.randint(0, 500, (2, 17), generator=torch.Generator().manual_seed(seed))
    model.token_loss(net, tokens[:, :-1], tokens[:, 1:]).backward()
    adam.step()
    return net, adam


def save(run: Path, step: int, seed: int = 1, keep: int = 9, tokenizer: Path | None = None) -> Path:
    net, adam = trained(seed)
    state = {"optimizer": adam.state_dict()}
    return checkpoint.save(run, step, net, state, "train: {}\n", tokenizer, {"validation_loss": 5.0}, keep)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def _save_and_die(run: str, at: int, report: str) -> None:
    """Save step 20, and die at the at-th write: at each file opened, renamed or deleted, each folder, each fsync."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(name: str, arguments: tuple[Any, ...]) -> None:
        writes = (
            name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        changes = name in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.copyfile", "shutil.rmtree")
        if (writes or changes) and run in " ".join(str(argument) for argument in arguments):
            tick()

    real = os.fsync
    net, adam = trained(2)
    sys.addaudithook(watch)
    os.fsync = lambda descriptor: (tick(), real(descriptor))[1]  # pyright: ignore[reportAttributeAccessIssue]
    checkpoint.save(Path(run), 20, net, {"optimizer": adam.state_dict()}, "", None, {}, keep=1)
    Path(report).write_text(str(count))


def test_a_kill_at_any_write_leaves_a_checkpoint_to_resume_from(run: Path, tmp_path: Path) -> None:
    save(run, 10)
    context = multiprocessing.get_context("fork")  # each attempt is a process, as a kill ends it
    at, died = 1, 0
    while True:
        report = tmp_path / "survived"
        child = context.Process(target=_save_and_die, args=(str(run), at, str(report)))
        child.start()
        child.join()
        found = checkpoint.newest(run)
        assert found is not None, f"nothing to resume from after a kill at write {at}"
        assert found.step in (10, 20)
        net = model.build("tiny", 500, 0, seed=9)
        checkpoint.load_weights(found.path, net)
        checkpoint.load_optimizer(found.path, torch.device("cpu"))
        if report.exists():
            break
        died += 1
        at += 1
        if found.step == 20:  # the rename was done; begin again from the old checkpoint for the writes after it
            for path in checkpoint.listed(run):
                path.rename(path.with_name("." + path.name))
            checkpoint.clean(run)
            save(run, 10)
    assert died > 12, "the test must meet the writes it means to interrupt"
    save(run, 30, keep=1)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000030"], "nothing half-written may stay"


@pytest.mark.parametrize("harm", ["flip", "cut", "delete", "manifest"])
@pytest.mark.parametrize("file", ["model/model.safetensors", "optimizer.pt"])
def test_a_damaged_newest_is_skipped_with_a_warning(
    run: Path, harm: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(run, 10)
    newest = save(run, 20)
    path = newest / ("manifest.json" if harm == "manifest" else file)
    content = path.read_bytes()
    if harm == "delete":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if harm in ("cut", "manifest") else content[:-9] + b"damage!!!")
    found = checkpoint.newest(run)
    assert found is not None
    assert found.step == 10
    assert "event=checkpoint_damaged" in capsys.readouterr().err
    assert "step-00000020" not in str(found.path)
    save(run, 20)  # the same step again, on its way back
    again = checkpoint.newest(run)
    assert again is not None
    assert again.step == 20


def test_only_the_newest_are_kept(run: Path) -> None:
    for step in (10, 20, 30, 40):
        save(run, step, keep=2)
    assert [path.name for path in checkpoint.listed(run)] == ["step-00000030", "step-00000040"]


def test_a_full_disk_leaves_the_older_checkpoints(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, 10)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        save(run, 20)
    found = checkpoint.newest(run)
    assert found is not None
    assert found.step == 10
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000010"]


def test_weights_optimizer_and_figures_come_back_exactly(run: Path) -> None:
    net, adam = trained(3)
    checkpoint.save(run, 5, net, {"optimizer": adam.state_dict()}, "", None, {"initial_validation_loss": 6.2}, 1)
    found = checkpoint.newest(run)
    assert found is not None
    assert found.figures == {"initial_validation_loss": 6.2}
    other, other_adam = trained(4)
    checkpoint.load_weights(found.path, other)
    other_adam.load_state_dict(checkpoint.load_optimizer(found.path, torch.device("cpu"))["optimizer"])
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert other.lm_head.weight.data_ptr() == other.transformer.wte.weight.data_ptr(), "the head stays tied"
    for a, b in zip(adam.state_dict()["state"].values(), other_adam.state_dict()["state"].values(), strict=True):
        assert torch.equal(a["exp_avg"], b["exp_avg"])
        assert torch.equal(a["exp_avg_sq"], b["exp_avg_sq"])


def test_transformers_reads_the_model_and_gives_the_same_logits(run: Path, tokenizer: Path) -> None:
    net, adam = trained(5)
    file = tokenizer / "tokenizer.json"
    path = checkpoint.save(run, 5, net, {"optimizer": adam.state_dict()}, "", file, {}, 1)
    stock = Stock.from_pretrained(path / "model")
    tokens = torch.randint(0, 500, (2, 40))
    with torch.no_grad():
        assert torch.equal(stock(tokens).logits, net.eval()(tokens).logits)
    text = sample(run, prompt="The Rays", tokens=12, temperature=0.9, top_k=20, seed=4)
    assert text.startswith("The Rays")
    assert len(text) > len("The Rays")
    assert text == sample(run, prompt="The Rays", tokens=12, temperature=0.9, top_k=20, seed=4)
    assert text != sample(run, prompt="The Rays", tokens=12, temperature=0.9, top_k=20, seed=5)


def test_a_checkpoint_of_another_model_is_told(run: Path) -> None:
    path = save(run, 10)
    other = model.build("tiny", vocabulary=501, end_of_text=0, seed=1)
    with pytest.raises(UserError, match=r"another model: .*\(500, 32\).*\(501, 32\)"):
        checkpoint.load_weights(path, other)


def test_sampling_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint that verifies"):
        sample(tmp_path, "The", 5, 1.0, 0, 0)


@pytest.mark.parametrize(("preset", "millions"), [("distil", 81.9), ("small", 124.4)])
def test_presets_have_the_published_sizes(preset: str, millions: float) -> None:
    with torch.device("meta"):
        net = model.build(preset, 50257, 50256, seed=0)
    assert sum(parameter.numel() for parameter in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
