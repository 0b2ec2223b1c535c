"""Causal attention for processors without matrix tiles (AMX): blocks of rows, each one pair of batched products.

torch's fused kernel for the CPU runs its small products at about a third of the rate that batched products of whole
blocks reach on AVX512-BF16 (docs/performance.md has the figures). The scores above the diagonal that a block does not
need are left out; the probabilities are kept for the way back, which costs memory (at length 1024 1.25 bytes for each
pair of positions, head and layer) and saves a third of the work.
"""

import math
from typing import Any

import torch

ROWS = 256
"""Rows of scores in a block: small enough to skip 3/8 of the square at length 1024, large enough for fast products."""


def mask(length: int) -> torch.Tensor:
    """0 where a position sees another, else minus infinity. To be added: to compare positions takes twice as long."""
    return torch.full((length, length), -math.inf).triu(1)


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, scale: float
) -> torch.Tensor:
    """softmax(query key^T * scale + hidden) value, with hidden = mask(length).

    The first three are [batch x heads, length, head width], contiguous.
    """
    return _Blocks.apply(query, key, value, hidden, scale)  # pyright: ignore[reportReturnType]


def _turned(values: torch.Tensor) -> torch.Tensor:
    """Transposed in memory once: the product of each block would do it again with the part that it reads."""
    return values.transpose(1, 2).contiguous()


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, scale: float
    ) -> torch.Tensor:
        outputs, weights = [], []
        length, turned = query.shape[1], _turned(key)
        for first in range(0, length, ROWS):
            last = min(first + ROWS, length)
            scores = torch.bmm(query[:, first:last], turned[:, :, :last]).float()
            weight = (scores * scale).add_(hidden[first:last, :last]).softmax(2).to(query.dtype)
            outputs.append(torch.bmm(weight, value[:, :last]))
            weights.append(weight)
        output = torch.cat(outputs, 1)
        ctx.save_for_backward(query, key, value, output, *weights)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, *weights = ctx.saved_tensors
        length, turned = query.shape[1], _turned(value)
        scaled = outer[0] * ctx.scale  # here and not at the scores, which are many times as wide
        delta = (scaled.float() * output).sum(2, keepdim=True)
        query_gradients: list[torch.Tensor] = []
        key_gradient = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        value_gradient = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        for weight, first in zip(weights, range(0, length, ROWS), strict=True):
            last = min(first + ROWS, length)
            weight_gradient = torch.bmm(scaled[:, first:last], turned[:, :, :last])
            score_gradient = (weight_gradient - delta[:, first:last]).mul_(weight).to(query.dtype)
            query_gradients.append(torch.bmm(score_gradient, key[:, :last]))
            key_gradient[:, :last] += torch.bmm(score_gradient.transpose(1, 2), query[:, first:last])
            value_gradient[:, :last] += torch.bmm(weight.transpose(1, 2), outer[0][:, first:last])
        return torch.cat(query_gradients, 1), key_gradient.to(key.dtype), value_gradient.to(value.dtype), None, None
