"""Ways from hidden state to loss and gradients, head of GPT-2: `python -m bench.trainer.head [--device cuda]`.

ours: trainer/models/head.py, in groups of rows and through inductor. torch: F.linear_cross_entropy in chunks (eager
only, from torch 2.15 on). Liger: its fused kernel in Triton, where it is installed. plain: product and cross-entropy in
fp32, as they stand in most trainings, eager and compiled. bf16, 1024 tokens (32,768 on accelerators, 64 with `--tiny`).
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench import page
from bench.machine import describe, results
from bench.trainer.allocator import keep_memory
from trainer.models.head import Kernels, token_loss

WIDTH, VOCABULARY, PADDED = 768, 50257, 50304
REPEATS = 5
SLOW_SECONDS = 10
"""A way that takes longer is measured once."""


def main() -> None:
    keep_memory()
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.head", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tiny", action="store_true", help="rehearse with 64 tokens")
    parser.add_argument("--threads", type=int, default=0, help="default: the processors there are")
    options = parser.parse_args()
    device, tokens = options.device, 1024 if options.device == "cpu" else 32768
    tokens = 64 if options.tiny else tokens
    if options.threads:
        torch.set_num_threads(options.threads)
    # In turn, so that whatever else the machine does meets all of them.
    measures = ways(device, tokens, min(tokens, 16384))
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in measures}
    refused: dict[str, str] = {}
    for _ in range(REPEATS + 1):
        for name, way in measures.items():
            slow = len(found[name]) > 1 and found[name][-1][0] > SLOW_SECONDS  # the first one compiles
            if name not in refused and not slow:
                try:
                    found[name].append(measured(way, device))
                except Exception as error:  # kernels and compilers each have their own
                    refused[name] = f"not here: {' '.join(str(error).split())[:100].replace('|', '/')}"
        text = table(device, tokens, found, refused)
        page.write(results(options.tiny) / f"head_{device}.md", text)
    print(text)
    figures = {name: statistics.median(run[0] for run in runs[1:] or runs) for name, runs in found.items() if runs}
    for name in figures:
        if name not in refused and name != "products":
            print(f"== {name}: {1e3 * figures[name]:.1f} ms")


def table(device: str, tokens: int, found: dict[str, list[tuple[float, float, float]]], refused: dict[str, str]) -> str:
    products = statistics.median(run[device == "cpu"] for run in found["products"][1:] or found["products"])
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
        if name in refused:
            lines.append(f"| {name} | {refused[name]} | | | |")
            continue
        wall, cpu, memory = (statistics.median(part) for part in zip(*runs[1:] or runs, strict=True))
        seen = f"{memory / 1e9:.1f}" if device == "cuda" else ""
        lines.append(
            f"| {name} | {wall:.4f} | {cpu:.4f} | {(cpu if device == 'cpu' else wall) / products:.2f} | {seen} |"
        )
    return "\n".join(lines)


def ways(device: str, tokens: int, chunk: int) -> dict[str, Callable[[], Any]]:
    """By name, each from fresh gradients."""
    hidden = torch.randn(tokens, WIDTH, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight = (0.02 * torch.randn(PADDED, WIDTH, device=device)).bfloat16().requires_grad_()
    targets = torch.randint(0, VOCABULARY, (tokens,), device=device)
    wide = torch.ones(tokens, PADDED, dtype=torch.bfloat16, device=device)

    def ours(compile: bool) -> Callable[[], torch.Tensor]:
        kernels = Kernels(compile)
        return lambda: token_loss(hidden, weight, targets, VOCABULARY, kernels, chunk)

    def plain() -> torch.Tensor:
        return F.cross_entropy((hidden @ weight[:VOCABULARY].t()).float(), targets, reduction="sum")

    def torchs() -> torch.Tensor:
        options = torch.nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(hidden, weight[:VOCABULARY], targets, reduction="sum", options=options)

    def liger() -> torch.Tensor:
        transformers: Any = importlib.import_module("liger_kernel.transformers")
        loss = transformers.LigerFusedLinearCrossEntropyLoss(reduction="sum")
        return loss(weight[:VOCABULARY], hidden, targets)

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
        "Liger": both(liger),
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
