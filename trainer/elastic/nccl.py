"""Which of torch's two NCCL engines exchanges gradients, and what it does when a peer is lost. Without torch.

torch 2.15 has two behind the name `nccl` (torch/distributed/distributed_c10d.py, _register_builtin_nccl_backend):
ProcessGroupNCCL2, its default, and ProcessGroupNCCL, which older versions have alone. torch reads the choice in the
environment when it makes its first process group.
"""

import os

ENGINE = "TORCH_DIST_USE_NCCL2"
"""0: ProcessGroupNCCL. Its futures let DDP's hook go on, so buckets are sent while the backward pass runs. Those of
ProcessGroupNCCL2 make the computing stream wait for each bucket (libtorch_cuda.so of the 2.15.0+cu132 wheel,
WorkNCCL::getFuture, read 2026-11-25)."""
DEFAULTS = {
    ENGINE: "0",
    # CleanUpOnly (ProcessGroupNCCL.hpp, ErrorHandlingMode): a broken exchange is aborted, and raises at its next use.
    # torch's agent would set TearDown, which ends the process, and with it a checkpoint that a thread writes. What an
    # aborted exchange leaves in memory is never saved: the workers vote before each save, over gloo.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    # ProcessGroupNCCL2 has no such mode: it ends the process after this pause, 15 s by default, in which a checkpoint
    # must end (checkpoint/saver.py, LAST_SECONDS).
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "60000",
}


def choose() -> None:
    """Set what the environment leaves open; call it before workers start."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
