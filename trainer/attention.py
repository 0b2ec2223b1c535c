"""Causal attention for processors without matrix tiles (AMX): blocks of rows, each one pair of batched products.

torch's fused kernel for the CPU runs its small products at about a third of the rate that batched products of whole
blocks reach on AVX512-BF16 (bench/trainer measures both). The scores above the diagonal that
a block does not need are left out; the probabilities are kept for the way back, which costs memory (1.25 bytes per
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
        outputs, weights, sums = [], [], []
        length, turned = query.shape[1], _turned(key)
        for first in range(0, length, ROWS):
            last = min(first + ROWS, length)
            scores = torch.bmm(query[:, first:last], turned[:, :, :last]).float()
            scores = scores + hidden[first:last, :last]
            unnormalised = ((scores - scores.amax(2, keepdim=True)) * scale).exp()
            total = unnormalised.sum(2, keepdim=True)
            weight = unnormalised.to(query.dtype)
            outputs.append((torch.bmm(weight, value[:, :last]).float() / total).to(query.dtype))
            weights.append(weight)
            sums.append(total)
        output = torch.cat(outputs, 1)
        ctx.save_for_backward(query, key, value, output, *weights, *sums)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, *blocks = ctx.saved_tensors
        weights, sums = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
        length, turned = query.shape[1], _turned(value)
        query_gradients: list[torch.Tensor] = []
        key_gradient = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        value_gradient = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        for number, first in enumerate(range(0, length, ROWS)):
            last = min(first + ROWS, length)
            weight = weights[number]
            outer_rows = outer[0][:, first:last].float() / sums[number]
            delta = (outer_rows * output[:, first:last]).sum(2, keepdim=True)
            rows = outer_rows.to(query.dtype)
            weight_gradient = torch.bmm(rows, turned[:, :, :last])
            score_gradient = (weight * (weight_gradient.float() - delta) * ctx.scale).to(query.dtype)
            query_gradients.append(torch.bmm(score_gradient, key[:, :last]))
            key_gradient[:, :last] += torch.bmm(score_gradient.transpose(1, 2), query[:, first:last])
            value_gradient[:, :last] += torch.bmm(weight.transpose(1, 2), rows)
        return (
            torch.cat(query_gradients, 1),
            key_gradient.to(key.dtype),
            value_gradient.to(value.dtype),
            None,
            None,
        )
