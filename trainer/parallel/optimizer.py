"""AdamW as GPT-2 is trained with it, or Muon for the hidden matrices; their learning rate, and their state by name."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from trainer.config.settings import Optimizer
from trainer.models import adapters
from trainer.parallel.muon import Muon

Tensors = dict[str, dict[str, torch.Tensor]]
"""Optimizer state by parameter name, then by kind: exp_avg, exp_avg_sq, step; momentum_buffer."""


def make_optimizers(net: nn.Module, settings: Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that together update every parameter of `net`. Weight decay on matrices only.

    Their learning rate is set before each update.
    """
    named = adapters.trained(net)
    hidden = [value for name, value in named.items() if settings.name == "muon" and is_hidden_matrix(net, name, value)]
    chosen = {id(value) for value in hidden}
    rest = [value for value in named.values() if id(value) not in chosen]
    groups = [
        {"params": [value for value in rest if value.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [value for value in rest if value.ndim < 2], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    if not hidden:
        return [adam]
    from transformers.pytorch_utils import Conv1D  # transformers takes a second, and metrics.py needs none

    turned = {id(part.weight) for part in net.modules() if isinstance(part, Conv1D)}
    ordinary, transposed = ([value for value in hidden if (id(value) in turned) == other] for other in (False, True))
    return [adam, Muon(ordinary, transposed, settings.weight_decay)]


def is_hidden_matrix(net: nn.Module, name: str, value: torch.Tensor) -> bool:
    """Whether Muon is meant for this weight: 2-D, between two hidden layers, so no embedding and no head."""
    methods = (getattr(net, name, None) for name in ("get_input_embeddings", "get_output_embeddings"))
    outer = [part.weight for method in methods if method and isinstance(part := method(), nn.Module)]
    outer += [part.weight for part in net.modules() if isinstance(part, nn.Embedding)]  # positions, token types
    return value.ndim == 2 and "qa_outputs" not in name and all(value is not weight for weight in outer)


def learning_rate(update: int, steps: int, settings: Optimizer) -> float:
    """The rate of update number `update` (from 0) in a run of `steps`: a rise to the peak, then the chosen decay.

    Updates, not steps: a step whose gradients overflowed changes nothing and does not count, as in DeepSpeed.
    """
    length = settings.schedule_steps or steps
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if settings.schedule in ("warmup_decay_log", "warmup_decay_linear"):
        return peak * _warmup_decay(update - 1, length, warmup, settings.schedule == "warmup_decay_log")
    if update < warmup:
        return peak * (update + 1) / warmup
    if settings.schedule == "constant":
        return peak
    if settings.schedule == "wsd":  # warm-up, stable, decay (arXiv 2404.06395)
        begin = length - round(settings.decay_fraction * (length - warmup))
        left = 1 - _part(update - begin, length - begin)
    else:
        done = _part(update - warmup, length - warmup)
        left = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
    return peak * (settings.final_fraction + (1 - settings.final_fraction) * left)


def _part(done: int, whole: int) -> float:
    return min(1.0, max(0.0, done / max(1, whole)))


def _warmup_decay(iteration: int, length: int, warmup: int, logarithmic: bool) -> float:
    """DeepSpeed's WarmupDecayLR (runtime/lr_schedules.py) with warmup_min_lr 0, as a part of its warmup_max_lr.

    `iteration` is its last_batch_iteration: one less than the updates made, because it steps after the optimizer. It
    begins with a rate of 0. Written here as a function: the original has state to save and resume.
    """
    warmup = max(2, warmup)
    if iteration < 0:
        return 0.0
    if iteration < warmup:
        return 1.0 / math.log(warmup) * math.log(iteration + 1) if logarithmic else iteration / warmup
    return max(0.0, (length - iteration) / max(1.0, length - warmup))


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def update(optimizers: Sequence[torch.optim.Optimizer], skipped: torch.Tensor) -> None:
    """Make the update, or none if `skipped` (fp32 scalar) is 1. AdamW does so without a wait for the device."""
    for optimizer in optimizers:
        if isinstance(optimizer, Muon):  # it has no fused form, and only those skip a step on the device
            if not bool(skipped):
                optimizer.step()
        else:
            # As GradScaler does: fused optimizers read it on the device.
            optimizer.found_inf = skipped  # pyrefly: ignore[missing-attribute]
            optimizer.step()
            del optimizer.found_inf  # pyrefly: ignore[missing-attribute]


def state(optimizers: Sequence[torch.optim.Optimizer], net: nn.Module) -> Tensors:
    """The optimizers' tensors by the names of net's parameters, which no engine or grouping changes."""
    return {
        name: dict(optimizer.state[value])
        for name, value in net.named_parameters()
        for optimizer in optimizers
        if optimizer.state.get(value)
    }


def load_state(optimizers: Sequence[torch.optim.Optimizer], net: nn.Module, state: Tensors) -> None:
    """Restore what `state` returned. State of another kind of optimizer is ignored: this one then begins afresh."""
    named = {id(value): name for name, value in net.named_parameters()}
    for optimizer in optimizers:
        keys = {"momentum_buffer"} if isinstance(optimizer, Muon) else {"exp_avg", "exp_avg_sq", "step"}
        document = optimizer.state_dict()
        order = [named[id(value)] for group in optimizer.param_groups for value in group["params"]]
        document["state"] = {
            number: {key: state[name][key] for key in keys}
            for number, name in enumerate(order)
            if keys <= state.get(name, {}).keys()
        }
        optimizer.load_state_dict(document)
