"""The last layer and the loss in one: no logits in fp32, and never all of them at once.

GPT-2's logits are 65 times as wide as its hidden state. In fp32, with their gradient, they would be by far the largest
tensors of the training: 1.6 GB for four windows of 1024 tokens. Here they exist for one chunk of tokens at a time, in
the precision of the matrix products, and their gradient overwrites them. So the forward pass computes the gradient,
before its scale is known. The gradient is linear in that scale, and the backward pass multiplies it in.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

FP16_SCALE = 8.0
"""Scale of gradients in fp16, divided out again: fp16 has no number below 6e-8, so a token of probability 1e-7 would
lose its gradient."""


@dataclass
class TiedGradient:
    """Passes the head's part of a tied gradient to the embedding's backward, which runs last.

    Autograd would make two dense fp32 matrices of 154 MB (GPT-2) and a third for their sum.
    """

    matrix: torch.Tensor | None = None

    def take(self) -> torch.Tensor | None:
        matrix, self.matrix = self.matrix, None
        return matrix


def replace_by_gradient(
    logits: torch.Tensor, at_target: torch.Tensor, vocabulary: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the losses of one chunk; overwrite logits [tokens, padded vocabulary] with their gradient times `scale`.

    at_target: the targets' logits [tokens, 1] in fp32. The second result is the targets' gradient, which the caller
    writes: as a rounded difference of two numbers near 1 it would vanish where the model is sure. Written for inductor,
    which makes one kernel of both passes, so the second one finds the row in the cache; with a look-up of the targets
    in it, it would make two.
    """
    values = _masked(logits, vocabulary)
    highest = values.amax(1, keepdim=True)
    normaliser = highest + (values - highest).exp().sum(1, keepdim=True).log()
    target = at_target - normaliser
    logits.copy_((values - normaliser).exp() * scale)
    return -target.sum(), (target.exp() - 1) * scale


def losses(logits: torch.Tensor, targets: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The same sum without a gradient."""
    values = _masked(logits, vocabulary)
    return (values.logsumexp(1) - values.gather(1, targets[:, None])[:, 0]).sum()


def _masked(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The logits in fp32, minus infinity beyond the vocabulary. A slice of them would have rows of odd length, which a
    GPU reads 2 bytes at a time: both passes took 1.38 times as long (50,257 columns, H100, torch 2.11, 2026-11-26)."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    return torch.where(columns < vocabulary, logits.float(), -math.inf)


def replace_in_groups(
    logits: torch.Tensor, targets: torch.Tensor, vocabulary: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """replace_by_gradient without the compiler: a few rows at a time, so each pass finds the previous one's results in
    the cache. On a CPU this is faster than inductor's two passes over everything."""
    total: list[torch.Tensor] = []
    at_target: list[torch.Tensor] = []
    for part, labels in _groups(logits, targets):
        probabilities, target = _probabilities(part[:, :vocabulary].float(), labels)
        part[:, :vocabulary] = probabilities if scale == 1 else probabilities.mul_(scale)
        part[:, vocabulary:] = 0
        total.append(-target.sum())
        at_target.append((target.exp() - 1) * scale)
    return torch.stack(total).sum(), torch.cat(at_target)


def losses_in_groups(logits: torch.Tensor, targets: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """losses without the compiler, a few rows at a time."""
    groups = _groups(logits, targets)
    return torch.stack(
        [-_probabilities(part[:, :vocabulary].float(), labels)[1].sum() for part, labels in groups]
    ).sum()


def _probabilities(values: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and the target's log-probability [rows, 1], exact even where the probability underflows fp32.

    torch's softmax is the fastest available, but does not return its normaliser. The likeliest token reveals it: its
    probability is 1 / (sum of exp(value - highest)).
    """
    probabilities = values.softmax(1)
    normaliser = values.amax(1, keepdim=True) - probabilities.amax(1, keepdim=True).log()
    return probabilities, values.gather(1, labels[:, None]) - normaliser


def _groups(logits: torch.Tensor, targets: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows in groups: on a CPU 8 a thread, 1.6 MB of GPT-2's fp32 values; more on an accelerator, to fill it."""
    rows = 2048 if logits.is_cuda else 8 * torch.get_num_threads()
    return zip(logits.split(rows), targets.split(rows), strict=True)


def summed_product(logits: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """logits^T hidden: a sum over all tokens, in fp32 where the product's own type could not hold it.

    The forward pass makes it, so a lower loss scale could not help: 7 % equal targets among 16,384 tokens and a hidden
    state of 8, times FP16_SCALE, make 73,400; fp16 ends at 65,504.
    """
    if widens(hidden.device.type):
        return torch.mm(logits.t(), hidden, out_dtype=torch.float32)
    if hidden.dtype == torch.float16:
        return logits.t().float() @ hidden.float()
    return logits.t() @ hidden


@functools.cache
def widens(device: str) -> bool:
    """Whether `device` can write half-precision products in fp32: CUDA since torch 2.8, no CPU in 2.15."""
    if device == "cpu":
        return False
    half = torch.ones(8, 8, dtype=torch.float16, device=device)
    try:
        torch.mm(half, half, out_dtype=torch.float32)
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return True


class Kernels:
    """Loss with gradient, and loss alone, compiled by inductor or not."""

    def __init__(self, compile: bool, dynamic: bool | None = False) -> None:
        """dynamic=None: for varying numbers of tokens; the second one seen is compiled for all sizes."""
        self.replace_by_gradient: Any = replace_in_groups
        self.losses: Any = losses_in_groups
        if compile:
            fused = torch.compile(replace_by_gradient, dynamic=dynamic, fullgraph=True)

            def replace(logits: torch.Tensor, targets: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
                return fused(logits, logits.gather(1, targets[:, None]).float(), *rest)

            self.replace_by_gradient = replace
            self.losses = torch.compile(losses, dynamic=dynamic, fullgraph=True)


def token_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    vocabulary: int,
    kernels: Kernels,
    chunk: int,
    tied: TiedGradient | None = None,
) -> torch.Tensor:
    """Sum of the token losses in nats, fp32 scalar.

    hidden [tokens, width] and weight [padded vocabulary, width] have one dtype; targets int64 [tokens]. Rows of the
    weight from `vocabulary` on get no probability and no gradient. With `tied`, the weight's gradient goes there.
    """
    if not torch.is_grad_enabled() or not (hidden.requires_grad or weight.requires_grad):
        total = torch.zeros((), device=hidden.device)
        for part, labels in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            total = total + kernels.losses(part @ weight.t(), labels, vocabulary)
        return total

    def replace(logits: torch.Tensor, part: slice, scale: float) -> torch.Tensor:
        labels = targets[part]
        loss, at_target = kernels.replace_by_gradient(logits, labels, vocabulary, scale)
        logits[torch.arange(len(labels), device=labels.device), labels] = at_target[:, 0].to(logits.dtype)
        return loss

    return ChunkedLoss.apply(hidden, weight, replace, chunk, tied)


class ChunkedLoss(torch.autograd.Function):
    """The sum of a loss of the logits hidden weight^T, which exist for `chunk` tokens at a time.

    replace(logits, part, scale): the loss of the tokens hidden[part]; it overwrites their logits with its gradient
    times `scale`, zeros in padding.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        replace: Callable[[torch.Tensor, slice, float], torch.Tensor],
        chunk: int,
        tied: TiedGradient | None,
    ) -> torch.Tensor:
        scale = FP16_SCALE if hidden.dtype == torch.float16 else 1.0
        total = torch.zeros((), device=hidden.device)
        weight_gradient: torch.Tensor | None = None
        hidden_gradient = torch.empty_like(hidden)
        for first in range(0, max(1, len(hidden)), chunk):  # also where no token has a loss
            part = slice(first, first + chunk)
            logits = hidden[part] @ weight.t()
            total += replace(logits, part, scale)
            torch.mm(logits, weight, out=hidden_gradient[part])
            product = summed_product(logits, hidden[part]) if ctx.needs_input_grad[1] or tied else None
            del logits
            if weight_gradient is None or product is None:
                weight_gradient = product.float() if product is not None and len(hidden) > chunk else product
            else:
                weight_gradient += product
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.scale, ctx.tied = scale, tied
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        factor = outer[0] / ctx.scale
        hidden_gradient = (hidden_gradient * factor).to(hidden_gradient.dtype)
        if weight_gradient is not None:
            wide = weight_gradient.dtype == torch.float32
            weight_gradient = weight_gradient * factor if wide else weight_gradient.float().mul_(factor)
        if ctx.tied is not None:
            ctx.tied.matrix, weight_gradient = weight_gradient, None
        return hidden_gradient, weight_gradient, None, None, None
