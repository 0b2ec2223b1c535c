"""The network of the local node; tests/local/test_node_healing.py breaks the real one."""

from __future__ import annotations

import contextlib

import pytest

from local import network
from local.shell import LocalError


@pytest.mark.parametrize("stays", [False, True])
def test_a_device_that_the_kernel_removes_first_is_no_error(stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel removes it a moment after the namespace is deleted."""
    there = iter([True, stays])

    def ip(*_: str) -> str:
        raise LocalError("cannot set up the node's network: Cannot find device")

    monkeypatch.setattr(network, "has_device", lambda: next(there))
    monkeypatch.setattr(network, "ip", ip)
    with pytest.raises(LocalError) if stays else contextlib.nullcontext():
        network._remove_device()
