"""GPT-2 as the training loop sees it: a fast module from token ids to the summed loss.

The parameters, their names, and what is saved are those of transformers' GPT2LMHeadModel. The forward pass is written
here; docs/performance.md has the gains. The products read copies of the weights that are made once per optimizer step
(weight_cache.py). Head and loss are fused (head.py). Attention on the CPU is ours (attention.py). All blocks share one
compiled graph, which takes a twelfth of the time to compile and lets the exchange of gradients begin while the backward
pass still runs.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer.models import attention
from trainer.models.head import Kernels, TiedGradient, token_loss
from trainer.models.weight_cache import WeightCache

CHUNK = 4096
"""Tokens whose logits exist at a time: 0.4 GB in bf16 for GPT-2. An accelerator needs more work at once: four times as
many."""

NORMS = ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias")
PRODUCTS = (
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
)
"""A block's parameters as `block` takes them: NORMS stay in fp32, PRODUCTS are in the type of the products."""


class LanguageModel(nn.Module):
    """net: transformers' GPT2LMHeadModel. Wrap it in data parallelism as it is; compile it with its own compile()."""

    def __init__(self, net: Any, checkpointing: bool = False) -> None:
        """checkpointing: recompute each layer in the backward pass instead of keeping its activations."""
        super().__init__()
        self.net = net
        self._checkpointing = checkpointing
        self._vocabulary = net.config.vocab_size
        self._block: Any = block
        self._kernels = Kernels(compile=False)
        self._compiled = False
        self._weight_cache = WeightCache()
        self._masks: dict[int, torch.Tensor] = {}

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile in place, without graph breaks: one graph for all blocks and, on an accelerator, one for the loss.

        torch.compile(module) would trace the Python around them as well. Call it once the module is on its device.
        """
        torch._dynamo.config.recompile_limit = 64  # it counts the shapes and modes of all models in the process
        self._block = torch.compile(block, dynamic=False, fullgraph=True)
        self._kernels = Kernels(compile=self.net.lm_head.weight.is_cuda)
        self._compiled = True

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum of the token losses in nats, fp32. inputs and targets: int64 [batch, length].

        Products use autocast's type if it is on, else the parameters' own.
        """
        dtype = self._product_type(inputs.device)
        with torch.autocast(inputs.device.type, enabled=False):
            tied = TiedGradient() if self.net.lm_head.weight is self.net.transformer.wte.weight else None
            hidden = self._hidden(inputs, dtype, tied)
            head = self._weight_cache.padded(self.net.lm_head.weight, dtype, detached=tied is not None)
            chunk = CHUNK * (4 if head.is_cuda else 1)
            hidden, targets = hidden.flatten(0, 1), targets.flatten()
            return token_loss(hidden, head, targets, self._vocabulary, self._kernels, chunk, tied)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """All logits [batch, length, vocabulary], in the type of the products."""
        hidden, head = self.hidden_and_head(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            return (hidden @ head.t())[..., : self._vocabulary]

    def hidden_and_head(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The factors of the logits, for a loss that never makes all of them: [batch, length, width], [rows, width].

        The head's rows beyond the vocabulary are zeros.
        """
        dtype = self._product_type(inputs.device)
        with torch.autocast(inputs.device.type, enabled=False):
            hidden = self._hidden(inputs, dtype, tied=None)
            return hidden, self._weight_cache.padded(self.net.lm_head.weight, dtype, detached=False)

    @torch.no_grad()
    def attention_statistics(self, batch: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        """layerN_attention_weight_max and _min of the first window of a micro-batch, as scalars on the host.

        The greatest and the least of query key^T x scale over all heads and all pairs of positions, before the causal
        mask and the softmax, in fp32. Fused attention never stores these scores, so they are computed again here.
        """
        inputs = batch[0][:1]
        dtype = self._product_type(inputs.device)
        names: list[str] = []
        values: list[torch.Tensor] = []
        with torch.autocast(inputs.device.type, enabled=False):
            hidden = self._embedded(inputs, None)
            for number, layer in enumerate(self.net.transformer.h):
                norms, products = self._weights(layer, dtype)
                heads, scale, epsilon, activation = self._shape(layer)
                query, key, _ = projections(hidden, norms, products, heads, epsilon)
                scores = (query[0].float() @ key[0].float().transpose(-1, -2)) * scale
                names += [f"layer{number}_attention_weight_{end}" for end in ("max", "min")]
                values += [scores.amax(), scores.amin()]
                hidden = block(hidden, norms, products, heads, scale, epsilon, activation, None)
        return dict(zip(names, torch.stack(values).cpu(), strict=True))

    def _hidden(self, inputs: torch.Tensor, dtype: torch.dtype, tied: TiedGradient | None) -> torch.Tensor:
        """The hidden states that the head multiplies: [batch, length, width]."""
        hidden = self._embedded(inputs, tied)
        mask = self._mask(hidden, dtype)
        again = self._checkpointing and torch.is_grad_enabled()
        for layer in self.net.transformer.h:
            given = (hidden, *self._weights(layer, dtype), *self._shape(layer), mask)
            hidden = checkpoint(self._block, *given, use_reentrant=False) if again else self._block(*given)
        last = self.net.transformer.ln_f
        return F.layer_norm(hidden, hidden.shape[-1:], last.weight.float(), last.bias.float(), last.eps).to(dtype)

    def _embedded(self, inputs: torch.Tensor, tied: TiedGradient | None) -> torch.Tensor:
        trunk = self.net.transformer
        self._weight_cache.begin(trunk.wte.weight)
        return _Embedding.apply(trunk.wte.weight, trunk.wpe.weight, inputs, tied)

    def _weights(self, layer: Any, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        norms = tuple(layer.get_parameter(name) for name in NORMS)
        return norms, self._weight_cache.of([layer.get_parameter(name) for name in PRODUCTS], dtype)

    def _shape(self, layer: Any) -> tuple[int, float, float, Any]:
        tanh = self.net.config.activation_function in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
        return layer.attn.num_heads, layer.attn.scaling, layer.ln_1.eps, gelu if tanh else layer.mlp.act

    def _mask(self, hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """The mask for our attention; None where torch's attention is better."""
        length = hidden.shape[1]
        if hidden.is_cuda or attention.TILES or (dtype == torch.float32 and not self._compiled):
            return None
        if length not in self._masks:
            self._masks = {length: attention.mask(length)}
        return self._masks[length]

    def _product_type(self, device: torch.device) -> torch.dtype:
        """Autocast's type if it is on, else the parameters' own."""
        if torch.is_autocast_enabled(device.type):
            return torch.get_autocast_dtype(device.type)
        return self.net.transformer.wte.weight.dtype


def block(
    hidden: torch.Tensor,
    norms: tuple[torch.Tensor, ...],
    products: tuple[torch.Tensor, ...],
    heads: int,
    scale: float,
    epsilon: float,
    activation: Any,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """One layer. hidden [batch, length, width] keeps its type (fp32); products use the type of the weights.

    mask: attention.mask(length) selects our attention, None selects torch's.
    """
    batch, length, width = hidden.shape
    out, out_bias, widen, widen_bias, narrow, narrow_bias = products[2:]
    query, key, value = projections(hidden, norms, products, heads, epsilon)
    if mask is not None:
        query, key, value = (part.reshape(batch * heads, length, -1) for part in (query, key, value))
        mixed = attention.causal_attention(query, key, value, mask, scale).view(batch, heads, length, -1)
    else:
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    mixed = mixed.transpose(1, 2).reshape(batch, length, width)
    hidden = hidden + biased(mixed @ out, out_bias)
    normed = F.layer_norm(hidden, (width,), norms[2].float(), norms[3].float(), epsilon).to(widen.dtype)
    return hidden + biased(activation(biased(normed @ widen, widen_bias)) @ narrow, narrow_bias)


def projections(
    hidden: torch.Tensor,
    norms: tuple[torch.Tensor, ...],
    products: tuple[torch.Tensor, ...],
    heads: int,
    epsilon: float,
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values, each [batch, heads, length, head width]."""
    batch, length, width = hidden.shape
    joint, joint_bias = products[:2]
    normed = F.layer_norm(hidden, (width,), norms[0].float(), norms[1].float(), epsilon).to(joint.dtype)
    if normed.is_cuda:  # cuBLAS adds the bias to its result for nothing; attention follows, into which no sum is fused
        three = torch.addmm(joint_bias, normed.flatten(0, 1), joint)
    else:
        three = biased(normed @ joint, joint_bias)
    return three.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)


def biased(values: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Add a bias after its product instead of inside it: inductor then fuses the sum with what follows."""
    return _Bias.apply(values, bias)


def gelu(values: torch.Tensor) -> torch.Tensor:
    """GPT-2's activation x/2 (1 + tanh u) as the equal x sigmoid(2u): inductor's exp takes half as long as its tanh."""
    if not torch.compiler.is_compiling():
        return F.gelu(values, approximate="tanh")
    x = values.float()
    return (x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))).to(values.dtype)


class _Bias(torch.autograd.Function):
    """Adds a bias, whose gradient on a CPU is a product with ones. Inductor would fuse a sum into the loop before it,
    which then walks memory by columns: a third slower for GELU."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return values + bias

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = outer[0].flatten(0, -2)
        return outer[0], rows.sum(0) if rows.is_cuda else (rows.new_ones(1, len(rows)) @ rows)[0]


class _Embedding(torch.autograd.Function):
    """Sum of token and position embeddings. Its backward runs last and completes the gradient of a tied head."""

    @staticmethod
    def forward(
        ctx: Any, words: torch.Tensor, positions: torch.Tensor, inputs: torch.Tensor, tied: TiedGradient | None
    ) -> torch.Tensor:
        ctx.save_for_backward(inputs)
        ctx.words, ctx.positions, ctx.tied = words.shape, positions.shape, tied
        return F.embedding(inputs, words).float() + positions[: inputs.shape[1]]

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (inputs,), gradient = ctx.saved_tensors, outer[0]
        words = ctx.tied.take() if ctx.tied is not None else None
        words = torch.zeros(ctx.words, device=gradient.device) if words is None else words[: ctx.words[0]]
        if gradient.is_cuda:  # index_add_ adds in a different order each time there
            words += torch.ops.aten.embedding_dense_backward(gradient, inputs, len(words), -1, False)
        else:
            words.index_add_(0, inputs.flatten(), gradient.flatten(0, 1).to(words.dtype))
        positions = gradient.new_zeros(ctx.positions)
        positions[: inputs.shape[1]] = gradient.sum(0)
        return words, positions, None, None
