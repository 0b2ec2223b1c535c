"""Three ways from hidden state to loss and gradients, GPT-2's head: `python -m bench.trainer.head [--device cuda]`.

ours: trainer/head.py. torch: F.linear_cross_entropy in chunks (eager only). plain: product and cross-entropy in fp32,
compiled as one. Seconds of forward and backward, the best of three, bf16, 4096 tokens (32,768 on an accelerator).
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from trainer.head import Kernels, token_loss

WIDTH, VOCABULARY, PADDED = 768, 50257, 50304


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.head", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    tokens, chunk = (4096, 4096) if device == "cpu" else (32768, 16384)
    hidden = torch.randn(tokens, WIDTH, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight = (0.02 * torch.randn(PADDED, WIDTH, device=device)).bfloat16().requires_grad_()
    targets = torch.randint(0, VOCABULARY, (tokens,), device=device)
    kernels = Kernels(compile=True)
    options = torch.nn.LinearCrossEntropyOptions()

    def plain() -> torch.Tensor:
        return F.cross_entropy((hidden @ weight[:VOCABULARY].t()).float(), targets, reduction="sum")

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "ours": lambda: token_loss(hidden, weight, targets, VOCABULARY, kernels, chunk),
        "torch": lambda: F.linear_cross_entropy(hidden, weight[:VOCABULARY], targets, reduction="sum", options=options),
        "plain": torch.compile(plain),
    }
    products = [
        lambda: hidden @ weight.t(),
        lambda: torch.ones(tokens, PADDED, dtype=torch.bfloat16, device=device) @ weight,
        lambda: torch.ones(PADDED, tokens, dtype=torch.bfloat16, device=device) @ hidden,
    ]
    with torch.no_grad():
        print(f"the three products alone: {sum(best(product, device) for product in products):.3f} s")
    for name, way in ways.items():

        def step(way: Callable[[], Any] = way) -> None:
            hidden.grad = weight.grad = None
            way().backward()

        print(f"{name}: {best(step, device):.3f} s", flush=True)


def best(step: Callable[[], Any], device: str) -> float:
    found = []
    for _ in range(4):
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])


if __name__ == "__main__":
    main()
