"""The memory that a training needs on one worker, about: arithmetic from the model's size and the settings, no torch.

infra/training_rules.py refuses by it a stack whose model cannot fit its machines before anything is rented, and
models/capacity.py begins with the micro-batch that it gives; where it is wrong, the micro-batch is halved at the first
lack of memory (train/failures.py). It counts what autograd keeps without the compiler, which keeps less: GPT-2 small in
bf16 took 9.4, 14.8 and 25.4 GB with 16, 32 and 64 windows on an H100, where this says 12.0, 18.5 and 31.6 (torch 2.11,
2026-11-26).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config.presets import PRESETS
from trainer.config.settings import ALL_LINEAR, Adapter, Config
from trainer.config.vocabulary import GPT2, LLAMA

PUBLISHED = {"distilgpt2": "distil", "gpt2": "small", "gpt2-medium": "medium", "gpt2-large": "large", "gpt2-xl": "xl"}
"""Presets by the names of their weights on the hub."""
PLAIN = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "falcon", "bloom", "mpt", "gpt_bigcode", "starcoder2")
"""model_type of models without a gate in the MLP (transformers 5.23)."""
SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(m|b)(?![a-z0-9])")
"""The size in a model's name in lower case: 0.5b, 7b, 135m; not 8x7b, e4b, a3b or v0.1."""
MOST_NUMBER = 1 << 40
"""A number of a config.json that is larger says nothing of a model: the trainer refuses it."""
LARGEST_CONFIG = 8 << 20
"""Bytes of a config.json. The names of ImageNet-21k's classes make 1 MB; transformers needs 25 bytes for each."""
WIDEST_LAYER = 20
"""A layer counts as at most so many w x w matrices: of a mixture a token meets a few experts (Qwen 2.5 0.5B has 19)."""
MOST_TOKENS = 32_768
"""Tokens in a pass at most; more is no faster: 32 windows of 1024 fill any accelerator, and 64 fill only its memory."""
USABLE, RESERVED = 0.9, 1e9
"""The usable part of the device's memory (fragmentation takes the rest), and the bytes that CUDA and NCCL take."""


@dataclass(frozen=True)
class Shape:
    """A decoder, as far as its memory and its speed depend on it."""

    parameters: int
    layers: int
    width: int
    vocabulary: int
    positions: int = 0
    """Learned position embeddings."""
    tied: bool = True
    gated: bool = True
    """Whether the MLP has a gate, as in Llama and its heirs."""
    estimated: bool = False
    """Whether only the number of parameters is known."""

    @property
    def outer(self) -> int:
        """Parameters outside the layers."""
        return self.width * (self.vocabulary * (1 if self.tied else 2) + self.positions)

    @property
    def layer(self) -> float:
        return (self.parameters - self.outer) / self.layers

    @property
    def kept(self) -> float:
        """Bytes a token that a layer keeps for the backward pass, with 2-byte operands: residual stream, norms,
        attention and MLP."""
        matrices = min(self.layer / self.width, WIDEST_LAYER * self.width)
        return 24 * self.width + 2.7 * matrices if self.gated else 16 * self.width + 2 * matrices

    def adapter(self, settings: Adapter) -> int:
        """Parameters of an adapter, about: rank times inputs and outputs, in widths, of the layers that it names."""
        sides = 4 * (settings.targets.count(",") + 1)  # GPT-2's c_attn has 4, an MLP's layer 3.6 to 5, a projection 2
        if settings.targets.strip() == ALL_LINEAR:
            sides = 19 if self.gated else 16
        return settings.rank * self.layers * sides * self.width


def state_bytes(shape: Shape, config: Config, precision: str, world: int) -> float:
    """Bytes that a worker holds between passes: weights, gradients and AdamW's moments (arXiv:1910.02054, section 3.1),
    and copies of the weights for the matrix products."""
    model, width = shape.parameters, 4 if precision == "fp32" else 2
    copies = 0 if precision == "fp32" else 2
    if config.adapter.kind != "none":  # the model is frozen
        return width * model + (16 + copies) * shape.adapter(config.adapter)
    if config.engine.name == "deepspeed":  # in bf16 without weights in fp32; stage 2 divides the gradients too
        part = 1 / world if config.engine.zero_stage == 2 else 1
        whole = 2 if precision == "bf16" else 4 + copies
        return model * (whole + 4 * part + 12 / world)
    if config.engine.name == "fsdp":  # whole: what is outside the layers, two layers, gradients, what is sent of them
        gathered = 2 * width * shape.outer + 3 * width * shape.layer + 4 * max(shape.outer, shape.layer)
        return 16 * model / world + (gathered if world > 1 else copies * model)
    buckets = 4 if world > 1 else 0  # of DDP, beside which the gradients of a step's first passes lie
    muon = 4 * (model - shape.outer) if config.optimizer.name == "muon" else 0  # one moment of what is in the layers
    return model * (16 + buckets + copies) - muon


def pass_bytes(shape: Shape, config: Config, precision: str, tokens: int, accelerator: bool = True) -> float:
    """Further bytes that a forward and backward pass of `tokens` tokens needs."""
    width = 4 if precision == "fp32" else 2
    # Of a part of the tokens, and on an accelerator thrice in fp32 of fewer (models/gpt2.py).
    logits = width * min(tokens, 16_384) + 12 * min(tokens, 2048) if accelerator else width * min(tokens, 4096)
    # The head's gradient, and the product that is added to it.
    head = 0 if config.adapter.kind != "none" else 8 * shape.vocabulary * shape.width
    kept = shape.kept * width / 2
    layers = shape.layers * 4 * shape.width + kept if config.model.checkpointing else shape.layers * kept
    # 40 w: gradients of one layer, first and last hidden state.
    return head + logits * shape.vocabulary + tokens * (layers + 40 * shape.width)


def needed(
    shape: Shape, config: Config, precision: str, world: int, accelerator: bool = True, windows: int = 0
) -> float:
    """Bytes that a worker needs for a pass of so many windows; 0: the configured micro-batch, or 1."""
    tokens = config.sequence_length * (windows or config.micro_batch or 1)
    return state_bytes(shape, config, precision, world) + pass_bytes(shape, config, precision, tokens, accelerator)


def fitting(shape: Shape, config: Config, there: float, world: int, accelerator: bool = True) -> int:
    """The most windows, in powers of two, whose pass fits `there` bytes; 1 if none does."""
    best = "bf16" if accelerator else "fp32"  # where a processor computes in bf16, it needs less
    precision = best if config.precision == "auto" else config.precision
    size, usable, most = 1, USABLE * there - RESERVED, MOST_TOKENS // config.sequence_length
    while 2 * size <= most and needed(shape, config, precision, world, accelerator, 2 * size) <= usable:
        size *= 2
    return size


def saved(shape: Shape, config: Config) -> float:
    """Bytes of a checkpoint, weights and moments in fp32, which the first worker copies to its host's memory."""
    adapted = config.adapter.kind != "none"
    return 12 * (shape.adapter(config.adapter) if adapted else shape.parameters)


def of_preset(name: str, vocabulary: int = GPT2) -> Shape:
    shape = of_document(PRESETS[name].document(vocabulary, PRESETS[name].positions))
    assert shape is not None, "the document of a preset says all"
    return shape


def of_document(document: Mapping[str, Any]) -> Shape | None:
    """The shape that a config.json of transformers describes; None where it says too little. Without norms, biases."""

    def number(*names: str, default: int = 0) -> int:
        found = next((document[name] for name in names if isinstance(document.get(name), int)), default)
        return int(found) if found < MOST_NUMBER else 0

    layers, heads = number("num_hidden_layers", "n_layer", "num_layers"), number("num_attention_heads", "n_head")
    width, vocabulary = number("hidden_size", "n_embd", "d_model"), number("vocab_size", default=-1)
    if not all((layers, heads, width)) or vocabulary < 0:  # 0: that of a tokenizer that is not here, at the least
        return None
    kind, tied = document.get("model_type", ""), bool(document.get("tie_word_embeddings", True))
    gated, head = kind not in PLAIN, number("head_dim", default=width // heads)
    mlp = number("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim") or 4 * width
    experts = max(1, number("num_local_experts", "num_experts", "n_routed_experts"))
    layer = 2 * head * (heads + number("num_key_value_heads", default=heads)) + (3 if gated else 2) * mlp * experts
    positions = number("n_positions", "max_position_embeddings") if kind in ("gpt2", "gpt_neo", "opt") else 0
    outer = vocabulary * (1 if tied else 2) + positions
    return Shape(width * (layers * layer + outer), layers, width, vocabulary, positions, tied, gated)


def of_size(parameters: float) -> Shape:
    """The shape of a Llama (arXiv:2302.13971): a layer for each 128 of the width, of 12 w x w matrices.

    Llama's vocabulary of 32,000 is the smallest of the common ones: a stack must not be refused by an estimate alone.
    """
    width = round((parameters * 128 / 12) ** (1 / 3))
    layers = max(1, round((parameters - LLAMA * width) / (12 * width**2)))
    return Shape(round(parameters), layers, width, LLAMA, estimated=True)


def shape_of(config: Config, vocabulary: int = GPT2) -> Shape | None:
    """The shape of the trained model without asking the hub, at worst estimated from its name; None if unknown."""
    model = config.model
    if model.size:
        return of_preset(model.size, vocabulary)
    if preset := PUBLISHED.get(model.name.removeprefix("openai-community/")):
        return of_preset(preset)
    path = Path(model.config or model.name)
    try:
        file = path if model.config and not path.is_dir() else path / "config.json"
        document = json.loads(file.read_text("utf-8")) if file.stat().st_size <= LARGEST_CONFIG else None
    except (OSError, ValueError, RecursionError):
        size = size_in(model.name)
        return of_size(size) if size else None
    return of_document(document) if isinstance(document, dict) else None


def size_in(name: str) -> float | None:
    """The number of parameters in a name on the hub: 0.5B, 7b, 135M; None if there is none, or more than one."""
    found = SIZE.findall(name.rpartition("/")[2].lower()) if not name.startswith(("/", ".", "~")) else []
    return float(found[0][0]) * (1e6 if found[0][1] == "m" else 1e9) if len(found) == 1 else None
