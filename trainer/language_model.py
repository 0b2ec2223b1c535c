"""GPT-2 as the training loop sees it: a module from token ids to the summed loss, made to be fast.

The parameters, their names, and what is saved are those of transformers' GPT2LMHeadModel. The way through them is
written here, for three reasons that docs/performance.md puts into numbers: the products read copies of the weights in
the precision of the products, made once per optimizer step and not at each use; head and loss are one (head.py); and
all blocks share one compiled graph, which takes a twelfth of the time to compile and lets the exchange of gradients
begin while the backward pass still runs.
"""

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from trainer import attention
from trainer.head import Kernels, TiedGradient, token_loss

PADDING = 128
"""The vocabulary's multiple in the products: 50,257 rows are slow on tensor cores, which want tiles of 64 or 128."""
CHUNK = 4096
"""Tokens whose logits exist at a time: 0.4 GB in bf16 for GPT-2. An accelerator wants more work at once: four times as
many. Without the compiler the fp32 values of the chunk exist as well: an eighth."""

NAMES = (
    "ln_1.weight",
    "ln_1.bias",
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
)
"""A block's parameters in the order in which `block` takes them."""


class LanguageModel(nn.Module):
    """net: transformers' GPT2LMHeadModel. Wrap it in data parallelism as it is; compile it with its own compile()."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self._vocabulary = net.config.vocab_size
        self._block: Any = block
        self._kernels = Kernels(compile=False)
        self._compiled = False
        self._copies = Copies()

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the parts, in place: one graph for all blocks, one for the loss, none with a break.

        Instead of torch.compile(module), which would follow the Python around the parts as well.
        """
        torch._dynamo.config.recompile_limit = 64  # shapes and modes of all models of a process count together
        self._block = torch.compile(block, dynamic=False, fullgraph=True)
        self._kernels = Kernels(compile=True)
        self._compiled = True

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum of the token losses in nats, fp32. inputs and targets: int64 [batch, length].

        Products in autocast's type where that is on, else in the parameters' own.
        """
        dtype = product_type(inputs.device, self.net.transformer.wte.weight.dtype)
        with torch.autocast(inputs.device.type, enabled=False):
            return self._loss(inputs, targets, dtype)

    def _loss(self, inputs: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        trunk = self.net.transformer
        self._copies.begin(trunk.wte.weight)
        tied = TiedGradient() if self.net.lm_head.weight is trunk.wte.weight else None
        hidden = _Embedding.apply(trunk.wte.weight, trunk.wpe.weight, inputs, tied)
        for layer in trunk.h:
            weights = self._copies.of([layer.get_parameter(name) for name in NAMES], dtype)
            hidden = self._block(hidden, *weights, *self._shape(layer))
        hidden = F.layer_norm(hidden, hidden.shape[-1:], trunk.ln_f.weight, trunk.ln_f.bias, trunk.ln_f.eps).to(dtype)
        head = self._copies.padded(self.net.lm_head.weight, dtype, detached=tied is not None)
        return token_loss(hidden.flatten(0, 1), head, targets.flatten(), self._vocabulary, self._kernels, CHUNK, tied)

    def _shape(self, layer: Any) -> tuple[int, float, float, Any, bool]:
        own = self._compiled and not layer.ln_1.weight.is_cuda and not _tiles()
        return layer.attn.num_heads, layer.attn.scaling, layer.ln_1.eps, layer.mlp.act, own


def block(
    hidden: torch.Tensor,
    norm_1: torch.Tensor,
    norm_1_bias: torch.Tensor,
    joint: torch.Tensor,
    joint_bias: torch.Tensor,
    out: torch.Tensor,
    out_bias: torch.Tensor,
    norm_2: torch.Tensor,
    norm_2_bias: torch.Tensor,
    widen: torch.Tensor,
    widen_bias: torch.Tensor,
    narrow: torch.Tensor,
    narrow_bias: torch.Tensor,
    heads: int,
    scale: float,
    epsilon: float,
    activation: Any,
    own_attention: bool,
) -> torch.Tensor:
    """One layer. hidden [batch, length, width] keeps its type (fp32); products are in that of the weights.

    Biases are added outside the products: there inductor joins them to what follows.
    """
    batch, length, width = hidden.shape
    normed = F.layer_norm(hidden, (width,), norm_1, norm_1_bias, epsilon).to(joint.dtype)
    three = (normed @ joint + joint_bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    query, key, value = three.unbind(0)
    if own_attention and length > attention.ROWS:
        query, key, value = (part.reshape(batch * heads, length, -1) for part in (query, key, value))
        mixed = attention.causal_attention(query, key, value, scale).view(batch, heads, length, -1)
    else:
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    mixed = mixed.transpose(1, 2).reshape(batch, length, width)
    hidden = hidden + (mixed @ out + out_bias)
    normed = F.layer_norm(hidden, (width,), norm_2, norm_2_bias, epsilon).to(widen.dtype)
    return hidden + (activation(normed @ widen + widen_bias) @ narrow + narrow_bias)


def product_type(device: torch.device, own: torch.dtype) -> torch.dtype:
    """Autocast's type where it is on, else the parameters' own."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else own


@functools.cache
def _tiles() -> bool:
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


class Copies:
    """The weights in the type of the products, beside the parameters that the optimizer keeps in fp32.

    A copy is made anew when its parameter has changed, and in any case when no gradient is there yet: the first
    micro-batch of a step. The second rule also finds changes that went past torch's version counter (`.data`).
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}
        self._fresh = True

    def begin(self, first: torch.Tensor) -> None:
        self._fresh = first.grad is None

    def of(self, parameters: list[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        if all(parameter.dtype == dtype for parameter in parameters):
            return tuple(parameters)
        return _Cast.apply(*[self._copy(parameter, dtype) for parameter in parameters], *parameters)

    def padded(self, matrix: torch.Tensor, dtype: torch.dtype, detached: bool) -> torch.Tensor:
        rows = -(-len(matrix) // PADDING) * PADDING
        if rows == len(matrix) and dtype == matrix.dtype:
            return matrix.detach() if detached else matrix
        copy = self._copy(matrix, dtype, rows)
        return copy if detached else _Cast.apply(copy, matrix)[0]

    @torch.no_grad()
    def _copy(self, parameter: torch.Tensor, dtype: torch.dtype, rows: int = 0) -> torch.Tensor:
        version, copy = self._kept.get(id(parameter), (-1, parameter))
        if copy is parameter or copy.dtype != dtype or copy.device != parameter.device:
            copy = torch.zeros((rows or len(parameter), *parameter.shape[1:]), dtype=dtype, device=parameter.device)
            version = -1
        if self._fresh or version != parameter._version:
            copy[: len(parameter)].copy_(parameter)
            self._kept[id(parameter)] = parameter._version, copy
        return copy


class _Cast(torch.autograd.Function):
    """copies, parameters -> copies, as if each were its parameter cast."""

    @staticmethod
    def forward(ctx: Any, *both: torch.Tensor) -> tuple[torch.Tensor, ...]:  # pyright: ignore
        copies, parameters = both[: len(both) // 2], both[len(both) // 2 :]
        ctx.kinds = [(len(parameter), parameter.dtype) for parameter in parameters]
        return tuple(copy.detach() for copy in copies)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads = [grad[:rows].to(dtype) for grad, (rows, dtype) in zip(outer, ctx.kinds, strict=True)]
        return (*[None] * len(grads), *grads)


class _Embedding(torch.autograd.Function):
    """Rows of both embeddings, added. Its backward is the last of all and completes the head's gradient."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, words: torch.Tensor, positions: torch.Tensor, inputs: torch.Tensor, tied: TiedGradient | None
    ) -> torch.Tensor:
        ctx.save_for_backward(inputs)
        ctx.words, ctx.positions, ctx.tied = words.shape, positions.shape, tied
        return F.embedding(inputs, words) + positions[: inputs.shape[1]]

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        gradient = outer[0]
        words = ctx.tied.take() if ctx.tied is not None else None
        words = torch.zeros(ctx.words, device=gradient.device) if words is None else words[: ctx.words[0]]
        if gradient.is_cuda:  # index_add_ would add in another order each time there
            words += torch.ops.aten.embedding_dense_backward(gradient, inputs, len(words), -1, False)
        else:
            words.index_add_(0, inputs.flatten(), gradient.flatten(0, 1).to(words.dtype))
        positions = gradient.new_zeros(ctx.positions)
        positions[: inputs.shape[1]] = gradient.sum(0)
        return words, positions, None, None
