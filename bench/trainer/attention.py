"""Causal attention in the shape of GPT-2, forward and backward: `python -m bench.trainer.attention [--device cuda]`.

On a CPU: torch's fused kernel and trainer/attention.py, as it is and compiled. On an accelerator: each of torch's
kernels, since torch's own order of preference is not the same as the order of their speed.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import page
from bench.machine import describe
from bench.trainer.allocator import keep_memory
from bench.trainer.head import measured
from trainer import attention

RESULTS = Path(__file__).parents[1] / "results"
HEADS, WIDTH, SCALE = 12, 64, 0.125
REPEATS = 7
SHAPES = {"cpu": ((1, 1024), (4, 1024), (4, 128)), "cuda": ((32, 1024), (64, 1024))}
"""Windows and their length."""

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def main() -> None:
    keep_memory()
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.attention", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="default: the processors there are")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    place = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    lines = [
        "# Causal attention, forward and backward",
        "",
        f"Written by `python -m bench.trainer.attention --device {options.device}`. {HEADS} heads of "
        f"width {WIDTH}; the median of {REPEATS} in turn.",
        "",
        f"{describe('torch')}; {place}",
        "",
        "| type | windows | way | ms | processor ms |",
        "|---|---|---|---|---|",
    ]
    for dtype in (torch.bfloat16, torch.float32) if options.device == "cpu" else (torch.bfloat16,):
        for windows, length in SHAPES[options.device]:
            for name, (wall, cpu) in times(options.device, dtype, windows, length).items():
                lines.append(
                    f"| {str(dtype).removeprefix('torch.')} | {windows} x {length} | {name} | {1e3 * wall:.1f} "
                    f"| {1e3 * cpu:.1f} |"
                )
                print(lines[-1], flush=True)
    page.write(RESULTS / f"attention_{options.device}.md", "\n".join(lines))


def times(device: str, dtype: torch.dtype, windows: int, length: int) -> dict[str, tuple[float, float]]:
    """Wall and processor seconds of each way."""
    inputs = [torch.randn(windows, HEADS, length, WIDTH, dtype=dtype, device=device).requires_grad_() for _ in range(3)]
    outer = torch.randn_like(inputs[0])
    ways = on_cpu(length) if device == "cpu" else on_accelerator()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for _ in range(REPEATS + 1):
        for name, way in ways.items():
            step = functools.partial(both, way, (inputs[0], inputs[1], inputs[2]), outer)
            found[name].append(measured(step, device))
    middle = {name: [statistics.median(part) for part in zip(*runs[1:], strict=True)] for name, runs in found.items()}
    return {name: (wall, cpu) for name, (wall, cpu, _) in middle.items()}


def both(way: Callable[[Inputs], torch.Tensor], inputs: Inputs, outer: torch.Tensor) -> None:
    torch.autograd.grad(way(inputs), inputs, outer)


def fused(inputs: Inputs) -> torch.Tensor:
    return F.scaled_dot_product_attention(*inputs, is_causal=True, scale=SCALE)


def on_cpu(length: int) -> dict[str, Callable[[Inputs], torch.Tensor]]:
    mask = attention.mask(length)

    def blocks(inputs: Inputs) -> torch.Tensor:
        query, key, value = (part.flatten(0, 1) for part in inputs)
        return attention.causal_attention(query, key, value, mask, SCALE).view(inputs[0].shape)

    return {"torch": fused, "ours": blocks, "ours, compiled": torch.compile(blocks, dynamic=False)}


def on_accelerator() -> dict[str, Callable[[Inputs], torch.Tensor]]:
    def through(backend: SDPBackend) -> Callable[[Inputs], torch.Tensor]:
        def way(inputs: Inputs) -> torch.Tensor:
            with sdpa_kernel(backend):
                return fused(inputs)

        return way

    kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    return {"torch's choice": fused} | {kernel.name.lower(): through(kernel) for kernel in kernels}


if __name__ == "__main__":
    main()
