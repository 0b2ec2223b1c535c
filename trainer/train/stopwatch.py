"""Where the time between two log lines went."""

import resource
import time

import torch

from trainer.parallel.engine import Engine
from trainer.parallel.world import World
from trainer.tasks.work import Work
from trainer.train.metrics import StepFigures
from trainer.train.peaks import peak


class Stopwatch:
    """Measured on the host, with two readings of its clock a micro-batch; what only the device knows is read at log
    steps, when the host waits for it anyway."""

    def __init__(self, work: Work, world: World) -> None:
        self._work, self._world, self._peak = work, world, peak(world.device)
        self.data = 0.0
        """Seconds that the loop has waited for micro-batches."""
        self.checkpoint = 0.0
        """Seconds that checkpoints have held the loop up."""
        self._paused = 0.0
        self._steps = 0
        self._since = time.perf_counter()

    def start(self) -> None:
        """Begin to count."""
        self.data = self.checkpoint = self._paused = 0.0
        self._steps, self._since = 0, time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Leave out time that is no training: evaluations, checkpoints."""
        self._paused += seconds

    def stepped(self) -> None:
        self._steps += 1

    def figures(
        self,
        step: int,
        steps: int,
        loss: float,
        rate: float,
        norm: float,
        engine: Engine,
        skipped: int,
        activations: dict[str, float],
    ) -> StepFigures:
        """The figures since the last call, and begin anew. The device must have finished the step."""
        work, count = self._work, max(1, self._steps)
        seconds = (time.perf_counter() - self._since - self._paused) / count
        waited, sent = engine.take_communication()
        data, communication = self.data / count, waited / count
        tokens = work.tokens_per_step / seconds
        per_device = tokens / self._world.size
        figures = StepFigures(
            step=step,
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            tokens_per_second=tokens,
            tokens_per_second_per_device=per_device,
            samples_per_second=work.samples_per_step / seconds,
            eta_seconds=seconds * (steps - step),
            epoch=work.batches.epoch(step),
            step_seconds=seconds,
            data_seconds=data,
            compute_seconds=max(0.0, seconds - data - communication),
            communication_seconds=communication,
            checkpoint_seconds=self.checkpoint / count,
            memory_bytes=memory(self._world.device),
            bytes_sent_per_step=round(sent / count),
            skipped_steps=skipped,
            loss_scale=engine.loss_scale,
            mfu=work.flops_per_token * per_device / self._peak if self._peak and work.flops_per_token else None,
            activations=activations,
        )
        self.start()
        return figures


def memory(device: torch.device) -> int:
    """Most bytes so far: of the device, or of this process (ru_maxrss counts in KiB)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
