"""How fast a training can be, by arithmetic: the FLOPs of a token, and the peaks of devices. Without torch."""

import functools
import re
from pathlib import Path

import yaml

from trainer.config.memory import Shape
from trainer.config.settings import Config


@functools.cache
def device_peaks() -> dict[str, float]:
    """Peak FLOP/s of each device, by words of its name; sources are in peaks.yaml."""
    rows = yaml.safe_load(Path(__file__).with_name("peaks.yaml").read_text("utf-8"))
    return {row["name"]: float(row["flops"]) for row in rows}


def peak_of(name: str) -> float | None:
    """Peak FLOP/s of the device with this name in torch, or in a cloud: the first entry that matches whole words.

    None for a MIG instance, a part of a device: torch calls it `NVIDIA A100-SXM4-40GB MIG 3g.20gb`.
    """
    if re.search(r"\bmig\b", name.lower()):
        return None
    return next((value for key, value in device_peaks().items() if re.search(rf"\b{key}\b", name.lower())), None)


def flops_per_token(shape: Shape, config: Config) -> float:
    """Forward and backward, as trainer/models/networks.py counts them of a built model.

    An adapter's frozen model counts 4 FLOPs a parameter instead of 6. What checkpointing computes again does not count.
    """
    looked_up = shape.width * (shape.positions + (0 if shape.tied else shape.vocabulary))
    each = 4.0 if config.adapter.kind != "none" else 6.0
    own = 6.0 * shape.adapter(config.adapter) if config.adapter.kind != "none" else 0.0
    attention = 12.0 * shape.layers * shape.width * config.sequence_length
    return each * (shape.parameters - looked_up) + own + attention
