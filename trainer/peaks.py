"""The most that a device can compute, for MFU (model FLOPs utilisation)."""

import torch

PEAKS = (
    ("h200 nvl", 836e12),
    ("h200", 989e12),
    ("h100 pcie", 756e12),
    ("h100 nvl", 835e12),
    ("h100", 989e12),
    ("a100", 312e12),
    ("a10g", 70e12),
    ("a10", 125e12),
    ("l40s", 362e12),
    ("l4", 121e12),
    ("t4", 65e12),
)
"""Dense FLOP/s in bf16 (fp16 where there is no bf16), from NVIDIA's data sheets; the first name that matches counts."""


def peak(device: torch.device) -> float | None:
    """None where it is not known: CPUs (it depends on clock, cores and what else runs) and other accelerators."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).lower()
    return next((value for key, value in PEAKS if key in name), None)
