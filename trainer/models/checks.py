"""Checks of a causal language model on a few tokens, before it is trained: it learns what its own code computes.

A configuration can make transformers' forward pass add a loss that ours leaves out, or a decoder see later tokens. Both
train without an error, and the loss looks fine.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from trainer.errors import UserError, one_line
from trainer.models.weight_cache import WeightCache

LENGTH = 8
"""Tokens in each of two rows, which differ in the last."""
NOISE, ROUNDED = 1e-3, 0.03
"""Relative differences that rounding makes: with weights in fp32 (1e-6; TF32 on an accelerator 5e-4), and in half."""
ADDED = 1e-5
"""Relative difference between a model's loss and that of its own logits, which both are computed in fp32."""
MOVED = 1e-5
"""Relative difference of the logits before a changed token in fp32. A causal model computes the same numbers again, an
encoder with fresh weights moves them by 1e-3, one with learned weights by 0.1."""


@torch.no_grad()
def check(key: str, module: Any, dtype: torch.dtype) -> None:
    """Compare our loss with that of `module.net` itself, and its logits before and after a change of the last token.

    key: the setting that names the model, for messages. dtype: that of the products. Neither weights, modes nor random
    states change. Raises UserError if the losses differ, or earlier logits move.
    """
    net, kind = module.net, module.net.config.model_type
    device, modes = net.device, {part: part.training for part in module.modules()}
    half = dtype != torch.float32 and any(value.dtype == dtype for value in net.parameters())
    rows = _rows(net.config.get_text_config(), device)
    inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def losses() -> tuple[Any, torch.Tensor]:
        module.eval()
        return net(input_ids=rows, labels=rows, use_cache=False), module(inputs, targets)

    try:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.autocast(device.type, dtype, enabled=half):
            given, ours = compute(key, kind, losses)
    finally:
        module._weight_cache = WeightCache()  # FSDP divides the weights that these belong to
        for part, mode in modes.items():
            part.training = mode
    logits = given.logits.float()
    before, after = logits[:, :-1]
    if not before.isfinite().all():
        return  # weights that overflow: the loop and its loss scaling say so
    moved = float((before - after).norm() / before.norm())
    if moved > (ROUNDED if half else MOVED):
        raise UserError(
            f"{key}: this {kind} model sees later tokens: its logits before a changed token differ by {moved:.2g} of "
            "their size; name a causal language model, or make its config.json that of a decoder (is_decoder: true for "
            "BERT and its heirs, no use_bidirectional_attention)"
        )
    own = float(F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten()))
    theirs, ours = float(given.loss), float(ours) / targets.numel()
    # A loss that balances experts may be too small for half precision to show.
    added = getattr(given, "aux_loss", None) is not None and (
        getattr(net.config.get_text_config(), "router_aux_loss_coef", 0.0) or abs(theirs - own) > ADDED * own
    )
    if added or abs(theirs - own) > ADDED * own or abs(ours - own) > (ROUNDED if half else NOISE) * own:
        raise UserError(
            f"{key}: the loss of this {kind} model in transformers is {theirs:.5f} nats on a test, that of its next "
            f"tokens {own:.5f}, and {ours:.5f} as it is trained here: it learns something else; name another model, or "
            "correct its config.json (loss_type, or output_router_logits: false for a mixture of experts)"
        )


def compute(key: str, kind: str, task: Callable[[], Any]) -> Any:
    """task(). Raises UserError if the model cannot compute a text of its vocabulary."""
    try:
        return task()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever the code of a model raises
        if torch.cuda.is_available() and isinstance(error, RuntimeError):
            raise  # the device may be broken: failures.py judges
        raise UserError(
            f"{key}: this {kind} model cannot compute a text ({one_line(error)}); name a causal language model"
        ) from None


@torch.no_grad()
def mixes_texts(key: str, net: Any) -> bool:
    """Whether a packed text depends on the text before it: relative difference 0.01 or more if so, else rounding."""
    training = net.training
    row = torch.tensor([[1, 2, 3, 4], [5, 6, 3, 4]], device=net.device)
    position = torch.tensor([[0, 1, 0, 1]] * 2, device=net.device)
    given = {"input_ids": row, "position_ids": position, "use_cache": False}
    output = compute(key, net.config.model_type, lambda: net.eval().base_model(**given))
    hidden = output.last_hidden_state.float()
    net.train(training)
    return bool((hidden[0, 2:] - hidden[1, 2:]).norm() > 1e-3 * hidden[0, 2:].norm())


def positions(config: Any) -> int | None:
    """The longest sequence that a model of this shape takes, in tokens; None without a limit (XLNet says -1)."""
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    return most if most is None or most > 0 else None


def _rows(config: Any, device: torch.device) -> torch.Tensor:
    """Two rows of tokens that differ in the last. Tokens with a meaning of their own are left out."""
    length = min(LENGTH, positions(config) or LENGTH)
    named = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")]  # CodeGen's names no padding
    special = {token for value in named for token in (value if isinstance(value, list) else [value])}
    words = [word for word in range(config.vocab_size) if word not in special][: length + 1]
    return torch.tensor([words[:-1], [*words[: length - 1], words[-1]]], device=device)
