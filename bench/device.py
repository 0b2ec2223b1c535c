"""The accelerator, its driver and libraries, and a timed product: `python -m bench.device`, the first stage of
`make gpu`. It fails where nothing else could run."""

import argparse
import sys
import time
import traceback

import torch
from torch.cuda import nccl

from trainer.gpu_fit import accelerators
from trainer.train.compiled import compiler

SIZE = 8192
"""Rows and columns of the product's matrices: 1.1 TFLOP, a few milliseconds of a data center's GPU."""
TIMES = 20
NO_COMPILER = "none, so whatever torch compiles fails"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    try:
        for line in (
            *(described() if device == "cuda" else ()),
            f"C compiler: {compiler() or NO_COMPILER}",
            product(device),
        ):
            print(line, flush=True)
    except Exception as error:
        traceback.print_exc()
        print(f"failed: {' '.join(str(error).split())}"[:300])
        return 1
    return 0


def described() -> list[str]:
    """Describe what a failure elsewhere may come from."""
    try:
        driver = accelerators().get("driver", "unknown: no nvidia-smi")
    except (RuntimeError, OSError) as error:
        driver = f"unknown: {error}"
    own, version = torch.cuda.get_device_properties(0), ".".join(map(str, nccl.version()))
    return [
        f"{own.name}, {own.total_memory / 1e9:.0f} GB, compute capability {own.major}.{own.minor}; driver {driver}; "
        f"{torch.cuda.device_count()} visible, one is used",
        f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, NCCL {version}; code for "
        f"{' '.join(torch.cuda.get_arch_list())}",
    ]


def product(device: str) -> str:
    """Time a product in bf16 and compare its first rows with those of a processor in fp32. Raises ValueError."""
    size = SIZE if device == "cuda" else 512
    torch.manual_seed(1)
    left, right = (torch.randn(size, size).bfloat16() for _ in range(2))
    one, other = left.to(device), right.to(device)
    found = one @ other  # what the first call loads is not timed
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(TIMES):
        found = one @ other
    wanted, rows = left[:16].float() @ right.float(), found[:16].float().cpu()  # waits for the device
    error = float((rows - wanted).abs().max() / wanted.abs().max())
    if not error < 0.02:
        raise ValueError(f"a product in bf16 is wrong by {error:.3g} of its largest value; the device is faulty")
    return f"products in bf16 are right; {2 * size**3 * TIMES / (time.perf_counter() - began) / 1e12:.1f} TFLOP/s"


if __name__ == "__main__":
    sys.exit(main())
