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
