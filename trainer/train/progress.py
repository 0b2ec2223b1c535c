"""Exact counts of updates and of skipped steps, without a wait for the device.

A step whose gradient is not finite is skipped: it updates nothing and does not advance the learning rate. The flag is
on the device. It is copied to the host behind the step and read when the next step needs it for its learning rate; by
then the device works on that next step, so nobody waits.
"""

from typing import Any

import torch

from trainer import log
from trainer.config.schema import Config
from trainer.errors import TrainingError
from trainer.parallel.engine import Outcome
from trainer.parallel.world import World


class Progress:
    def __init__(self, limit: int, first: bool) -> None:
        self._limit, self._first = limit, first
        self._pending: tuple[int, Later] | None = None
        self.updates = 0
        """Optimizer updates since the run's start: what the learning rate depends on."""
        self.skipped = 0
        """Steps since the run's start that updated nothing."""
        self.in_a_row = 0
        """Skipped steps in a row, up to the latest step."""
        self.validated = -1
        """The step of the newest validation."""

    def load(self, state: dict[str, Any], step: int) -> None:
        self.skipped = int(state.get("skipped_steps", 0))
        self.updates = int(state.get("updates", step - self.skipped))
        self.validated = int(state.get("validated_step", step))

    def state(self) -> dict[str, int]:
        """For the manifest; call settle() before."""
        return {"updates": self.updates, "skipped_steps": self.skipped, "validated_step": self.validated}

    def unvalidated(self, step: int, config: Config) -> bool:
        """Whether a validation is due after `step`, which is not the run's last.

        A termination notice interrupts one. It is due again after the first step of the next round, not before: notices
        that come more often than a validation takes must not keep a training from its steps.
        """
        every = config.evaluation.every
        return every > 0 and step // every > self.validated // every and step < config.steps

    def note(self, step: int, outcome: Outcome) -> None:
        """Record the outcome of `step` (from 1), to be read later."""
        self.settle()
        self._pending = (step, Later(outcome.skipped))

    def settle(self) -> None:
        """Read the outcome of the latest step.

        Raises TrainingError if too many were skipped in a row: on every worker, because all have the same outcome.
        """
        if self._pending is None:
            return
        (step, later), self._pending = self._pending, None
        if not later.value():
            self.updates, self.in_a_row = self.updates + 1, 0
            return
        self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        if self._first:
            log.event("step_skipped", step=step, in_a_row=self.in_a_row, reason="'the gradient is not finite'")
        if self.in_a_row >= self._limit:
            raise TrainingError(
                f"the gradients of the {self.in_a_row} steps up to {step} were not finite: training diverged; lower "
                "optimizer.learning_rate, lengthen optimizer.warmup_steps or use precision=fp32 or bf16; the "
                "last good checkpoint is kept"
            )


class Later:
    """A number on the device, copied to the host behind the work queued now, and read when it is needed."""

    def __init__(self, value: torch.Tensor) -> None:
        self._event = None
        if value.is_cuda:
            self._host = torch.empty_like(value, device="cpu", pin_memory=True)
            self._host.copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = value

    def value(self) -> float:
        if self._event is not None:
            self._event.synchronize()
        return float(self._host)


class Schedule:
    """After which steps a checkpoint is written; after the last one is always."""

    def __init__(self, config: Config) -> None:
        self._last, self._every = config.steps, (config.checkpoint.every_steps, config.checkpoint.keep_every)
        self._due = False

    def saves(self, step: int, overdue: bool, progress: Progress) -> bool:
        """Whether to save after `step`: the same answer on every worker. To be asked after each step, once.

        overdue: the time for it has come. After a skipped step none is written, but after the next that is not.
        """
        self._due = self._due or overdue or any(every and step % every == 0 for every in self._every)
        if not self._due or step == self._last:
            return False
        progress.settle()
        self._due = progress.in_a_row > 0
        return not self._due


def check_first_loss(loss: float, expected: float | None, first: bool) -> None:
    """Warn if the loss before the first step is not that of an untrained model.

    Initial weights add up to half a nat to the logarithm of the vocabulary (GPT-2 XL: 0.3).
    """
    if first and expected is not None and not abs(loss - expected) < 0.75:
        log.warn(
            "first_loss_unexpected",
            loss=loss,
            expected=expected,
            advice="'check the tokenizer, the initial weights and compile; training goes on'",
        )


def check_weights(weights: dict[str, torch.Tensor], step: int, world: World) -> None:
    """Raise TrainingError on all workers if weights to be saved are not finite. Waits for the device."""
    norms = {name: value.detach().float().norm() for name, value in weights.items() if value.is_floating_point()}
    finite = torch.stack(list(norms.values())).isfinite().tolist() if norms else []
    own = [name for name, fine in zip(norms, finite, strict=True) if not fine]
    # With FSDP only the first worker has weights.
    if names := list(dict.fromkeys(name for part in world.gather(own) for name in part)):
        raise TrainingError(
            f"the weights after step {step} are not finite ({', '.join(names[:3])}): training diverged; lower "
            "optimizer.learning_rate; this checkpoint is not written, the last good one is kept"
        )
