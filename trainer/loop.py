"""The training loop: all of it, for every task and at any number of workers.

A step is a fixed number of tokens; its micro-batches are numbered, dealt to the workers in turn, and the gradient is
the sum of the losses divided by the items of the step. So one worker or seven compute the same step, and a run goes on
from a checkpoint with whoever is there.
"""

import dataclasses
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

import torch

from trainer import checkpoint, distributed, metrics, optimizer
from trainer import config as configuration
from trainer.checkpoint import Snapshot
from trainer.config import Config
from trainer.data import share
from trainer.distributed import World
from trainer.errors import EXIT_RESTART, Stopped, TrainingError, UserError
from trainer.evaluate import Interrupted
from trainer.files import write_json
from trainer.saver import Saver, scheduled
from trainer.schedule import learning_rate
from trainer.work import Work


class Notice(Protocol):
    """Whether this worker was asked to end."""

    given: bool

    def listen(self) -> None: ...


def train(work: Work, config: Config, run: Path, world: World, notice: Notice) -> None:
    """Train from the newest checkpoint, or from scratch, to config.train.steps.

    Raises Stopped after an agreed early end, UserError and TrainingError when trying again cannot help.
    """
    settings, net, batches, validation = config.train, work.net, work.batches, work.validation
    dtype = distributed.precision(settings.precision, world.device)
    torch.set_float32_matmul_precision("high")  # TF32 where fp32 is asked for on an accelerator that has it

    work.module.to(world.device)
    adam = optimizer.build(net, config.optimizer)
    scaler = torch.amp.GradScaler(world.device.type, enabled=dtype == torch.float16)
    reporter = metrics.Reporter(
        run, settings.steps, world.size, world.round, config.metrics, world.first, dataclasses.asdict(config)
    )

    step, figures = 0, dict[str, Any]()
    found = distributed.from_first(world, checkpoint.newest(run) if world.first else None)
    if found is not None:
        wait_for(found.path / checkpoint.MANIFEST)
        work.load_model(found.path / "model")
        optimizer.load_state(adam, net, checkpoint.load_optimizer(found.path))
        if "scaler" in found.state:
            scaler.load_state_dict(found.state["scaler"])
        step, figures = found.step, dict(found.figures)
        if world.first:
            metrics.event("resume", step=step, checkpoint=found.path)
    reporter.start(step, figures)

    compiled = torch.compile(work.module) if settings.compile else work.module
    parallel = distributed.parallel(compiled, world)  # pyright: ignore[reportArgumentType]
    loss = gradient_norm = torch.zeros((), device=world.device)
    saver = Saver(run, config.checkpoint, work.save_model, configuration.resolved(config))

    def save() -> Path:
        check(step, loss, gradient_norm)
        if not world.first:
            return checkpoint.folder(run, step)
        state = {"scaler": scaler.state_dict()} if scaler.is_enabled() else {}
        return saver.save(step, Snapshot(net.state_dict(), optimizer.state(adam, net), state, figures))

    def written() -> None:
        """Wait for the newest checkpoint; a TrainingError when it could not be written."""
        try:
            saver.wait()
        except OSError as error:
            raise TrainingError(
                f"the last checkpoint cannot be written to {checkpoint.folder(run, step)} ({error.strerror}); free "
                "some space and start the training again: it resumes from the checkpoint before"
            ) from None

    def evaluate() -> None:
        value = validation.loss(parallel, world, dtype, lambda: notice.given)
        figures.setdefault("initial_validation_loss", value)
        figures["validation_loss"] = value
        reporter.status(**figures)
        reporter.validation(step, value)

    def stop() -> None:
        save()
        saver.wait()
        distributed.barrier(world)  # nobody leaves before the checkpoint is written
        raise Stopped

    notice.listen()
    try:
        if "initial_validation_loss" not in figures:
            evaluate()
        reporter.status(state="training")
        log_time, log_step = time.monotonic(), step
        while step < settings.steps:
            timed = world.first and saver.overdue()
            stopping, saving = distributed.any_of(world, notice.given, timed)
            if stopping:
                stop()
            if saving:
                save()

            optimizer.set_learning_rate(adam, learning_rate(step, settings.steps, config.optimizer))
            # A worker without a micro-batch (more workers than micro-batches) takes part in the exchange with weight 0.
            mine = list(share(batches.per_step, world.rank, world.size))
            loss = torch.zeros((), device=world.device)
            for number in mine or [0]:
                batch = [torch.from_numpy(part).to(world.device) for part in batches.get(step, number)]
                with distributed.without_sync(parallel, skip=number != (mine or [0])[-1]):
                    with torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
                        total = parallel(*batch) * (1.0 if mine else 0.0)
                    # DDP divides the sum over workers by their number; multiplying by it leaves the plain sum.
                    scaler.scale(total * (world.size / work.items_per_step)).backward()
                loss += total.detach() / work.items_per_step
            scaler.unscale_(adam)
            gradient_norm = torch.nn.utils.clip_grad_norm_(net.parameters(), config.optimizer.clip or float("inf"))
            scaler.step(adam)
            scaler.update()
            adam.zero_grad(set_to_none=True)
            step += 1

            if step % config.metrics.every == 0 or step == settings.steps:
                mean = float(distributed.summed(world, loss)[0])
                check(step, torch.tensor(mean), gradient_norm if dtype != torch.float16 else torch.zeros(()))
                seconds = (time.monotonic() - log_time) / (step - log_step)
                rate = work.tokens_per_step / seconds
                reporter.training(
                    metrics.StepFigures(
                        step=step,
                        loss=mean,
                        learning_rate=adam.param_groups[0]["lr"],
                        gradient_norm=float(gradient_norm),
                        tokens_per_second=rate,
                        tokens_per_second_per_device=rate / world.size,
                        samples_per_second=work.samples_per_step / seconds,
                        eta_seconds=seconds * (settings.steps - step),
                        epoch=batches.epoch(step),
                        step_seconds=seconds,
                        data_seconds=0.0,
                        compute_seconds=seconds,
                        communication_seconds=0.0,
                        checkpoint_seconds=0.0,
                        memory_bytes=0,
                        bytes_sent_per_step=0,
                    )
                )
                log_time, log_step = time.monotonic(), step
            pause = time.monotonic()
            if config.evaluation.every and step % config.evaluation.every == 0 and step < settings.steps:
                evaluate()
            if scheduled(step, config.checkpoint) and step < settings.steps:
                save()
            log_time += time.monotonic() - pause  # tokens per second are those of training alone
        evaluate()
        path = save()
        written()
        if world.first:
            finish(work, run, step, figures, path)
            reporter.status(state="done", step=step, eta_seconds=0)
        distributed.barrier(world)
    except Interrupted:
        stop()
    except TrainingError as error:
        reporter.status(state="failed", message=str(error))
        raise
    except RuntimeError as error:
        if world.size == 1:
            raise
        leave_lost_peers(world.rank, error)
    finally:
        reporter.close()


def check(step: int, loss: Any, gradient_norm: Any) -> None:
    """Raise TrainingError when the step's loss or gradient is not a number. Waits for the device."""
    import math

    for name, value in (("loss", float(loss)), ("gradient norm", float(gradient_norm))):
        if not math.isfinite(value):
            raise TrainingError(
                f"the {name} of step {step} is {value}: training diverged; lower optimizer.learning_rate, lengthen "
                "optimizer.warmup_steps or use train.precision=fp32; the last good checkpoint is kept"
            )


def finish(work: Work, run: Path, step: int, figures: dict[str, Any], path: Path) -> None:
    """Write DONE, the last file of a run."""
    content = {"step": step, **figures, "checkpoint": str(path), "sample": work.sample() if work.sample else ""}
    write_json(run / metrics.DONE, content | work.results())


def wait_for(path: Path, seconds: float = 60.0) -> None:
    """Wait until a file that another machine wrote can be seen here: NFS keeps directory listings for up to 60 s."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"{path} cannot be seen by every worker; put run.directory on storage that all of them mount"
            )
        time.sleep(0.5)


def leave_lost_peers(rank: int, error: RuntimeError) -> None:
    """End at once when the exchange with the others broke: the launcher then makes a new round.

    No clean-up: destroying a process group whose peers are gone can hang.
    """
    text = " ".join(str(error).split())[:300]
    if not any(word in text for word in ("onnection", "imed out", "NCCL", "gloo", "Gloo", "peer")):
        traceback.print_exc()
    metrics.say(metrics.line(event="peers_lost", rank=rank, reason=repr(text)), sys.stderr)
    sys.stdout.flush()
    os._exit(EXIT_RESTART)
