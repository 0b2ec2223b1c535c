"""Whether a node's accelerators, their driver and this image's torch fit together: facts, and one line if they do not.

An old driver has no error of its own: torch finds no device, and a training would go on without one.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from trainer.config.drivers import REMEDY, needed_branch, numbers, too_old
from trainer.errors import UserError

NVIDIA_SMI = "/usr/local/nvidia/bin/nvidia-smi"
"""GKE's device plugin mounts it here, which is not on PATH."""


def accelerators() -> dict[str, Any]:
    """Names and driver of the accelerators, from nvidia-smi; no names on a node without any."""
    program = shutil.which("nvidia-smi") or (NVIDIA_SMI if os.path.exists(NVIDIA_SMI) else None)
    if program is None:
        return {"accelerators": []}
    query = "--query-gpu=name,memory.total,driver_version"
    done = subprocess.run(
        [program, query, "--format=csv,noheader"], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        raise RuntimeError(f"nvidia-smi failed ({done.returncode}): {done.stdout}{done.stderr}")
    rows = [[field.strip() for field in row.split(",")] for row in done.stdout.splitlines() if row.strip()]
    return {"accelerators": [f"{name} {memory}" for name, memory, _ in rows], "driver": rows[0][2] if rows else ""}


def driver_cuda() -> str:
    """The newest version of CUDA that the driver supports, such as 13.0; empty: there is no driver."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def inspect(node: dict[str, Any]) -> dict[str, Any]:
    """What torch says of a node's accelerators: versions of CUDA, compute capabilities, and `problem` if it cannot use
    them. `node`: the result of `accelerators`."""
    import torch

    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    capabilities = [torch.cuda.get_device_capability(device) for device in devices]
    found: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "driver_cuda": driver_cuda(),
        "compute_capabilities": [f"{major}.{minor}" for major, minor in capabilities],
    }
    built = torch.cuda.get_arch_list()
    foreign = [
        name for name, each in zip(found["compute_capabilities"], capabilities, strict=True) if not runs_on(each, built)
    ]
    if foreign:
        reason = (
            f"torch {torch.__version__} has no code for compute capability {foreign[0]}, only for {', '.join(built)}: "
            "take another nodes.machineType, or an image with another torch"
        )
    else:
        reason = "" if capabilities else _without_device(node)
    return {**found, "problem": reason} if reason else found


def _without_device(node: dict[str, Any]) -> str:
    """Why torch finds no device; empty where there is none to find."""
    import torch

    from trainer.parallel.world import require_device

    cuda, driver = torch.version.cuda, node.get("driver", "")
    if not node["accelerators"]:
        try:
            require_device(begun=False)
        except UserError as error:
            return str(error)
        return ""
    if cuda is None:
        return f"torch {torch.__version__} is not built for CUDA, and the node has accelerators: take another image"
    if too_old(driver, cuda):
        return (
            f"driver {driver} is too old: torch {torch.__version__} is built for CUDA {cuda}, which needs driver "
            f"{needed_branch(cuda)} or newer: {REMEDY}"
        )
    return f"torch {torch.__version__}, for CUDA {cuda}, finds none of the accelerators that driver {driver} lists"


def runs_on(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Whether torch has code for a device. `built`: torch.cuda.get_arch_list().

    Machine code (sm_75) runs on devices of the same major version and no older minor one; code for one architecture
    alone (sm_90a) on that; PTX (compute_80) on any newer device, whose driver compiles it.
    Source: docs.nvidia.com/cuda/cuda-c-programming-guide, "Application Compatibility".
    """
    for found in filter(None, (re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name) for name in built)):
        made = int(found[2]), int(found[3])
        if found[4] == "a":
            fits = made == capability
        elif found[1] == "sm" or found[4] == "f":
            fits = made[0] == capability[0] and made[1] <= capability[1]
        else:
            fits = made <= capability
        if fits:
            return True
    return False


def mismatch(nodes: Sequence[dict[str, Any]]) -> str:
    """Why a training cannot run on these nodes, in one line; empty: it can. Names the node with the oldest driver."""
    bad = [node for node in nodes if "problem" in node]
    if not bad:
        return ""
    worst = min(bad, key=lambda node: numbers(node.get("driver", "")))
    others = f" ({len(bad)} of {len(nodes)} nodes cannot train)" if len(nodes) > 1 else ""
    return f"node {worst['node']}: {worst['problem']}{others}"
