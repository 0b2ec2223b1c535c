"""The memory that a training needs on one worker, from the model's shape and the settings: arithmetic, without torch.

models/capacity.py chooses the default micro-batch by it, and infra/training_rules.py refuses a stack whose model cannot
fit its machines before anything is rented. In bytes; P: parameters, n: workers, b: bytes of an operand of a matrix
product (2, with fp32 4); w: width, q and k: widths of all queries and of all keys, m: of the MLP, h: heads, L: layers,
V: vocabulary; E: P outside the layers, l: P of one layer; A: parameters of an adapter; t: tokens of the pass.

| what                                                                           | bytes                         |
|--------------------------------------------------------------------------------|-------------------------------|
| ddp: weights 4, gradients 4, AdamW's moments 8; copies for the products        | 16 P + b P (fp32: 16 P)       |
| ... several workers with several micro-batches each: gradients twice, since    | and 4 P                       |
| those of the first ones lie beside DDP's buckets, which stay                   |                               |
| deepspeed in bf16: weights 2, gradients 4 (stage 2: 4/n), fp32 and moments 12/n | 6 P + 12 P/n (2 P + 16 P/n)  |
| ... in fp16 and fp32: weights 4 and their copies instead of 2                  | and 2 P + b P (fp32: 2 P)     |
| fsdp: weights, gradients and moments sharded; whole: E and its gradient,       | 16 P/n + 2 b E + 3 b l        |
| two layers and a layer's gradient, and what is sent of the larger              | + 4 max(E, l)                 |
| adapter: the frozen model, and all of ddp for what is trained                  | b P + (16 + b) A, or 20 + b   |
| the head: its gradient and the product that is added to it, in fp32            | 8 V w (frozen: 0)             |
| ... logits of 16,384 tokens, 2,048 rows of them in fp32 three times            | b V min(t, 16384) + 12 V 2048 |
| kept for the backward pass: residual stream, norms, queries, keys and values,  | t L (22 w + 4 m + 4 h + 16)   |
| attention and MLP; with a gated MLP (Llama and its heirs)                      | t L (24 w + 6 q + 4 k + 8 m   |
| ...                                                                            | + 4 h + 8)                    |
| ... GPT-2 under fsdp or with an adapter, not compiled: transformers' GELU of   | t L 6 m more (accelerators:   |
| several kernels, for which autocast takes fp32 on an accelerator               | t L 12 m)                     |
| ... checkpointing: each layer's input in fp32, and one layer                   | t L 4 w, and the above once   |
| in the backward pass: gradients of one layer, first and last hidden state      | 40 t w                        |

The kept activations are those that autograd keeps without the compiler, with 2-byte operands; 4-byte ones take at most
twice as much (tests/trainer/models/test_capacity.py counts them). The compiler keeps less: GPT-2 small in bf16 took
9.4, 14.8 and 25.4 GB with 16, 32 and 64 windows on an H100, where this says 11.7, 17.9 and 30.4; 15.9 with 32 under
fsdp, and 31.0 there without the compiler, where this says 32.4 (torch 2.11, 2026-11-26 and 27).
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config.presets import PRESETS
from trainer.config.rules import broken
from trainer.config.schema import Config, changed

VOCABULARY = 50_257
"""GPT-2's."""
LLAMA_VOCABULARY = 32_000
TRAIN = "train:"
"""Prefix of a number of words in place of a tokenizer's name: a tokenizer is trained on the text."""
WORDS = range(257, 1 << 20)
"""From the 256 bytes and the end of text to more than any tokenizer in use has."""
TRAINABLE = f"give {TRAIN}WORDS with {WORDS.start} to {WORDS.stop - 1} words, such as {TRAIN}1024"
PUBLISHED = {"distilgpt2": "distil", "gpt2": "small", "gpt2-medium": "medium", "gpt2-large": "large", "gpt2-xl": "xl"}
"""Presets by the names of their weights on the hub."""
PLAIN = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "falcon", "bloom", "mpt", "gpt_bigcode", "starcoder2")
"""model_type of models without a gate in the MLP (transformers 5.23)."""
SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(m|b)(?![a-z0-9])")
"""The size in a model's name in lower case: 0.5b, 7b, 135m; not 8x7b, e4b, a3b or v0.1."""


LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the container's memory limit, of cgroups 2 and 1."""


def limit(files: Sequence[str] = LIMITS) -> int | None:
    """The memory limit of this container in bytes; None if it has none."""
    for file in files:
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < 1 << 60 else None  # cgroups 1: huge if unlimited
    return None


def machine() -> int:
    """Bytes of memory that this process may use: the container's limit, or what the machine has."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(there, limit() or there)


@dataclass(frozen=True)
class Shape:
    """A decoder. Norms and biases are left out: less than 0.1 % of the parameters."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    positions: int = 0
    """Learned position embeddings."""
    queries: int = 0
    """Width of all heads' queries together; 0: the width."""
    keys: int = 0
    """Width of all keys together, and of all values; 0: the queries'."""
    mlp: int = 0
    """0: four times the width."""
    gated: bool = False
    tied: bool = True
    experts: int = 1
    estimated: bool = False
    """Whether only the number of parameters is known."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Widths of queries, keys and MLP."""
        queries = self.queries or self.width
        return queries, self.keys or queries, self.mlp or 4 * self.width

    @property
    def layer(self) -> int:
        queries, keys, mlp = self.sizes
        return self.width * (2 * queries + 2 * keys + (3 if self.gated else 2) * mlp * self.experts)

    @property
    def outer(self) -> int:
        """Parameters outside the layers."""
        return self.width * (self.vocabulary * (1 if self.tied else 2) + self.positions)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + self.outer

    def adapter(self, rank: int) -> int:
        """Parameters of an adapter of this rank beside every matrix in the layers."""
        queries, keys, mlp = self.sizes
        inner = (3 if self.gated else 2) * self.experts * (self.width + mlp)
        return self.layers * rank * (2 * (self.width + queries) + 2 * (self.width + keys) + inner)


def state_bytes(shape: Shape, config: Config, precision: str, world: int) -> float:
    """Bytes that a worker holds between passes, with the copies of the weights for its matrix products."""
    model, width = shape.parameters, 4 if precision == "fp32" else 2
    copies = 0 if precision == "fp32" else 2
    twice = 4 if world > 1 and config.windows_per_step > world * (config.micro_batch or 1) else 0
    if config.adapter.kind != "none":
        return width * model + (16 + twice + copies) * shape.adapter(config.adapter.rank)
    if config.engine.name == "deepspeed":
        part = 1 / world if config.engine.zero_stage == 2 else 1
        whole = 2 if precision == "bf16" else 4 + copies
        return model * (whole + 4 * part + 12 / world)
    if config.engine.name == "fsdp":
        gathered = 2 * width * shape.outer + 3 * width * shape.layer + 4 * max(shape.outer, shape.layer)
        return 16 * model / world + (gathered if world > 1 else copies * model)
    moments = 4 if config.optimizer.name == "muon" else 8
    return model * (8 + twice + moments + copies)


def pass_bytes(shape: Shape, config: Config, precision: str, tokens: int, accelerator: bool = True) -> float:
    """Further bytes that a forward and backward pass of `tokens` tokens needs."""
    padded, width = -(-shape.vocabulary // 128) * 128, 4 if precision == "fp32" else 2
    logits = width * padded * min(tokens, 16_384 if accelerator else 4096)
    logits += 12 * padded * min(tokens, 2048) if accelerator else 0  # a CPU takes a few rows at a time
    head = 0 if config.adapter.kind != "none" else 8 * padded * shape.width
    kept = kept_by_layer(shape, config, precision, accelerator)
    layers = shape.layers * 4 * shape.width + kept if config.model.checkpointing else shape.layers * kept
    return head + logits + tokens * (layers + 40 * shape.width)


def kept_by_layer(shape: Shape, config: Config, precision: str, accelerator: bool = True) -> float:
    """Bytes a token that a layer keeps for the backward pass, without what the compiler saves but for GPT-2's GELU."""
    queries, keys, mlp = shape.sizes
    if shape.gated:
        kept = 24 * shape.width + 6 * queries + 4 * keys + 8 * mlp + 4 * shape.heads + 8
    else:
        kept = 22 * shape.width + 4 * mlp + 4 * shape.heads + 16
        own = config.engine.name != "fsdp" and config.adapter.kind == "none"
        compiled = config.compile == "true" or (config.compile == "auto" and accelerator)
        if shape.positions and not own and not compiled:
            kept += (12 if accelerator and precision != "fp32" else 6) * mlp
    return kept * (2 if precision == "fp32" else 1)


def needed(shape: Shape, config: Config, precision: str, world: int, accelerator: bool = True) -> float:
    """Bytes that a worker needs at the configured micro-batch, or at 1."""
    tokens = config.sequence_length * (config.micro_batch or 1)
    return state_bytes(shape, config, precision, world) + pass_bytes(shape, config, precision, tokens, accelerator)


def words_to_train(tokenizer: str) -> int | None:
    """The number of words in train:1024; 0 if it is not allowed; None if `tokenizer` is a name."""
    if not tokenizer.startswith(TRAIN):
        return None
    words = tokenizer.removeprefix(TRAIN)
    return int(words) if words.isdecimal() and int(words) in WORDS else 0


def saved(shape: Shape, config: Config) -> float:
    """Bytes of a checkpoint, weights and moments in fp32, which the first worker copies to its host's memory."""
    adapted = config.adapter.kind != "none"
    return 12 * (shape.adapter(config.adapter.rank) if adapted else shape.parameters)


def of_preset(name: str, vocabulary: int = VOCABULARY) -> Shape:
    size = PRESETS[name]
    return Shape(size.layers, size.heads, size.width, vocabulary, size.positions)


def of_document(document: Mapping[str, Any]) -> Shape | None:
    """The shape that a config.json of transformers describes; None where it says too little."""

    def number(*names: str, default: int = 0) -> int:
        found = next((document[name] for name in names if isinstance(document.get(name), int)), default)
        return int(found)

    layers, heads = number("num_hidden_layers", "n_layer", "num_layers"), number("num_attention_heads", "n_head")
    width, vocabulary = number("hidden_size", "n_embd", "d_model"), number("vocab_size")
    if not all((layers, heads, width, vocabulary)):
        return None
    head = number("head_dim", default=width // heads)
    kind = document.get("model_type", "")
    return Shape(
        layers=layers,
        heads=heads,
        width=width,
        vocabulary=vocabulary,
        positions=number("n_positions", "max_position_embeddings") if kind in ("gpt2", "gpt_neo", "opt") else 0,
        queries=heads * head,
        keys=head * number("num_key_value_heads", default=heads),
        mlp=number("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim"),
        gated=kind not in PLAIN,
        tied=bool(document.get("tie_word_embeddings", True)),
        experts=max(1, number("num_local_experts", "num_experts", "n_routed_experts")),
    )


def of_size(parameters: float) -> Shape:
    """The shape of a Llama (arXiv:2302.13971): a layer for each 128 of the width, a gated MLP of 8/3 of it.

    It keeps 55 bytes a token, layer and unit of the width; Llama 2 7B keeps 55, Llama 3 8B and Mistral 7B 59. Llama's
    vocabulary of 32,000 is the smallest of the common ones: a stack must not be refused by an estimate alone.
    """
    width = round((parameters * 128 / 12) ** (1 / 3))
    layers = max(1, round((parameters - LLAMA_VOCABULARY * width) / (12 * width**2)))
    mlp = round(8 / 3 * width)
    return Shape(layers, max(1, width // 128), width, LLAMA_VOCABULARY, mlp=mlp, gated=True, estimated=True)


def shape_of(config: Config, vocabulary: int = VOCABULARY) -> Shape | None:
    """The shape of the trained model without asking the hub, at worst estimated from its name; None if unknown."""
    model = config.model
    if model.size:
        return of_preset(model.size, vocabulary)
    if model.name.removeprefix("openai-community/") in PUBLISHED:
        return of_preset(PUBLISHED[model.name.removeprefix("openai-community/")])
    path = Path(model.config or model.name)
    try:
        document = json.loads((path if model.config else path / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        size = size_in(model.name)
        return of_size(size) if size else None
    return of_document(document) if isinstance(document, dict) else None


def is_estimate(config: Config) -> bool:
    """Whether only the size in the model's name is known."""
    shape = shape_of(config)
    return shape is not None and shape.estimated


def allowed(config: Config, changes: Mapping[str, Any]) -> Config | None:
    """The configuration with other values under some dotted keys; None if a rule forbids it or nothing changes."""
    before, chosen = set(broken(config, str)), changed(config, changes)
    return chosen if set(broken(chosen, str)) <= before and chosen != config else None


def size_in(name: str) -> float | None:
    """The number of parameters in a name on the hub: 0.5B, 7b, 135M; None if there is none, or more than one."""
    found = SIZE.findall(name.rpartition("/")[2].lower()) if not name.startswith(("/", ".", "~")) else []
    return float(found[0][0]) * (1e6 if found[0][1] == "m" else 1e9) if len(found) == 1 else None
