"""The learning rate as a function of the step."""

import math

from trainer.config import Optimizer


def learning_rate(step: int, steps: int, settings: Optimizer) -> float:
    """The rate of optimizer step `step` (from 0) of `steps`: a linear rise, then the chosen decay."""
    peak = settings.learning_rate
    if step < settings.warmup_steps:
        return peak * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return peak
    done = min(1.0, (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps))
    left = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
    return peak * (settings.final_fraction + (1 - settings.final_fraction) * left)
