"""Any causal language model of transformers as the training loop sees it: its own layers, our head and loss.

The model computes the hidden states, with our attention where that is faster (attention.py). head.py multiplies them by
the head in chunks, so all logits never exist at once. GPT-2 has a faster path of its own (gpt2.py).
"""

import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trainer import log
from trainer.models import attention
from trainer.models.gpt2 import CHUNK
from trainer.models.head import Kernels, token_loss
from trainer.models.weight_cache import WeightCache

IGNORED = -100
"""The target of a token without a loss, as in transformers."""


class CausalModel(nn.Module):
    """net: an AutoModelForCausalLM. Wrap it in data parallelism as it is; compile it with its own compile()."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net.train()  # from_pretrained leaves it in eval mode, in which layers checkpoint nothing
        self._kernels = self._kernels_of_accelerator = Kernels(compile=False)
        self._weight_cache = WeightCache()
        self._plain: bool | None = None
        self._output: Any = None
        """The class of the base model's output."""

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the layers one by one, in place; layers of one class share a graph. On an accelerator the loss, too.

        Call it before FSDP divides the module and moves it to its device: FSDP gathers a layer's weights in hooks
        around `forward`, which no graph may hold. options: those of torch.compile, for the layers.
        """
        torch._dynamo.config.recompile_limit = 64  # it counts the shapes and modes of all models in the process
        layers = [part for part in self.net.modules() if isinstance(part, GradientCheckpointingLayer)]
        for layer in layers or [self.net.base_model]:
            layer.forward = torch.compile(layer.forward, dynamic=False, **options)
        self._kernels_of_accelerator = Kernels(compile=True, dynamic=None)

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum of the token losses in nats, fp32.

        inputs, targets (IGNORED: no loss) and positions: int64 [batch, length]. Attention restarts where positions
        restart at 0, so texts that share a row do not see each other.
        """
        output = self.net.base_model(input_ids=inputs, position_ids=positions, use_cache=False)
        hidden, targets = output.last_hidden_state.flatten(0, 1), targets.flatten()
        if positions is not None:
            kept = targets != IGNORED
            hidden, targets = hidden[kept], targets[kept]
        chunk = CHUNK * (4 if hidden.is_cuda else 1)
        if self._plain is None:
            self._output = type(output)
            self._plain = self._head_is_plain()
        if not self._plain:
            return self._loss_of_own_logits(hidden, targets, chunk)
        head, device = self.net.get_output_embeddings().weight, hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.dtype
        self._weight_cache.begin(head)
        with torch.autocast(device, enabled=False):
            padded = self._weight_cache.padded(head, dtype, detached=False)
            kernels = self._kernels_of_accelerator if hidden.is_cuda else self._kernels
            return token_loss(hidden.to(dtype), padded, targets, len(head), kernels, chunk)

    def _loss_of_own_logits(self, hidden: torch.Tensor, targets: torch.Tensor, chunk: int) -> torch.Tensor:
        """The loss from net's own logits, where they are more than one product: by chunks, recomputed in backward."""

        def loss(part: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self._logits(part).float(), labels, reduction="sum", ignore_index=IGNORED)

        total = torch.zeros((), device=hidden.device)
        for part, labels in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            total = total + checkpoint(loss, part, labels, use_reentrant=False)
        return total

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """net's own logits [tokens, vocabulary] for hidden states [tokens, width]."""
        parts = {self.net.base_model, self.net.get_decoder()}  # OPT's head reads the output of its decoder
        for part in parts:
            part.forward = lambda *_, **__: self._output(last_hidden_state=hidden[None])
        try:
            return self.net(input_ids=torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)).logits[0]
        finally:
            for part in parts:
                del part.forward

    @torch.no_grad()
    def _head_is_plain(self) -> bool:
        """Whether net's logits are just the product of hidden states and the head's weight.

        Tested on logits up to 100, where a soft cap (30 in Gemma 2) or a scale cannot be missed.
        """
        head = self.net.get_output_embeddings()
        plain = isinstance(head, nn.Linear) and head.bias is None
        if plain:
            with torch.autocast(head.weight.device.type, enabled=False):
                hidden = torch.linspace(-1, 1, head.in_features, device=head.weight.device).to(head.weight.dtype)[None]
                hidden = hidden * (100 / (hidden @ head.weight.t()).abs().max().clamp(min=1e-3))
                plain = torch.allclose(self._logits(hidden), hidden @ head.weight.t(), atol=1.0)
        if not plain and os.environ.get("RANK", "0") == "0":
            log.event(
                "logits", made_by="model", reason="'they have a bias, a soft cap or a scale: slower, more memory'"
            )
        return plain


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # some models pass it by this keyword
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA attention for transformers, with our kernel where that is faster: causal, bf16, a CPU without AMX.
    query, key, value [batch, heads, length, head width]; the result [batch, length, heads, head width]."""
    device, causal = query.device.type, options.get("is_causal")
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    fits = device == "cpu" and dtype == torch.bfloat16 and not attention.TILES and attention_mask is None
    fits &= bool(getattr(module, "is_causal", True) if causal is None else causal)
    fits &= query.shape[2:] == key.shape[2:] == value.shape[2:] and query.shape[2] > 1
    special = any(options.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    if not fits or special or options.get("dropout"):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    batch, heads, length, width = query.shape
    groups = batch * key.shape[1]
    query, key, value = (part.to(dtype) for part in (query, key, value))
    query = query.reshape(groups, -1, length, width).contiguous()
    key, value = (part.reshape(groups, length, width).contiguous() for part in (key, value))
    found = attention.grouped_attention(query, key, value, options.get("scaling") or width**-0.5)
    return found.view(batch, heads, length, width).transpose(1, 2).contiguous(), None


# Not under a name of its own: eleven models of transformers 5.23 ask whether attention is called sdpa, and DeepSeek
# V3.2, for one, leaves out a mask otherwise, without a word.
ALL_ATTENTION_FUNCTIONS.register("sdpa", _attend)
