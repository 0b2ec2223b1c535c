"""The last module of the fork server: it loads DeepSpeed and PEFT, and excludes the heap from garbage collection.

DeepSpeed's imports, the last of them in the first step, take longer than the training in a test.
"""

import atexit
import contextlib
import gc
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # as the engine sets it without an accelerator
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
