"""Peak memory of a training step by model and micro-batch: `python -m bench.trainer.memory --device cuda`.

Runs the engine's own steps on random tokens (compiled, bf16, AdamW, two micro-batches each, so that the second computes
while gradients exist), and compares them with the estimate of trainer/config/memory.py, from which a run without a
micro-batch chooses one. Each row is written as soon as it is known.
"""

import argparse
import gc
import sys
import time

import torch

from bench import page
from bench.trainer import setup
from trainer.config.memory import of_preset
from trainer.config.schema import Config
from trainer.models import networks
from trainer.models.capacity import estimate
from trainer.models.gpt2 import LanguageModel
from trainer.parallel.world import World
from trainer.train.loop import build_engine
from trainer.train.metrics import peak_memory

LENGTH, VOCABULARY = 1024, 50257
SIZES = (("small", 32), ("medium", 32), ("small", 64), ("medium", 16), ("large", 16), ("xl", 8), ("small", 128))
TINY = (("tiny", 2), ("tiny", 4))
CONFIGURATION = Config()
SECONDS = 400
"""No further size begins after this: each compiles for up to a minute."""
COLUMNS = ("model", "windows", "most, GB", "reserved by the allocator, GB", "estimate, GB", "most / estimate")


def main() -> int:
    options = setup.parser("memory", __doc__, device="cuda").parse_args()
    rows: list[tuple[object, ...]] = []
    began = time.monotonic()
    for preset, windows in TINY if options.tiny else SIZES:
        if time.monotonic() - began > SECONDS:
            print(f"== no time left for {preset}, {windows} windows", flush=True)
            continue
        rows.append((preset, windows, *figures(preset, windows, options)))
        print("==", *rows[-1], flush=True)
        page.write(
            page.results(options.tiny) / f"memory_{options.device}.md",
            "# Memory of a training step",
            f"{setup.command('memory', options)}. bf16, windows of {LENGTH} tokens.",
            page.describe("torch", "transformers") + setup.accelerator(options.device),
            page.table(COLUMNS, rows),
        )
    return 0


def figures(preset: str, windows: int, options: argparse.Namespace) -> tuple[object, ...]:
    """Measure a size; return the last four columns."""
    length = 64 if options.tiny else LENGTH
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    device = torch.device(options.device)
    expected = estimate(of_preset(preset, VOCABULARY), CONFIGURATION, windows * length)
    try:
        steps(preset, windows, length, device)
    except torch.OutOfMemoryError:
        return "does not fit", None, f"{expected / 1e9:.1f}", None
    most = peak_memory(device)
    reserved = f"{torch.cuda.max_memory_reserved() / 1e9:.1f}" if device.type == "cuda" else None
    return f"{most / 1e9:.1f}", reserved, f"{expected / 1e9:.1f}", f"{most / expected:.2f}"


def steps(preset: str, windows: int, length: int, device: torch.device) -> None:
    """Make two steps."""
    net = networks.build(preset, VOCABULARY, VOCABULARY - 1, seed=1).to(device)  # pyright: ignore[reportArgumentType]
    module = LanguageModel(net)
    if device.type == "cuda":
        module.compile()
    work = setup.work(net, module, 2 * windows * length, 2 * windows)
    world = World(rank=0, size=1, local_rank=0, round=1, device=device)
    built = build_engine(work, CONFIGURATION, world, torch.bfloat16)
    ids = torch.randint(0, VOCABULARY, (windows, length + 1), device=device)
    for number in range(2):
        for last in (False, True):
            built.accumulate((ids[:, :-1], ids[:, 1:]), 1.0, last)
        built.step(1e-4, number + 1)
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
