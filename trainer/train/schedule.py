"""The learning rate as a function of the updates made so far.

Updates, not steps: a step whose gradients overflowed changes nothing, and does not count (DeepSpeed's rule, too).
"""

import math

from trainer.config.schema import Optimizer


def learning_rate(update: int, steps: int, settings: Optimizer) -> float:
    """The rate of update number `update` (from 0) in a run of `steps`: a rise to the peak, then the chosen decay."""
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

    `iteration` is its last_batch_iteration: one less than the updates made, as it steps after the optimizer; and it
    begins with a rate of 0. Written here because the real one would have to be carried, saved and resumed along.
    """
    warmup = max(2, warmup)
    if iteration < 0:
        return 0.0
    if iteration < warmup:
        return 1.0 / math.log(warmup) * math.log(iteration + 1) if logarithmic else iteration / warmup
    return max(0.0, (length - iteration) / max(1.0, length - warmup))
