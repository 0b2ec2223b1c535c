"""Causal attention in GPT-2's shape, forward and backward: `python -m bench.trainer.attention [--device cuda]`.

On a CPU: torch's fused kernel and trainer/models/attention.py, eager and compiled. On an accelerator: each of torch's
kernels and compiled flex_attention, because torch does not choose among its kernels by speed. `--tiny` runs the
accelerator's variants with small inputs and writes a page of its own.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import page
from bench.trainer import setup
from trainer.models import attention

HEADS, WIDTH, SCALE = 12, 64, 0.125
REPEATS = 7
SHAPES = {"cpu": ((1, 1024), (4, 1024), (4, 128)), "cuda": ((32, 1024), (64, 1024)), "tiny": ((1, 128),)}
"""(windows, tokens in a window)."""
COLUMNS = ("type", "windows", "way", "ms", "processor ms", "TFLOP/s")

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def main() -> None:
    setup.keep_memory()
    options = setup.parser("attention", __doc__).parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    accelerator = options.device == "cuda" or options.tiny
    types = (torch.bfloat16,) if accelerator else (torch.bfloat16, torch.float32)
    shapes = [(dtype, *shape) for dtype in types for shape in SHAPES["tiny" if options.tiny else options.device]]
    rows: list[tuple[object, ...]] = []
    for dtype, windows, length in shapes:
        *_, found = setup.in_turn(ways(options.device, accelerator, dtype, windows, length), options.device, REPEATS)
        flops = 6 * 2 * windows * HEADS * WIDTH * length**2 / 2  # two products forward, four back
        for name, time in found.items():
            told = (time, None, None)
            if not isinstance(time, str):
                told = (f"{1e3 * time[0]:.2f}", f"{1e3 * time[1]:.2f}", f"{flops / time[0] / 1e12:.2g}")
            rows.append((str(dtype).removeprefix("torch."), f"{windows} x {length}", name, *told))
            print(*rows[-1], sep=" | ", flush=True)
        if accelerator or (dtype, windows, length) == shapes[-1]:  # on a GPU, a stage that is killed keeps its figures
            page.write(
                page.results(options.tiny) / f"attention_{options.device}.md",
                "# Causal attention, forward and backward",
                f"{setup.command('attention', options)}. {HEADS} heads of "
                f"width {WIDTH}; the median of {REPEATS} in turn. TFLOP/s: of the products below the diagonal.",
                f"{page.describe('torch')}; {torch.get_num_threads()} threads{setup.accelerator(options.device)}",
                page.table(COLUMNS, rows),
            )
        fast = min((time[0], name) for name, time in found.items() if not isinstance(time, str))
        print(f"== {windows} x {length}: fastest is {fast[1]}, {1e3 * fast[0]:.2f} ms", flush=True)


def ways(
    device: str, accelerator: bool, dtype: torch.dtype, windows: int, length: int
) -> dict[str, Callable[[], object]]:
    """Map names to functions that run forward and backward."""
    inputs = [torch.randn(windows, HEADS, length, WIDTH, dtype=dtype, device=device).requires_grad_() for _ in range(3)]
    outer = torch.randn_like(inputs[0])

    def both(way: Callable[[Inputs], torch.Tensor]) -> object:
        parts = inputs[0], inputs[1], inputs[2]
        return torch.autograd.grad(way(parts), parts, outer)

    known = on_accelerator(length, device) if accelerator else on_cpu(length)
    return {name: functools.partial(both, way) for name, way in known.items()}


def fused(inputs: Inputs) -> torch.Tensor:
    return F.scaled_dot_product_attention(*inputs, is_causal=True, scale=SCALE)


def on_cpu(length: int) -> dict[str, Callable[[Inputs], torch.Tensor]]:
    mask = attention.mask(length)

    def blocks(inputs: Inputs) -> torch.Tensor:
        query, key, value = (part.flatten(0, 1) for part in inputs)
        return attention.causal_attention(query, key, value, mask, SCALE).view(inputs[0].shape)

    return {"torch": fused, "ours": blocks, "ours, compiled": torch.compile(blocks, dynamic=False)}


def on_accelerator(length: int, device: str) -> dict[str, Callable[[Inputs], torch.Tensor]]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def through(backend: SDPBackend) -> Callable[[Inputs], torch.Tensor]:
        def way(inputs: Inputs) -> torch.Tensor:
            with sdpa_kernel(backend):
                return fused(inputs)

        return way

    kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    compiled = torch.compile(flex_attention, dynamic=False)

    @functools.cache
    def visible() -> Any:
        return create_block_mask(lambda b, h, row, column: row >= column, None, None, length, length, device)

    def flex(inputs: Inputs) -> torch.Tensor:
        return compiled(*inputs, block_mask=visible(), scale=SCALE)  # pyright: ignore[reportReturnType]

    ways = {"torch's choice": fused, "flex, compiled": flex}
    return ways | {kernel.name.lower(): through(kernel) for kernel in kernels}


if __name__ == "__main__":
    main()
