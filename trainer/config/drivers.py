"""Which of NVIDIA's drivers a build of torch for CUDA needs, and where a stack chooses it. Without torch."""

import functools
import re
from pathlib import Path

REMEDY = (
    "take nodes.gpuDriverVersion: LATEST or a newer gke.releaseChannel (GKE), eks.nodeRelease: latest (EKS), or a "
    "newer driver on the node of another cluster"
)
"""The settings that decide the driver of a node."""


@functools.cache
def oldest_branches() -> dict[int, int]:
    """CUDA's major version -> the oldest branch of the driver; the source is in drivers.yaml."""
    import yaml  # here, so that the node check can be imported by a Python without packages

    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def needed_branch(cuda: str) -> int | None:
    """The oldest branch of the driver for programs built for this version of CUDA, such as 13.2; None: not known."""
    return oldest_branches().get(int(cuda.partition(".")[0]))


def numbers(driver: str) -> tuple[int, ...]:
    """A driver's version, such as 580.95.05, to compare: its first number is the branch."""
    return tuple(int(number) for number in re.findall(r"\d+", driver))


def too_old(driver: str, cuda: str) -> bool:
    """Whether a driver is known to be too old for programs built for this version of CUDA."""
    needed = needed_branch(cuda)
    return bool(needed and driver and numbers(driver) < (needed,))
