"""Port forwards into the cluster: their normal end prints no traceback."""

from __future__ import annotations

import ssl
import threading

import pytest

from cli import reach


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("Kubernetes port forward proxy: 8700", ssl.SSLEOFError("EOF occurred"), 0),
        ("Kubernetes port forward proxy: 8700", ValueError("ours"), 1),
        ("another", ConnectionResetError("reset"), 1),
    ],
)
def test_the_end_of_a_port_forward_is_no_traceback(name: str, error: Exception, told: int) -> None:
    seen: list[object] = []
    failed = threading.ExceptHookArgs((type(error), error, None, threading.Thread(name=name)))
    reach._hook(failed, seen.append)
    assert len(seen) == told
