"""AdamW as GPT-2 is trained with it, or Muon for the hidden matrices; and their state by parameter name."""

from collections.abc import Sequence

import torch
from torch import nn

from trainer.config.schema import Optimizer

Tensors = dict[str, dict[str, torch.Tensor]]
"""By parameter name, then by state: exp_avg, exp_avg_sq, step; momentum_buffer."""


def build(net: nn.Module, settings: Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that together update every parameter of `net`. Weight decay on matrices only."""
    named = [(name, value) for name, value in net.named_parameters() if value.requires_grad]
    hidden = [value for name, value in named if settings.name == "muon" and is_hidden_matrix(net, name, value)]
    chosen = {id(value) for value in hidden}
    rest = [value for _, value in named if id(value) not in chosen]
    groups = [
        {"params": [value for value in rest if value.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [value for value in rest if value.ndim < 2], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    if not hidden:
        return [adam]
    # match_rms_adamw scales its updates to AdamW's size, so one learning rate and decay serve both (arXiv 2502.16982).
    muon = torch.optim.Muon(
        hidden, lr=settings.learning_rate, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [adam, muon]


def is_hidden_matrix(net: nn.Module, name: str, value: torch.Tensor) -> bool:
    """Whether Muon is meant for it: a 2-D weight between two hidden layers, so no embedding and no head."""
    outer = [part.weight for part in (_embeddings(net), _head(net)) if isinstance(part, nn.Module)]
    positions = any(word in name for word in ("wpe", "position_embeddings", "token_type_embeddings", "qa_outputs"))
    return value.ndim == 2 and not positions and all(value is not weight for weight in outer)


def _embeddings(net: nn.Module) -> object:
    return net.get_input_embeddings() if hasattr(net, "get_input_embeddings") else None  # pyright: ignore


def _head(net: nn.Module) -> object:
    return net.get_output_embeddings() if hasattr(net, "get_output_embeddings") else None  # pyright: ignore


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def update(optimizers: Sequence[torch.optim.Optimizer], skipped: torch.Tensor) -> None:
    """Make the update, or none at all where `skipped` (fp32 scalar) is 1. No wait for the device with AdamW."""
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.Muon):  # has no fused form, which alone can leave a step out by itself
            if not bool(skipped):
                optimizer.step()
        else:
            # What GradScaler hands to fused optimizers: they read it on the device.
            optimizer.found_inf = skipped  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.step()
            del optimizer.found_inf  # pyright: ignore[reportAttributeAccessIssue]


def state(optimizers: Sequence[torch.optim.Optimizer], net: nn.Module) -> Tensors:
    """The optimizers' tensors by the names of net's parameters, which no engine or grouping changes."""
    return {
        name: dict(optimizer.state[value])
        for name, value in net.named_parameters()
        for optimizer in optimizers
        if optimizer.state.get(value)
    }


def load_state(optimizers: Sequence[torch.optim.Optimizer], net: nn.Module, state: Tensors) -> None:
    """Put back what `state` gave. What is there for another kind of optimizer is left aside: it begins afresh then."""
    named = {id(value): name for name, value in net.named_parameters()}
    for optimizer in optimizers:
        keys = {"momentum_buffer"} if isinstance(optimizer, torch.optim.Muon) else {"exp_avg", "exp_avg_sq", "step"}
        document = optimizer.state_dict()
        order = [named[id(value)] for group in optimizer.param_groups for value in group["params"]]
        document["state"] = {
            number: {key: state[name][key] for key in keys}
            for number, name in enumerate(order)
            if keys <= state.get(name, {}).keys()
        }
        optimizer.load_state_dict(document)
