"""Ways from hidden state to loss and gradients, head of GPT-2: `python -m bench.trainer.head [--device cuda]`.

ours: trainer/head.py, in groups of rows and through inductor. torch: F.linear_cross_entropy in chunks (eager only).
plain: product and cross-entropy in fp32, as they stand in most trainings, eager and compiled. bf16, 1024 tokens (32,768
on an accelerator).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from bench import page
from bench.machine import describe
from bench.trainer.allocator import keep_memory
from trainer.head import Kernels, token_loss

RESULTS = Path(__file__).parents[1] / "results"
WIDTH, VOCABULARY, PADDED = 768, 50257, 50304
REPEATS = 5
SLOW_SECONDS = 10
"""A way that takes longer is measured once."""


def main() -> None:
    keep_memory()
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.head", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="default: the processors there are")
    options = parser.parse_args()
    device, tokens = options.device, 1024 if options.device == "cpu" else 32768
    if options.threads:
        torch.set_num_threads(options.threads)
    # In turn, so that whatever else the machine does meets all of them.
    measures = ways(device, tokens, min(tokens, 16384))
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in measures}
    for _ in range(REPEATS + 1):
        for name, way in measures.items():
            if not found[name] or found[name][-1][0] < SLOW_SECONDS:
                found[name].append(measured(way, device))
    products = statistics.median(run[device == "cpu"] for run in found["products"][1:])
    lines = [
        "# From hidden state to loss and gradients",
        "",
        f"Written by `python -m bench.trainer.head --device {device}`. GPT-2: {tokens:,} tokens of width {WIDTH}, "
        f"{VOCABULARY:,} words, bf16; forward and backward, the median of {REPEATS} in turn.",
        "",
        describe("torch")
        + f"; {torch.get_num_threads()} threads"
        + (f"; {torch.cuda.get_device_name()}" if device == "cuda" else ""),
        "",
        "| way | s | processor s | of the products alone | memory beside its inputs, GB |",
        "|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        wall, cpu, memory = (statistics.median(part) for part in zip(*runs[1:] or runs, strict=True))
        seen = f"{memory / 1e9:.1f}" if device == "cuda" else ""
        lines.append(
            f"| {name} | {wall:.3f} | {cpu:.3f} | {(cpu if device == 'cpu' else wall) / products:.2f} | {seen} |"
        )
    page.write(RESULTS / f"head_{device}.md", "\n".join(lines))
    print("\n".join(lines))


def ways(device: str, tokens: int, chunk: int) -> dict[str, Callable[[], Any]]:
    """By name, each from fresh gradients."""
    hidden = torch.randn(tokens, WIDTH, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight = (0.02 * torch.randn(PADDED, WIDTH, device=device)).bfloat16().requires_grad_()
    targets = torch.randint(0, VOCABULARY, (tokens,), device=device)
    wide = torch.ones(tokens, PADDED, dtype=torch.bfloat16, device=device)
    options = torch.nn.LinearCrossEntropyOptions()

    def ours(compile: bool) -> Callable[[], torch.Tensor]:
        kernels = Kernels(compile)
        return lambda: token_loss(hidden, weight, targets, VOCABULARY, kernels, chunk)

    def plain() -> torch.Tensor:
        return F.cross_entropy((hidden @ weight[:VOCABULARY].t()).float(), targets, reduction="sum")

    def torchs() -> torch.Tensor:
        return F.linear_cross_entropy(hidden, weight[:VOCABULARY], targets, reduction="sum", options=options)

    def products() -> None:
        with torch.no_grad():
            _ = hidden @ weight.t(), wide @ weight, wide.t() @ hidden

    def both(loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def step() -> None:
            hidden.grad = weight.grad = None
            loss().backward()

        return step

    return {
        "products": products,
        "ours, groups of rows": both(ours(compile=False)),
        "ours, inductor": both(ours(compile=True)),
        "F.linear_cross_entropy": both(torchs),
        "plain, eager": both(plain),
        "plain, inductor": both(torch.compile(plain)),
    }


def measured(step: Callable[[], Any], device: str) -> tuple[float, float, float]:
    """Wall and processor seconds; bytes of the accelerator beside what was there."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    began = time.perf_counter(), time.process_time()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return time.perf_counter() - began[0], time.process_time() - began[1], peak - before


if __name__ == "__main__":
    main()
