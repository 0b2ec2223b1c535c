"""What many accelerators should do, by arithmetic and before the first run: `python -m bench.scale` writes
bench/results/scale.md.

Rates of devices and networks are those of trainer/config/peaks.yaml and infra/gke/interconnect.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.page import results, table, write
from infra.gke.machines import workers
from infra.needs import load
from infra.parse import parse
from infra.stackfiles import ROOT, stack_file_values
from trainer.config import memory
from trainer.config.schema import changed
from trainer.config.speed import flops_per_token, peak_of
from trainer.gpu_check import SHARE
from trainer.models.capacity import fitting
from trainer.parallel.communication import ring_bytes

PAGE = results() / "scale.md"
STACK = "gcp-a100"
MFU = 0.412
"""Of GPT-2 124M on one H100 80GB, in passes of 32 windows of 1024, bf16, compiled, at 989 TFLOP/s: 68.8 ms a pass.
bench/results/speed_cuda.md, 2026-11-26."""
BACKWARD = 2 / 3
"""Share of the backward pass in a micro-batch: two products where the forward pass has one."""
WIRE_BYTES = 2
"""Bytes of an element on the wire, in bf16. A ring sends it twice: for ddp to sum and to spread the gradients, for
ZeRO-1 to sum the gradients and to gather the weights."""
ONE_CARD, FOUR_CARDS = 200, 800
"""Gbit/s of an a3-highgpu-8g: one card, and the four of its GPUs, for which interconnect.yaml has no figure. Source:
cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx, read 2026-11-26."""
OVERLAPS = {"ddp": True, "ddp with TORCH_DIST_USE_NCCL2=1, ZeRO-1": False}
"""Engine -> whether its exchange runs beside the backward pass of the step's last micro-batch."""
CAPTION = ("machines", "model", "engine", "compute, ms", "wire, ms", "exposed, ms", "million tokens/s", "efficiency")


@dataclass(frozen=True)
class Step:
    """One optimizer step. Times in seconds, on one of the accelerators."""

    tokens: int
    compute: float
    """All micro-batches, forward and backward."""
    backward: float
    """Of the last micro-batch."""
    size: int
    """Bytes that each worker sends."""
    last: float
    """Share of the last bucket, the embeddings: their gradient is complete when the backward pass ends."""

    def wire(self, gbit: float) -> float:
        """The exchange over machines with this network: in a ring, all bytes go through each machine's card once."""
        return self.size * 8 / (gbit * 1e9)

    def exposed(self, gbit: float, overlaps: bool) -> float:
        """The part of the exchange for which computing waits."""
        wire = self.wire(gbit)
        return self.last * wire + max(0.0, (1 - self.last) * wire - self.backward) if overlaps else wire


def step(name: str, count: int, preset: str) -> Step:
    """A step of the stack's tokens on `count` machines of a type; as many windows in a pass as fit the memory."""
    machine, config = workers()[name], parse(stack_file_values(STACK), STACK).training
    config = changed(config, {"model.preset": preset, "engine.name": "ddp"})
    shape, peak, world = memory.of_preset(preset), peak_of(machine.accelerator or ""), count * machine.accelerators
    assert peak, f"{name}: peaks.yaml has no {machine.accelerator}"
    windows = config.windows_per_step // world
    passes = windows / min(windows, fitting(shape, config, machine.accelerator_gib * 2**30, workers=world))
    compute = windows * config.sequence_length * flops_per_token(shape, config) / (MFU * peak)
    size = ring_bytes(WIRE_BYTES * shape.parameters, world)
    last = shape.outer / shape.parameters
    return Step(config.tokens_per_step, compute, BACKWARD * compute / passes, size, last)


def rows() -> Iterator[tuple[str, ...]]:
    """Rows of the table. Where the network matters: at its full rate, and at the least that the node check accepts."""
    card = load(ROOT / "infra" / "gke" / "interconnect.yaml")["gbit_per_second"]
    for count, name, how, gbit in (
        (2, "a2-highgpu-8g", "", card["a2-highgpu-8g"]),
        (8, "a3-highgpu-8g", ", one card", ONE_CARD),
        (8, "a3-highgpu-8g", ", GPUDirect-TCPX", FOUR_CARDS),
    ):
        for preset in ("small", "xl"):
            planned = step(name, count, preset)
            for engine, overlaps in OVERLAPS.items():
                wires = [planned.wire(share * gbit) for share in (1, SHARE)]
                waits = [planned.exposed(share * gbit, overlaps) for share in (1, SHARE)]
                times = [planned.compute + each for each in waits]
                yield (
                    f"{count} x {name}{how}",
                    preset,
                    engine,
                    f"{1e3 * planned.compute:.0f}",
                    " to ".join(f"{1e3 * each:.0f}" for each in wires),
                    " to ".join(f"{1e3 * each:.0f}" for each in waits),
                    " to ".join(f"{planned.tokens / each / 1e6:.2f}" for each in times),
                    " to ".join(f"{planned.compute / each:.2f}" for each in times),
                )


def parts() -> tuple[str | list[str], ...]:
    """The page: the table, and what it assumes."""
    return (
        "# Many accelerators, predicted",
        "`python -m bench.scale`: a step of gcp-a100's 524,288 tokens in bf16, by arithmetic, for the first run on "
        "many accelerators to be compared with.",
        table(CAPTION, rows()),
        f"""It assumes that every machine reaches the MFU that one H100 reached with GPT-2 124M in passes of 32 windows
({MFU}), that the exchange goes through each machine's network once, at 100 to 40 % of its nominal rate (below 40 % the
node check warns), and that NVLink and the optimizer take no time. `ddp` exchanges beside the backward pass of the last
micro-batch, all but the embeddings, whose gradient is complete at its end; with torch's newer NCCL engine and in
ZeRO-1, computing waits for all of it.""",
        """trainyard refuses more than one a3-highgpu-8g today: it does not set up GPUDirect-TCPX, and the rows with one
card show what that would cost.""",
    )


if __name__ == "__main__":
    print(write(PAGE, *parts()))
