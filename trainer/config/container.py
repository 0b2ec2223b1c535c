"""The memory that this process may use."""

import os
from collections.abc import Sequence
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the container's memory limit, of cgroups 2 and 1."""


def limit(files: Sequence[str] = LIMITS) -> int | None:
    """The memory limit of this container in bytes; None if it has none."""
    for file in files:
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < 1 << 60 else None  # cgroups 1: huge if unlimited
    return None


def machine() -> int:
    """Bytes of memory that this process may use: the container's limit, or what the machine has."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(there, limit() or there)
