"""The task distillation: a small GPT-2 learns from the text and from a large GPT-2's predictions.

The loss of a token is alpha T^2 KL(teacher || student) + (1 - alpha) CE. The temperature T softens both distributions
of the divergence; T^2 keeps its gradient as large as the other's (Hinton, Vinyals and Dean 2015, arXiv 1503.02531,
section 2). Validation is the student's plain loss on text, comparable with any other model's.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from trainer.checkpoint.format import list_checkpoints
from trainer.config.schema import Config
from trainer.data.batches import gather, open_dataset, windows
from trainer.errors import UserError
from trainer.models import networks
from trainer.models.gpt2 import LanguageModel
from trainer.models.head import ChunkedLoss
from trainer.tasks import pretrain
from trainer.tasks.work import Work

if TYPE_CHECKING:
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

CHUNK = 1024
"""Tokens whose logits exist at a time, student's and teacher's: about 1 GB in fp32 for GPT-2, with intermediates."""
COMPARED = 8
"""Validation windows on which student and teacher are compared at the end."""


def make_work(config: Config, most: int | None = None) -> Work:
    """Pre-training's Work with the module Distillation. Raises UserError if the teacher is missing or does not fit."""
    settings, key = config.distillation, "distillation.teacher"
    dataset = open_dataset(config.data.directory)  # make_work() below verifies it
    tokenizer, words = dataset.directory / "tokenizer.json", dataset.largest + 1
    found = networks.load(settings.teacher, words, config.sequence_length, tokenizer, key=key)
    work = pretrain.make_work(config, most)
    student = plain_gpt2("model.name", config.model.name, work.net, work.net.config.vocab_size)
    teacher = plain_gpt2(key, settings.teacher, found, student.config.vocab_size).requires_grad_(False)
    if settings.student_from_teacher and not list_checkpoints(Path(config.run.directory)):
        copy_layers(teacher, student)
    module = Distillation(student, teacher, settings.temperature, settings.alpha)

    def results() -> dict[str, Any]:
        count = min(COMPARED, windows(len(dataset.validation), config.sequence_length))
        inputs, _ = gather(dataset.validation, np.arange(count), config.sequence_length)
        return {"distillation_divergence": module.divergence(torch.from_numpy(inputs).to(student.device))}

    return dataclasses.replace(
        work,
        module=module,
        flops_per_token=work.flops_per_token
        + networks.flops_per_token(teacher, config.sequence_length, backward=False),
        expected_loss=None if settings.student_from_teacher else work.expected_loss,
        activations=module.student.attention_statistics if config.metrics.attention_statistics else None,
        results=results,
    )


def plain_gpt2(key: str, name: str, net: Any, vocabulary: int) -> "GPT2LMHeadModel":
    """Return `net`. Raises UserError if it is no GPT-2, or its vocabulary is not that of the student."""
    if net.config.model_type != "gpt2":
        raise UserError(
            f"{key}: {name} is a {net.config.model_type} model; distillation supports only GPT-2, such as gpt2"
        )
    if net.config.vocab_size != vocabulary:
        raise UserError(
            f"{key}: {name} has a vocabulary of {net.config.vocab_size}, the student of {vocabulary}; name a GPT-2 of "
            "the student's tokenizer"
        )
    return net


@torch.no_grad()
def copy_layers(teacher: "GPT2LMHeadModel", student: "GPT2LMHeadModel") -> None:
    """Start from the teacher's embeddings, last norm and evenly spread layers: of 12 layers 0, 2, 4, 7, 9 and 11.

    DistilGPT-2 was initialised so (Sanh et al. 2019, arXiv 1910.01108, section 3; the numbers are those of the script
    extract.py beside it). Raises UserError if the shapes do not allow it.
    """
    small, large = student.config, teacher.config
    if (small.n_embd, small.n_head) != (large.n_embd, large.n_head) or small.n_layer > large.n_layer:
        raise UserError(
            f"distillation.student_from_teacher: the student has {small.n_layer} layers, {small.n_head} heads and "
            f"width {small.n_embd}, the teacher {large.n_layer}, {large.n_head} and {large.n_embd}; choose a "
            "model.preset of the teacher's heads and width, or switch student_from_teacher off"
        )
    if small.n_positions > large.n_positions:
        raise UserError(
            f"distillation.student_from_teacher: the student has {small.n_positions} positions, the teacher only "
            f"{large.n_positions}; switch student_from_teacher off"
        )
    ours, theirs = student.transformer, teacher.transformer
    ours.wte.weight.copy_(theirs.wte.weight)
    ours.wpe.weight.copy_(theirs.wpe.weight[: small.n_positions])
    ours.ln_f.load_state_dict(theirs.ln_f.state_dict())
    for layer, number in zip(ours.h, pretrain.spread(large.n_layer, small.n_layer), strict=True):
        layer.load_state_dict(theirs.h[int(number)].state_dict())


class Distillation(nn.Module):
    """Student and frozen teacher. Training: the mixed loss; evaluation: the student's own."""

    def __init__(self, student: Any, teacher: Any, temperature: float, alpha: float) -> None:
        super().__init__()
        self.student, self.teacher = LanguageModel(student), LanguageModel(teacher)
        self.temperature, self.alpha = temperature, alpha
        self._vocabulary = student.config.vocab_size

    def compile(self, *args: Any, **options: Any) -> None:
        self.student.compile(*args, **options)
        self.teacher.compile(*args, **options)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum of the token losses, fp32. inputs and targets: int64 [batch, length]."""
        if not self.training:
            return self.student(inputs, targets)
        with torch.no_grad():
            known, known_head = self.teacher.hidden_and_head(inputs)
        hidden, head = self.student.hidden_and_head(inputs)
        hidden, known, targets = hidden.flatten(0, 1), known.flatten(0, 1), targets.flatten()

        def replace(logits: torch.Tensor, part: slice, scale: float) -> torch.Tensor:
            words = slice(self._vocabulary)
            theirs = (known[part] @ known_head.t())[:, words].float()
            ours = logits[:, words].float()
            loss, gradient = mixed(ours, theirs, targets[part], self.temperature, self.alpha)
            logits[:, words], logits[:, self._vocabulary :] = gradient.mul_(scale), 0
            return loss

        with torch.autocast(inputs.device.type, enabled=False):
            return ChunkedLoss.apply(hidden, head, replace, CHUNK, None)

    @torch.no_grad()
    def divergence(self, inputs: torch.Tensor) -> float:
        """Mean KL(teacher || student) of a token at temperature 1, in nats."""
        total, count = 0.0, 0
        for row in inputs.split(1):
            ours, theirs = (part.logits(row).float().log_softmax(-1) for part in (self.student, self.teacher))
            total += float(F.kl_div(ours, theirs, log_target=True, reduction="sum"))
            count += row.numel()
        return total / count


def mixed(
    logits: torch.Tensor, known: torch.Tensor, targets: torch.Tensor, temperature: float, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed loss of some tokens and its gradient with respect to the logits.

    logits, known (the teacher's): [tokens, vocabulary], fp32; targets: int64 [tokens].
    """
    softer, soft = (known / temperature).log_softmax(1), (logits / temperature).log_softmax(1)
    plain = logits.log_softmax(1)
    divergence = F.kl_div(soft, softer, log_target=True, reduction="sum")
    entropy = F.nll_loss(plain, targets, reduction="sum")
    gradient = (soft.exp_() - softer.exp_()) * (alpha * temperature)
    hard = plain.exp_()
    hard[torch.arange(len(targets), device=targets.device), targets] -= 1
    return alpha * temperature**2 * divergence + (1 - alpha) * entropy, gradient.add_(hard, alpha=1 - alpha)
