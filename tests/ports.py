"""Ports for servers that tests start. No other test takes a port between its choice and the server's start."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

#: Below the ephemeral ports (net.ipv4.ip_local_port_range: 32768 and up).
RANGE = range(20_000, 32_000)


def free_port() -> int:
    """Return a loopback port without a listener. All test processes share a counter that cycles through the range."""
    counter = Path(tempfile.gettempdir(), f"trainyard-test-ports-{os.geteuid()}")
    with counter.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = int(file.read() or 0)
        for offset in range(1, len(RANGE) + 1):
            port = RANGE[(last + offset) % len(RANGE)]
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            file.truncate(0)
            file.write(str(last + offset))
            return port
    raise OSError(f"no free port from {RANGE.start} to {RANGE.stop - 1}")
