"""Any causal language model of transformers as the training loop sees it: its own layers, our head and loss.

The model makes the hidden states; head.py multiplies them by the head in chunks, so that all logits are never there at
once. GPT-2 has a faster way of its own (gpt2.py).
"""

from typing import Any

import torch
from torch import nn

from trainer.models.head import Kernels, token_loss

CHUNK = 4096
"""Tokens whose logits exist at a time on a CPU; four times as many on an accelerator."""
IGNORED = -100
"""The target of a token without a loss, as in transformers."""


class CausalModel(nn.Module):
    """net: an AutoModelForCausalLM whose logits are a product of its last hidden state and its head's weight."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self._kernels = Kernels(compile=False)

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum of the token losses in nats, fp32.

        inputs, targets (IGNORED: no loss) and positions: int64 [batch, length]. Where positions begin again at 0, so
        does attention: several texts share a row without seeing each other.
        """
        hidden = self.net.base_model(input_ids=inputs, position_ids=positions, use_cache=False).last_hidden_state
        head = self.net.get_output_embeddings().weight
        dtype = (
            torch.get_autocast_dtype(hidden.device.type)
            if torch.is_autocast_enabled(hidden.device.type)
            else head.dtype
        )
        hidden, targets = hidden.flatten(0, 1), targets.flatten()
        if positions is not None:
            kept = targets != IGNORED
            hidden, targets = hidden[kept], targets[kept]
        chunk = CHUNK * (4 if hidden.is_cuda else 1)
        with torch.autocast(hidden.device.type, enabled=False):
            return token_loss(hidden.to(dtype), head.to(dtype), targets, len(head), self._kernels, chunk)
