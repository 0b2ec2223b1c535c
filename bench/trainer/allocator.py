"""The allocator as the launcher sets it for its workers: freed memory stays with the process."""

import os
import sys

from trainer.launch import MALLOC


def keep_memory() -> None:
    """Start this process anew with the setting, which glibc reads at the start only; nothing where one is given."""
    if "GLIBC_TUNABLES" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, os.environ | {"GLIBC_TUNABLES": MALLOC})
