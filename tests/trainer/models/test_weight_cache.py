"""Gradients of the weights' copies: added in place where nobody listens, and the same as autograd's."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.models import networks
from trainer.models.gpt2 import LanguageModel
from trainer.models.weight_cache import adding

VOCABULARY = 300


class Widened(TorchDispatchMode):
    """Counts how often a tensor of this shape is copied to fp32."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self._shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (kwargs or {}).get("dtype")
        self.count += (
            func is torch.ops.aten._to_copy.default and given == torch.float32 and args[0].shape == self._shape
        )
        return func(*args, **(kwargs or {}))


def test_gradients_are_added_in_place_where_nobody_listens_and_are_the_same() -> None:
    """Three passes of one step: the first makes the gradients, the others add to them, bit for bit as autograd does."""
    found: dict[bool, dict[str, torch.Tensor]] = {}
    for allowed in (False, True):
        net = cast("Any", networks.from_preset("tiny", VOCABULARY, 0, seed=1))
        model, widened = LanguageModel(net), Widened(net.transformer.h[0].mlp.c_fc.weight.shape)
        for seed in range(3):
            ids = torch.randint(0, VOCABULARY, (2, 33), generator=torch.Generator().manual_seed(seed))
            with adding(allowed), torch.autocast("cpu", torch.bfloat16):
                loss = model(ids[:, :-1], ids[:, 1:])
            with widened:
                loss.backward()
        found[allowed] = {name: value.grad for name, value in net.named_parameters() if value.grad is not None}
        assert widened.count == 2 * (1 if allowed else 3), "one in each of two layers"
    assert found[True].keys() == found[False].keys()
    for name, value in found[True].items():
        assert torch.equal(value, found[False][name]), name
