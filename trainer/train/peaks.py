"""The most that a device can compute, for MFU (model FLOPs utilisation): peaks.yaml has figures and sources."""

import functools
import re
from pathlib import Path

import torch
import yaml


@functools.cache
def peaks() -> dict[str, float]:
    """FLOP/s by whole words of the device's name; the first that matches counts."""
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return {row["name"]: float(row["flops"]) for row in rows}


def named(device: str) -> float | None:
    """That of the device which torch calls so, as in its data sheet."""
    return next((value for key, value in peaks().items() if re.search(rf"\b{key}\b", device.lower())), None)


def peak(device: torch.device) -> float | None:
    """None where it is not known: CPUs (it depends on clock, cores and what else runs) and other accelerators."""
    return named(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
