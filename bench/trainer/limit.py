"""The time of a step's matrix products alone: `python -m bench.trainer.limit JSON`.

This is a lower bound for a step's time with these libraries: forward and both gradients of every product in the model's
shapes, measured warm and multiplied by their number. Attention's products are measured over the whole square of
positions (as FLOPs are counted: PaLM, appendix B) and over the lower triangle in blocks of 256 rows, which is all that
causal attention needs.
The last line is {"seconds": of a step, "triangle": of a step, "cpu", "triangle_cpu": the same in processor seconds,
"rate": FLOP/s of the dense products, "peak": FLOP/s of the best square product, the device's own peak}.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

REPEATS = 5
ROWS = 256
SQUARES = {"cuda": (4096, 8192, 16384), "cpu": (1024,)}
"""Widths of square products. The fastest gives the device's peak."""


def main(arguments: list[str]) -> None:
    mode = json.loads(arguments[0])
    if mode["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print(json.dumps(measure(mode)))


def measure(mode: dict[str, Any]) -> dict[str, float]:
    import torch

    from trainer.config.presets import PRESETS

    torch.set_float32_matmul_precision("high")
    size, device = PRESETS[mode["preset"]], mode["device"]
    dtype = torch.bfloat16 if mode["precision"] == "bf16" else torch.float32
    tokens, width, length = mode["micro_batch"] * mode["length"], size.width, mode["length"]
    heads = mode["micro_batch"] * size.heads

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def seconds(product: Callable[[], Any]) -> np.ndarray:
        """Return wall and CPU seconds."""
        found = []
        for _ in range(REPEATS + 1):
            began = np.array([time.perf_counter(), time.process_time()])
            product()
            if device == "cuda":
                torch.cuda.synchronize()
            found.append(np.array([time.perf_counter(), time.process_time()]) - began)
        return np.median(found[1:], axis=0)

    def dense(inputs: int, outputs: int) -> np.ndarray:
        """Measure forward and both gradients."""
        x, weight, outer = make(tokens, inputs), make(inputs, outputs), make(tokens, outputs)
        products = (lambda: x @ weight, lambda: outer @ weight.t(), lambda: x.t() @ outer)
        return np.sum([seconds(product) for product in products], axis=0)

    def attention(rows: int, columns: int) -> np.ndarray:
        """Measure scores and weighted values, and the four products of their gradients."""
        query, key = make(heads, rows, width // size.heads), make(heads, columns, width // size.heads)
        scores = make(heads, rows, columns)
        wide, narrow, turned = (
            seconds(lambda: query @ key.transpose(1, 2)),
            seconds(lambda: scores @ key),
            seconds(lambda: scores.transpose(1, 2) @ query),
        )
        return 2 * wide + 2 * narrow + 2 * turned

    def rate(side: int) -> float:
        """Return FLOP/s with random numbers: zeros draw less power and run faster."""
        left, right = make(side, side), make(side, side)
        return 2 * side**3 / seconds(lambda: left @ right)[0]

    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    layer = np.sum([dense(*shape) for shape in shapes], axis=0)
    head = dense(width, 50304)
    square = attention(length, length)
    rows = min(ROWS, length)
    triangle = np.sum([attention(rows, last) for last in range(rows, length + 1, rows)], axis=0)
    count = mode["tokens_per_step"] / tokens
    flops = 6 * tokens * (size.layers * 12 * width * width + width * 50304)
    whole, part = (count * (size.layers * (layer + each) + head) for each in (square, triangle))
    return {
        "seconds": whole[0],
        "triangle": part[0],
        "cpu": whole[1],
        "triangle_cpu": part[1],
        "rate": flops / (size.layers * layer + head)[0],
        "peak": max(rate(side) for side in SQUARES[device]),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
