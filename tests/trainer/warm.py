"""The end of what workers are forked with: DeepSpeed, PEFT and a heap that they need not search.

DeepSpeed's imports, the last of them in the first step, take longer than a test trains.
"""

import atexit
import contextlib
import gc
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # as the engine has it, where there is no accelerator
with contextlib.redirect_stdout(None):
    import deepspeed
    import deepspeed.module_inject.auto_ep_layer
    import deepspeed.ops.op_builder.all_ops
    import deepspeed.runtime.zero.muon.muon_optimizer
    import peft

__all__ = ["deepspeed", "peft"]

atexit.register(os._exit, 0)  # without the list of what triton leaves behind
gc.collect()
gc.freeze()
