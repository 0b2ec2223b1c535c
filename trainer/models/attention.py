"""Causal attention for processors without matrix tiles (AMX): blocks of rows, each one pair of batched products.

torch's fused kernel for the CPU runs its small products at about a third of the rate that batched products of whole
blocks reach on AVX512-BF16 (docs/performance.md has the figures). A block leaves out the scores above the diagonal that
it does not need. The probabilities are kept for the backward pass, which costs memory (at length 1024 1.25 bytes for
each pair of positions, head and layer) and saves a third of the work.
"""

import contextlib
import math
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS = 256
"""Rows of scores in a block: small enough to skip 3/8 of the square at length 1024, large enough for fast products."""
GROUPED_ROWS = 128
"""The same in grouped_attention, shared by the heads of a group; each head gets at least half as many."""
TILES = bool(torch.cpu.get_capabilities().get("amx_bf16"))
"""Whether the CPU has AMX, for which torch's own attention is written. Read once: a query inside a compiled layer would
break its graph."""


def has_bf16_units() -> bool:
    """Whether the CPU multiplies bf16 itself (AMX-BF16, AVX512-BF16), instead of emulating it."""
    return TILES or bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def preferred(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context in which torch tries its attention kernels in the best order for the device.

    cuDNN's is the fastest on Hopper (compute capability 9.0). torch 2.15 tries it first there by itself, torch 2.11
    last (sdp_utils.cpp). The others follow for shapes and types that it does not support. Code compiled in the context
    keeps the kernel chosen then. It must hold for forward and backward passes alike: a layer that is computed again
    there by another kernel does not match what was saved.
    """
    if device.type != "cuda" or not torch.cuda.is_available() or torch.cuda.get_device_capability(device) != (9, 0):
        return contextlib.nullcontext()
    return sdpa_kernel(
        [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ],
        set_priority=True,
    )


def mask(length: int) -> torch.Tensor:
    """Additive mask: 0 where a position sees another, else minus infinity. Comparing positions takes twice as long."""
    return torch.full((length, length), -math.inf).triu(1)


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, scale: float
) -> torch.Tensor:
    """softmax(query key^T * scale + hidden) value, with hidden = mask(length).

    The first three are [batch x heads, length, head width], contiguous.
    """
    return _Blocks.apply(query, key, value, hidden, scale)


def _turned(values: torch.Tensor) -> torch.Tensor:
    """Transpose in memory once: otherwise each block's product transposes the part that it reads again."""
    return values.transpose(1, 2).contiguous()


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, scale: float
    ) -> torch.Tensor:
        outputs, weights, key = [], [], _centred(key)
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
        scaled = outer[0] * ctx.scale  # not the scores, which are many times as wide
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


@torch.library.custom_op("trainyard::grouped_attention", mutates_args=())
def grouped_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """causal_attention where several query heads share one head of keys and values, without the compiler.

    query [groups, heads of a group, length, head width]; key and value [groups, length, head width], contiguous. The
    heads of a group are rows of one product. The backward pass recomputes the probabilities: that takes a sixth of the
    time, and keeping them would take length x length numbers for each head and layer. It is a custom operator because
    inductor's code for softmax and its gradient is slower than torch's.
    """
    scaled, turned, output = query * scale, _turned(_centred(key)), torch.empty_like(query)
    with torch.autocast(query.device.type, enabled=False):
        for rows, last in _row_blocks(query):
            weight = _weights(scaled[:, :, rows], turned[:, :, :last])
            output[:, :, rows] = torch.bmm(weight, value[:, :last]).view_as(output[:, :, rows])
    return output


@torch.library.custom_op("trainyard::grouped_attention_backward", mutates_args=())
def _grouped_backward(
    outer: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scaled, key = query * scale, _centred(key)
    turned, turned_value, query_gradient = _turned(key), _turned(value), torch.empty_like(query)
    key_gradient, value_gradient = (torch.zeros(key.shape, dtype=torch.float32, device=key.device) for _ in range(2))
    with torch.autocast(query.device.type, enabled=False):
        for rows, last in _row_blocks(query):
            weight = _weights(scaled[:, :, rows], turned[:, :, :last])
            outside = outer[:, :, rows].flatten(1, 2)
            gradient = torch.bmm(outside, turned_value[:, :, :last])
            gradient = torch.ops.aten._softmax_backward_data(gradient, weight, 2, weight.dtype)
            part = torch.bmm(gradient, key[:, :last]).mul_(scale)
            query_gradient[:, :, rows] = part.view_as(query_gradient[:, :, rows])
            key_gradient[:, :last] += torch.bmm(gradient.transpose(1, 2), scaled[:, :, rows].flatten(1, 2))
            value_gradient[:, :last] += torch.bmm(weight.transpose(1, 2), outside)
    return query_gradient, key_gradient.to(key.dtype), value_gradient.to(value.dtype)


def _centred(key: torch.Tensor) -> torch.Tensor:
    """Subtract the mean key of each group. It adds the same to all scores of a row, which changes no probability and no
    gradient. With Qwen's biases it is most of a score, and bf16 would round the rest away."""
    return key - key.mean(1, keepdim=True)


def _row_blocks(query: torch.Tensor) -> list[tuple[slice, int]]:
    """The rows of each block, and how many positions they see."""
    _, heads, length, _ = query.shape
    size = max(GROUPED_ROWS // 2, GROUPED_ROWS // heads)
    return [(slice(first, first + size), min(first + size, length)) for first in range(0, length, size)]


def _weights(query: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """Probabilities [groups, heads x rows, positions seen]. torch's softmax keeps the type and accumulates in fp32."""
    scores = torch.bmm(query.flatten(1, 2), turned)
    rows = query.shape[2]
    square = scores.view(*query.shape[:3], -1)[..., -rows:]  # each row sees all earlier columns
    square += mask(rows).to(scores)
    return scores.softmax(2)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.scale = inputs[3]


def _gradients(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return *_grouped_backward(outer, *ctx.saved_tensors, ctx.scale), None


grouped_attention.register_fake(lambda query, key, value, scale: torch.empty_like(query))
grouped_attention.register_autograd(_gradients, setup_context=_keep)
_grouped_backward.register_fake(lambda outer, *three: tuple(torch.empty_like(part) for part in three[:3]))
