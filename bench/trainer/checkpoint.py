"""The cost of a checkpoint of GPT-2 124M: `python -m bench.trainer.checkpoint [--storage FOLDER]`.

Real training steps run before and during real checkpoints (weights and AdamW's two moments, fp32). The cost is the time
for which training is blocked (the copy to host memory, or the whole write) plus the slowdown of steps during the write
by the thread, relative to the default checkpoint.every_minutes. Goal: under 2 %.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from bench import page
from bench.trainer import setup
from trainer.checkpoint.format import Snapshot, is_complete
from trainer.checkpoint.saver import Saver
from trainer.config import schema as config
from trainer.models import networks
from trainer.models.gpt2 import LanguageModel
from trainer.parallel import optimizer

TOKENS = 64
STEPS = 5
ROUNDS = 4
COLUMNS = ("", "training stands still", "steps beside it take longer", "the thread computes", "written after", "share")


@dataclass(frozen=True)
class Cost:
    waiting: float
    """Seconds for which training was blocked."""
    slower: float
    """Seconds by which the thread's writing slowed the steps down."""
    writing: float
    """Seconds until the checkpoint was complete."""
    processor: float
    """CPU seconds of the writing thread. Unlike the other figures, other programs hardly change it."""
    usual: float
    """Seconds of a step without a checkpoint, measured just before."""

    @property
    def total(self) -> float:
        return self.waiting + self.slower


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


def measure(training: Training, saver: TimedSaver, number: int, asynchronous: bool) -> Cost:
    """Measure one checkpoint in the middle of training."""
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
    return Cost(waiting, max(0.0, slower), time.perf_counter() - begin, saver.processor, usual)


def main() -> None:
    setup.keep_memory()
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.checkpoint", description=__doc__)
    parser.add_argument("--storage", type=Path, help="where checkpoints go; default: a folder in /tmp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.storage, prefix="bench-checkpoint-") as folder:
        run(Path(folder))


def run(folder: Path) -> None:
    """Measure, and write the page."""
    training = Training()
    for _ in range(2):
        training.step()
    costs: dict[str, Cost] = {}
    for asynchronous, name in ((True, "from a thread"), (False, "training waits")):
        saver = TimedSaver(folder / name.replace(" ", "-"), config.Checkpoint(keep=1), training.write_model, "")
        found = [measure(training, saver, number, asynchronous) for number in range(1, ROUNDS + 1)]
        print(f"{name}: {found}")
        if asynchronous:
            costs["from a thread, the first (its memory is new)"] = found[0]
            costs["from a thread"] = _median(found[1:])
        else:
            costs["training waits (checkpoint.asynchronous=false)"] = _median(found)
    size = sum(file.stat().st_size for file in (folder / "from-a-thread").rglob("*") if file.is_file())
    _write(costs, size, training.device)


def _median(found: list[Cost]) -> Cost:
    return Cost(*(statistics.median(getattr(cost, item.name) for cost in found) for item in fields(Cost)))


def _write(costs: dict[str, Cost], size: int, device: torch.device) -> None:
    minutes = config.Checkpoint().every_minutes
    rows = [
        (
            name,
            *(f"{seconds:.2f}" for seconds in (cost.waiting, cost.slower, cost.processor, cost.writing)),
            f"{cost.total / (60 * minutes):.2%}",
        )
        for name, cost in costs.items()
    ]
    usual = statistics.median(cost.usual for cost in costs.values())
    place = torch.cuda.get_device_name() if device.type == "cuda" else "the processor"
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
