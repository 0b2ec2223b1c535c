"""GPT-2's head and loss with gradients, four implementations: `python -m bench.trainer.head [--device cuda]`.

ours: trainer/models/head.py, in groups of rows and through inductor. torch: F.linear_cross_entropy in chunks (eager
only, from torch 2.15 on). Liger: its fused Triton kernel, if installed. plain: product and cross-entropy in fp32, as in
most trainings, eager and compiled. bf16, 1024 tokens (32,768 on accelerators, 64 with `--tiny`).
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench import page
from bench.trainer import setup
from trainer.models.head import Kernels, token_loss

WIDTH, VOCABULARY, PADDED = 768, 50257, 50304
REPEATS = 5
COLUMNS = ("way", "s", "processor s", "of the products alone", "memory beside its inputs, GB")


def main() -> None:
    setup.keep_memory()
    options = setup.parser("head", __doc__).parse_args()
    device = options.device
    tokens = 64 if options.tiny else 1024 if device == "cpu" else 32768
    if options.threads:
        torch.set_num_threads(options.threads)
    text, found = "", {}
    for rounds, found in enumerate(setup.in_turn(ways(device, tokens, min(tokens, 16384)), device, REPEATS)):
        if device == "cpu" and rounds < REPEATS:
            continue  # on an accelerator, write each round: a stage that is killed at its limit keeps its figures
        text = page.write(
            page.results(options.tiny) / f"head_{device}.md",
            "# From hidden state to loss and gradients",
            f"{setup.command('head', options)}. GPT-2: {tokens:,} tokens of width {WIDTH}, "
            f"{VOCABULARY:,} words, bf16; forward and backward, the median of {max(1, rounds)} in turn.",
            f"{page.describe('torch')}; {torch.get_num_threads()} threads{setup.accelerator(device)}",
            page.table(COLUMNS, rows(device, found)),
        )
    print(text)
    for name, figures in found.items():
        if not isinstance(figures, str) and name != "products":
            print(f"== {name}: {1e3 * figures[0]:.1f} ms")


def rows(device: str, found: dict[str, setup.Figures | str]) -> list[tuple[object, ...]]:
    """Make the rows. Shares are of CPU seconds on a CPU, which other programs use, too, else of wall seconds."""
    clock = int(device == "cpu")
    products = found["products"]
    assert not isinstance(products, str), products
    told: list[tuple[object, ...]] = []
    for name, figures in found.items():
        if isinstance(figures, str):
            told.append((name, figures, None, None, None))
            continue
        memory = f"{figures[2] / 1e9:.1f}" if device == "cuda" else None
        share = f"{figures[clock] / products[clock]:.2f}"
        told.append((name, f"{figures[0]:.4f}", f"{figures[1]:.4f}", share, memory))
    return told


def ways(device: str, tokens: int, chunk: int) -> dict[str, Callable[[], Any]]:
    """Map names to functions. Each starts from fresh gradients."""
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


if __name__ == "__main__":
    main()
