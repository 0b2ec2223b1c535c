"""The micro-batch that follows from model and memory, where none is given.

What a pass of our GPT-2 (gpt2.py) needs on an accelerator, in bytes. P: parameters; L layers of width w with
h heads; V: vocabulary, padded; n: tokens of the pass.

| what                                                                            | bytes                        |
|---------------------------------------------------------------------------------|------------------------------|
| weights 4, gradients 4, AdamW's two moments 8, copies for the products 2        | 18 P                         |
| the head: its gradient and the product that is added to it, in fp32             | 8 V w                        |
| ... logits of 16,384 tokens, 2,048 rows of them in fp32 three times             | 2 V min(n, 16384) + 12 V 2048 |
| kept for the way back: residual stream 8 w, norms 4 w, queries, keys, values    | n L (38 w + 4 h + 16)        |
| 6 w, attention 4 w, MLP 16 w, in bf16 but the first; statistics of both         |                              |
| on the way back: gradients of one layer, first and last hidden state            | 40 n w                       |

The fourth row is counted from what autograd keeps without the compiler (tests/trainer/models/test_memory.py does it);
with it less is kept. DeepSpeed divides the first among its workers; here it counts whole, as one worker may be left.
"""

import os
from typing import Any

import torch

from trainer.config.schema import Config

UNIT = 8
"""Windows in a pass where nothing better is known: on CPUs and for other tasks; evaluation.batches counts in them."""
MOST_TOKENS = 32_768
"""A pass of more tokens is no faster: 32 windows of 1024 fill any accelerator, and 64 only its memory."""
USABLE, RESERVED = 0.9, 1e9
"""Of the device's memory: the rest is fragments; and bytes of CUDA's and NCCL's own."""


def estimate(layers: int, heads: int, width: int, vocabulary: int, positions: int, tokens: int) -> float:
    """Bytes that a pass of so many tokens needs at most, forward, back and with AdamW's update."""
    padded = -(-vocabulary // 128) * 128
    parameters = 12 * layers * width**2 + (vocabulary + positions) * width
    head = 8 * padded * width + 2 * padded * min(tokens, 16_384) + 12 * padded * min(tokens, 2048)
    return 18 * parameters + head + tokens * (layers * (38 * width + 4 * heads + 16) + 40 * width)


def micro_batch(config: Config, shape: Any = None, memory: float | None = None) -> int:
    """Windows in one pass of one worker: micro_batch, or a power of two that divides the step.

    shape: GPT-2's configuration, for models that `estimate` knows; memory: bytes of the device, default: this one's.
    """
    if config.micro_batch:
        return config.micro_batch
    samples = config.tokens_per_step // config.sequence_length
    if memory is None and torch.cuda.is_available():
        memory = float(torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", "0"))).total_memory)
    most = UNIT if memory is None or shape is None else fitting(shape, config.sequence_length, memory)
    # With more than its share in one pass, a worker would leave others without work.
    most = min(most, max(1, samples // int(os.environ.get("WORLD_SIZE", "1"))))
    return max(2**power for power in range(most.bit_length()) if samples % 2**power == 0)


def fitting(shape: Any, length: int, memory: float) -> int:
    """The most windows, in powers of two, whose pass fits; 1 where none does: the device then says so itself."""
    size, usable = 1, USABLE * memory - RESERVED
    sizes = (shape.n_layer, shape.n_head, shape.n_embd, shape.vocab_size, shape.n_positions)
    while 2 * size * length <= MOST_TOKENS and estimate(*sizes, 2 * size * length) <= usable:
        size *= 2
    return size
