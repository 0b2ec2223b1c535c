"""A CUDA device that is not there: the branches for accelerators run on any machine, without a number in them.

Under torch's FakeTensorMode an operator checks names, shapes, types and devices, and computes nothing. Autograd's
engine asks the driver for a context all the same, so `backward` here walks the graph itself and calls each node: every
custom autograd function of the trainer with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._subclasses.fake_tensor as fake_tensor

from trainer.models import gpt2

MEMORY = 141 * 10**9
"""Bytes of an H200."""


class Properties:
    """Of an H200."""

    name, major, minor, total_memory, multi_processor_count = "NVIDIA H200", 9, 0, MEMORY, 132


class Event:
    """torch.cuda.Event as far as the trainer uses it: unknown arguments and methods fail here, too."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1.0


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Within: torch.cuda answers as a machine with one H200 would, and tensors on cuda are fake."""
    # monkeypatch refuses a name that torch does not have, and so does torch.cuda what is not replaced here.
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
    # Whether there is a driver to be asked, which the answers below would hide from FakeTensorMode.
    monkeypatch.setattr(fake_tensor.FakeTensorMode, "avoid_device_init", not torch.cuda.is_available())
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    # Read by autocast and GradScaler, which switch themselves off where no driver is.
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    # cuDNN's attention asks the driver whether a shape fits it; without one, torch's own order stays.
    monkeypatch.setattr(gpt2, "preferred_attention", lambda device: contextlib.nullcontext())
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        yield torch.device("cuda", 0)


def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """As torch's, but for the memory: the tensor itself."""
    assert tensor.device.type == "cpu", "only host memory can be pinned"
    return tensor


def backward(loss: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
    """Gradients for every leaf behind `loss`, node by node and in the order of dependence, as autograd's engine."""
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
                    assert list(result.shape) == list(wanted.shape), f"{node.name()}: {result.shape} for {wanted.shape}"
                    result = result.to(wanted.dtype)
                    there = arrived.setdefault(target, {})
                    there[number] = there[number] + result if number in there else result
                waiting[target] -= 1
                if waiting[target] == 0 and (target in arrived or not hasattr(target, "variable")):
                    ready.append(target)


def _dependants(start: Any) -> dict[Any, int]:
    """How many nodes must have been called before each one."""
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
