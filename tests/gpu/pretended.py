"""A pretended CUDA device: the branches for accelerators run on any machine, and compute no numbers.

torch's FakeTensorMode checks the names, shapes, types and devices of each operator, and computes nothing. Autograd's
engine would still ask the driver for a context, so `backward` here walks the graph itself and calls each node,
including the trainer's custom autograd functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._subclasses.fake_tensor as fake_tensor

MEMORY = 141 * 10**9
"""Bytes of an H200."""


class Properties:
    """torch.cuda.get_device_properties of an H200."""

    name, major, minor, total_memory, multi_processor_count = "NVIDIA H200", 9, 0, MEMORY, 132


class Event:
    """The part of torch.cuda.Event that the trainer uses; any other argument or method fails."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1.0


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A context in which torch.cuda answers like a machine with one H200, and tensors on cuda are fake."""
    # monkeypatch fails on a name that torch does not have; torch.cuda fails on a call that is not replaced here.
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "get_device_name": lambda device=None: Properties.name,
        "get_device_capability": lambda device=None: (Properties.major, Properties.minor),
        "get_device_properties": lambda device=None: Properties(),
        "get_arch_list": lambda: ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "Event": Event,
    }
    # Look for a driver before the answers below hide from FakeTensorMode that there is none.
    monkeypatch.setattr(fake_tensor.FakeTensorMode, "avoid_device_init", not torch.cuda.is_available())
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    # Autocast and GradScaler read it, and switch themselves off without a driver.
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        yield torch.device("cuda", 0)


def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """As torch's, but return the tensor itself."""
    assert tensor.device.type == "cpu", "only host memory can be pinned"
    return tensor


def backward(loss: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
    """Compute the gradient of every leaf behind `loss`, node by node in dependency order, as autograd's engine does."""
    start: Any = loss.grad_fn
    waiting = _dependants(start)
    arrived: dict[Any, dict[int, torch.Tensor]] = {start: {0: torch.ones_like(loss) if gradient is None else gradient}}
    ready = [start]
    with torch.no_grad():
        while ready:
            node = ready.pop()
            outer = arrived.pop(node, {})
            if hasattr(node, "variable"):  # a leaf
                leaf = node.variable
                leaf.grad = outer[0] if leaf.grad is None else leaf.grad + outer[0]
                continue
            results = _call(node, [outer.get(number) for number in range(len(node._input_metadata))])
            targets = [edge for edge in node.next_functions if edge[0] is not None]
            for (target, number), result in zip(targets, results, strict=True):
                if result is not None:
                    wanted = target._input_metadata[number]
                    # As the engine does for what was broadcast, such as addmm's bias; it fails on any other shape.
                    result = result.sum_to_size(wanted.shape)
                    result = result.to(wanted.dtype)
                    there = arrived.setdefault(target, {})
                    there[number] = there[number] + result if number in there else result
                waiting[target] -= 1
                if waiting[target] == 0 and (target in arrived or not hasattr(target, "variable")):
                    ready.append(target)


def _dependants(start: Any) -> dict[Any, int]:
    """How many nodes must be called before each node."""
    found: dict[Any, int] = {}
    seen, stack = {start}, [start]
    while stack:
        for target, _ in stack.pop().next_functions:
            if target is not None:
                found[target] = found.get(target, 0) + 1
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
    return found


def _call(node: Any, outer: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients of the inputs that need one."""
    if not hasattr(node, "apply"):  # torch's own
        results = node(*outer)
        results = results if isinstance(results, tuple) else (results,)
        return [result for result, edge in zip(results, node.next_functions, strict=True) if edge[0] is not None]
    results = node.apply(*outer)
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(node.needs_input_grad), f"{node.name()}: one gradient for each argument of forward"
    return [result for result, needed in zip(results, node.needs_input_grad, strict=True) if needed]
