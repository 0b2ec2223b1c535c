"""The student learns from the teacher: the gradient is the formula's, and the divergence falls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from tests.trainer.conftest import Workers, losses
from trainer import files
from trainer.config import schema as configuration
from trainer.data import batches
from trainer.errors import UserError
from trainer.tasks import distill, pretrain
from trainer.tasks.distill import Distillation, copy_layers

VOCABULARY = 500


def network(layers: int, width: int, seed: int, deviation: float = 0.02, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=128,
        n_embd=width,
        n_layer=layers,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=deviation,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random GPT-2 that has opinions: large weights make uneven distributions."""
    folder = tmp_path_factory.mktemp("teacher")
    network(4, 32, seed=1, deviation=0.25).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 1.0), (2.0, 0.5), (3.0, 0.0)])
def test_loss_and_gradient_are_those_of_the_formula(
    monkeypatch: pytest.MonkeyPatch, temperature: float, alpha: float
) -> None:
    monkeypatch.setattr(distill, "CHUNK", 7)  # several chunks, the last one not full
    student, large = network(2, 16, seed=2, deviation=0.3), network(3, 32, seed=3, deviation=0.3)
    large.requires_grad_(False)
    inputs, targets = torch.randint(VOCABULARY, (2, 2, 11)).unbind(0)
    module = Distillation(student, large, temperature, alpha)
    loss = module(inputs, targets)
    (loss / 5).backward()
    found = {name: parameter.grad.clone() for name, parameter in student.named_parameters()}
    student.zero_grad()

    logits = student(inputs).logits.flatten(0, 1)
    soft = F.softmax(large(inputs).logits.flatten(0, 1) / temperature, -1)
    divergence = (soft * (soft.log() - F.log_softmax(logits / temperature, -1))).sum()
    entropy = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    expected = alpha * temperature**2 * divergence + (1 - alpha) * entropy
    (expected / 5).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-6)
    assert all(parameter.grad is None for parameter in large.parameters())


def test_evaluation_is_the_students_plain_loss() -> None:
    student, large = network(2, 16, seed=2), network(2, 32, seed=3)
    inputs, targets = torch.randint(VOCABULARY, (2, 2, 11)).unbind(0)
    module = Distillation(student, large, 2.0, 0.5).eval()
    expected = F.cross_entropy(student(inputs).logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert module(inputs, targets).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_student_may_begin_with_layers_of_the_teacher() -> None:
    large, small = network(12, 32, seed=4), network(6, 32, seed=5)
    copy_layers(large, small)
    theirs = [large.transformer.h[number].state_dict() for number in (0, 2, 4, 7, 9, 11)]
    for layer, their in zip(small.transformer.h, theirs, strict=True):
        assert all(torch.equal(value, their[name]) for name, value in layer.state_dict().items())
    assert torch.equal(small.lm_head.weight, large.transformer.wte.weight)
    with pytest.raises(UserError, match=r"6 layers.*width 64.*student_from_teacher off"):
        copy_layers(large, network(6, 64, seed=6))


def test_the_data_are_verified_once(
    settings: Callable[..., list[str]], teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(batches, "sha256", lambda path: read.append(path) or files.sha256(path))
    distill.make_work(configuration.load(settings(tmp_path, task="distillation", distillation__teacher=teacher)))
    assert len(read) == len(set(read)) > 0


def test_the_teacher_counts_as_a_forward_pass(
    settings: Callable[..., list[str]], teacher: Path, tmp_path: Path
) -> None:
    """Two operations a parameter that is multiplied, four for each layer, unit of width and position."""
    given = settings(tmp_path / "run", task="distillation", distillation__teacher=teacher)
    config = configuration.load(given)
    found = distill.make_work(config).flops_per_token - pretrain.make_work(config).flops_per_token
    net = network(4, 32, seed=1)
    multiplied = sum(value.numel() for value in net.parameters()) - net.transformer.wpe.weight.numel()
    assert found == pytest.approx(2 * multiplied + 4 * 4 * 32 * 32)


def test_distillation_brings_the_student_to_the_teacher(
    start_workers: Callable[[int, list[str]], Workers],
    settings: Callable[..., list[str]],
    teacher: Path,
    tmp_path: Path,
) -> None:
    common = {"task": "distillation", "distillation__teacher": teacher, "distillation__alpha": 1.0, "steps": 20}
    given = {name: settings(tmp_path / name, **common, optimizer__learning_rate=1e-2) for name in ("one", "two")}
    untaught = distill.make_work(configuration.load(given["one"])).results()
    for world, name in enumerate(given, 1):
        workers = start_workers(world, given[name])
        assert workers.wait(120) == [0] * world, workers.output
    done = json.loads((tmp_path / "one" / "DONE").read_text("utf-8"))
    assert done["distillation_divergence"] < 0.8 * untaught["distillation_divergence"]
    history = losses(tmp_path / "one")
    assert history[20] < 0.8 * history[1]
    assert losses(tmp_path / "two") == pytest.approx(history, rel=1e-4)


def refusal(arguments: list[str]) -> str:
    with pytest.raises(UserError) as raised:
        distill.make_work(configuration.load(arguments))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_teacher_that_does_not_fit_is_told(settings: Callable[..., list[str]], teacher: Path, tmp_path: Path) -> None:
    def arguments(name: Any, **changes: Any) -> list[str]:
        common = {"task": "distillation", "distillation__teacher": name}
        return settings(tmp_path / "run", **common, **changes)

    network(1, 32, seed=1, vocabulary=600).save_pretrained(tmp_path / "other")
    assert "distillation.teacher" in refusal(arguments(tmp_path / "other"))
    assert "vocabulary of 600" in refusal(arguments(tmp_path / "other"))
    assert "distillation.teacher: no/such-model cannot be read" in refusal(arguments("no/such-model"))
    changes = {"model__preset": "micro", "distillation__student_from_teacher": "true"}
    assert "student_from_teacher: the student has 4 layers, 4 heads" in refusal(arguments(teacher, **changes))
    cold = refusal(arguments(teacher, distillation__temperature=0))
    assert "temperature: 0 is not allowed; must be greater than 0" in cold
    alone = refusal(arguments(teacher, distillation__alpha=1.5))
    assert "alpha: 1.5 is not allowed; must be less than or equal to 1" in alone
