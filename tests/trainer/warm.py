"""The end of what workers are forked with: DeepSpeed, and a heap that they need not search.

DeepSpeed's imports, the last of them in the first step, take longer than a test trains.
"""

import atexit
import contextlib
import gc
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # as the engine has it, where there is no accelerator
with contextlib.redirect_stdout(None):
    import deepspeed
    import deepspeed.ops
    import deepspeed.runtime.zero.muon.original_muon

__all__ = ["deepspeed"]

atexit.register(os._exit, 0)  # without the list of what triton leaves behind
gc.collect()
gc.freeze()
