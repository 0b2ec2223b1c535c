"""GPT-2 as karpathy/nanoGPT trains it, reimplemented as a peer for speed.py.

nanoGPT's defaults: norms and linear layers without biases (GPT-2 has them: bias=True), torch's fused causal attention,
one product for query, key and value, an output layer of 50,304 rows (padded) tied to the embedding, torch.compile over
the whole model, bf16 autocast, all logits at once through F.cross_entropy.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from trainer.config.presets import PRESETS, Preset

ROWS = 50304
"""GPT-2's vocabulary of 50,257, padded to the next multiple of 64."""


class Layer(nn.Module):
    def __init__(self, size: Preset, bias: bool) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.three, self.mix = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.three(self.before_attention(hidden)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.narrow(F.gelu(self.widen(self.before_mlp(hidden))))


class Net(nn.Module):
    """net(inputs, targets) returns the mean token loss; both are int64 [batch, length]."""

    def __init__(self, preset: str, seed: int, bias: bool = False) -> None:
        super().__init__()
        size = PRESETS[preset]
        torch.manual_seed(seed)
        self.words, self.positions = nn.Embedding(ROWS, size.width), nn.Embedding(size.positions, size.width)
        self.layers = nn.ModuleList(Layer(size, bias) for _ in range(size.layers))
        self.last = nn.LayerNorm(size.width, bias=bias)
        for name, value in self.named_parameters():
            if value.ndim == 2:
                into_stream = name.endswith(("mix.weight", "narrow.weight"))
                nn.init.normal_(value, std=0.02 / (math.sqrt(2 * size.layers) if into_stream else 1))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        places = torch.arange(inputs.shape[1], device=inputs.device)
        hidden = self.words(inputs) + self.positions(places)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = F.linear(self.last(hidden), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
