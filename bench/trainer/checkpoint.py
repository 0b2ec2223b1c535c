"""The cost of a checkpoint of GPT-2 124M: `python -m bench.trainer.checkpoint [--storage FOLDER]`.

Real training steps run before and during real checkpoints (weights and AdamW's two moments, fp32). The cost is the time
for which training is blocked (the copy to host memory, or the whole write) plus the slowdown of steps during the write
by the thread, relative to the default checkpoint.every_minutes. Goal: under 2 %.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from bench import page
from bench.trainer import setup
from trainer.checkpoint.format import Snapshot, is_complete
from trainer.checkpoint.saver import Saver
from trainer.config import settings as config
from trainer.models import networks
from trainer.models.gpt2 import LanguageModel
from trainer.parallel import optimizer

TOKENS = 64
STEPS = 5
ROUNDS = 4
COLUMNS = ("", "training stands still", "steps beside it take longer", "the thread computes", "written after", "share")


class TimedSaver(Saver):
    processor = 0.0

    def _write(self, step: int, snapshot: Snapshot) -> None:
        begin = time.thread_time()
        super()._write(step, snapshot)
        self.processor = time.thread_time() - begin


class Training:
    """Steps of GPT-2 small on the accelerator if there is one, else on the CPU."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = networks.build("small", 50257, 50256, seed=0)
        self.module = LanguageModel(self.net).to(self.device)
        self.optimizers = optimizer.build(self.net, config.Optimizer())
        self.tokens = torch.randint(0, 50257, (1, TOKENS + 1), device=self.device)

    def step(self) -> float:
        """Make one step; return its seconds."""
        begin = time.perf_counter()
        (self.module(self.tokens[:, :-1], self.tokens[:, 1:]) / TOKENS).backward()
        for each in self.optimizers:
            each.step()
            each.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def snapshot(self) -> Snapshot:
        return Snapshot(self.net.state_dict(), optimizer.state(self.optimizers, self.net))

    def write_model(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        self.net.save_pretrained(folder, state_dict=weights)


def measure(training: Training, saver: TimedSaver, number: int, asynchronous: bool) -> np.ndarray:
    """Measure one checkpoint in the middle of training. Returns the seconds for which training was blocked; by which
    the thread's writing slowed the steps down; of processor that the writing thread took, which other programs hardly
    change; until the checkpoint was complete; and of a step without a checkpoint, measured just before."""
    usual = statistics.median(training.step() for _ in range(STEPS))
    begin = time.perf_counter()
    path = saver.save(number, training.snapshot())
    if not asynchronous:
        saver.wait()
    waiting = time.perf_counter() - begin
    slower = 0.0
    while saver.busy:
        slower += training.step() - usual
    saver.wait()
    assert is_complete(path)
    return np.array([waiting, max(0.0, slower), saver.processor, time.perf_counter() - begin, usual])


def main() -> None:
    setup.keep_memory()
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.checkpoint", description=__doc__)
    parser.add_argument("--storage", type=Path, help="where checkpoints go; default: a folder in /tmp")
    options = parser.parse_args()
    training, costs, size = Training(), dict[str, np.ndarray](), 0
    for _ in range(2):
        training.step()
    with tempfile.TemporaryDirectory(dir=options.storage, prefix="bench-checkpoint-") as name:
        for asynchronous in (True, False):
            folder = Path(name) / str(asynchronous)
            saver = TimedSaver(folder, config.Checkpoint(keep=1), training.write_model, "")
            found = np.array([measure(training, saver, number, asynchronous) for number in range(1, ROUNDS + 1)])
            print(found)
            if asynchronous:
                costs["from a thread, the first (its memory is new)"] = found[0]
                costs["from a thread"] = np.median(found[1:], axis=0)
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            else:
                costs["training waits (checkpoint.asynchronous=false)"] = np.median(found, axis=0)
    minutes = config.Checkpoint().every_minutes
    shares = (f"{sum(cost[:2]) / (60 * minutes):.2%}" for cost in costs.values())
    rows = [
        (name, *(f"{each:.2f}" for each in cost[:4]), share)
        for (name, cost), share in zip(costs.items(), shares, strict=True)
    ]
    usual = statistics.median(cost[4] for cost in costs.values())
    place = torch.cuda.get_device_name() if training.device.type == "cuda" else "the processor"
    text = page.write(
        page.results() / "checkpoint.md",
        "# What a checkpoint costs",
        "Written by `python -m bench.trainer.checkpoint`.",
        page.describe("torch", "safetensors"),
        f"GPT-2 124M on {place}, weights and AdamW's moments in fp32: {size / 1e9:.2f} GB; steps of {TOKENS} tokens "
        f"take {usual:.2f} s without a checkpoint. Seconds; the share is that of waiting and slower steps in the "
        f"default interval of {minutes:g} minutes.",
        page.table(COLUMNS, rows),
    )
    print(text)


if __name__ == "__main__":
    main()
