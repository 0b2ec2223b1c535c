"""AdamW as GPT-2 is trained with it: fused, weight decay on matrices only."""

import torch
from torch import nn

from trainer.config import Optimizer


def build(model: nn.Module, settings: Optimizer) -> torch.optim.AdamW:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), eps=1e-8, fused=True
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def state(optimizer: torch.optim.Optimizer, net: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """The optimizer's tensors by the names of net's parameters, which no engine or grouping changes."""
    return {name: optimizer.state[value] for name, value in net.named_parameters() if value in optimizer.state}


def load_state(optimizer: torch.optim.Optimizer, net: nn.Module, state: dict[str, dict[str, torch.Tensor]]) -> None:
    """Put back what `state` gave."""
    named = {id(value): name for name, value in net.named_parameters()}
    document = optimizer.state_dict()
    order = [named[id(value)] for group in optimizer.param_groups for value in group["params"]]
    document["state"] = {number: dict(state[name]) for number, name in enumerate(order) if name in state}
    optimizer.load_state_dict(document)
