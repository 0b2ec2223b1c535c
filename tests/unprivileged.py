"""How tests start a process that file modes hold: tests often run as root, whom none does, and pods do not."""

from __future__ import annotations

import ctypes
import os

UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def drop_privileges() -> None:
    """Let file modes hold this process (capset(2): the words of each set, of which the first has these two)."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    version_3, of_this_process = 0x20080522, 0
    header = (ctypes.c_uint32 * 2)(version_3, of_this_process)
    effective_permitted_inheritable = (ctypes.c_uint32 * 6)()
    libc.capget(header, effective_permitted_inheritable)
    dac_override, dac_read_search = 1, 2
    for number in range(3):
        effective_permitted_inheritable[number] &= ~(1 << dac_override | 1 << dac_read_search)
    if libc.capset(header, effective_permitted_inheritable):
        raise OSError(ctypes.get_errno(), "capset")
