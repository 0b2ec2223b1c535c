"""Copies of the weights in the type of the matrix products, beside the fp32 parameters of the optimizer.

Autocast makes such copies at each micro-batch, and inductor makes them again in the backward pass. Here they are made
once per optimizer step. The head's matrix is padded in its copy, and nowhere else.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

PADDING = 128
"""The vocabulary is padded to a multiple of this: 50,257 columns do not fit tensor cores, with tiles of 64 or 128."""


_adding = False


@contextlib.contextmanager
def adding(allowed: bool) -> Iterator[None]:
    """Let the backward pass of what is computed inside add to existing gradients itself, if `allowed`.

    It then reads a bf16 gradient and adds it, in one pass over memory where autograd makes two. Autograd gets no
    gradient for these parameters: allow it only where no hook waits for one, such as that of DDP's last pass.
    """
    global _adding
    before, _adding = _adding, allowed
    try:
        yield
    finally:
        _adding = before


class WeightCache:
    """The copies of one model's parameters.

    A copy is refreshed when its parameter has changed, and always while there is no gradient: at the first micro-batch
    of a step. The second rule catches changes that bypass torch's version counter (`.data`).
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}
        self._fresh = True

    def begin(self, first: torch.Tensor) -> None:
        """Call before each pass, with a parameter that gets a gradient; frozen ones (a teacher's) are copied once."""
        self._fresh = first.requires_grad and first.grad is None

    def of(self, parameters: list[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Copies that pass gradients on to the parameters; the parameters themselves if they have the type already."""
        if all(parameter.dtype == dtype for parameter in parameters):
            return tuple(parameters)
        return _Cast.apply(*[self._copy(parameter, dtype) for parameter in parameters], *parameters)

    def padded(self, matrix: torch.Tensor, dtype: torch.dtype, detached: bool) -> torch.Tensor:
        """The matrix, padded with rows of zeros to a multiple of PADDING. detached: pass no gradient on."""
        rows = -(-len(matrix) // PADDING) * PADDING
        if rows == len(matrix) and dtype == matrix.dtype:
            return matrix.detach() if detached else matrix
        copy = self._copy(matrix, dtype, rows)
        return copy if detached else _Cast.apply(copy, matrix)[0]

    @torch.no_grad()
    def _copy(self, parameter: torch.Tensor, dtype: torch.dtype, rows: int = 0) -> torch.Tensor:
        version, copy = self._kept.get(id(parameter), (-1, None))
        if copy is None or copy.dtype != dtype or copy.device != parameter.device:
            shape = (rows or len(parameter), *parameter.shape[1:])
            version, copy = -1, torch.zeros(shape, dtype=dtype, device=parameter.device)
        if self._fresh or version != parameter._version:
            copy[: len(parameter)].copy_(parameter)
            self._kept[id(parameter)] = parameter._version, copy
        return copy


class _Cast(torch.autograd.Function):
    """copies, parameters -> copies; for autograd, each copy is its parameter, cast."""

    @staticmethod
    def forward(ctx: Any, *both: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copies, parameters = both[: len(both) // 2], both[len(both) // 2 :]
        ctx.parameters, ctx.adding = parameters, _adding
        return tuple(copy.detach() for copy in copies)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parameters, nothing = ctx.parameters, [None] * len(outer)
        parts = [gradient[: len(parameter)] for gradient, parameter in zip(outer, parameters, strict=True)]
        if not ctx.adding or any(parameter.grad is None for parameter in parameters):
            return (*nothing, *(part.to(parameter.dtype) for part, parameter in zip(parts, parameters, strict=True)))
        for part, parameter in zip(parts, parameters, strict=True):
            parameter.grad.add_(part)
        return (*nothing, *nothing)
