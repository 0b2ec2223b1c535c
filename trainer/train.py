"""One worker of a training run: `python -m trainer.train [--config FILE.yaml] [section.key=value ...]`.

The loop below is the whole of the training. A step is a fixed number of tokens; its micro-batches are numbered, dealt
to the workers in turn, and the gradient is the sum of the token losses divided by the tokens of the step. So one worker
or seven compute the same step, and a run goes on from a checkpoint with whoever is there.
"""

import dataclasses
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from trainer import config as configuration
from trainer import metrics
from trainer.config import Config
from trainer.errors import EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED, TrainingError, UserError
from trainer.files import write_json


class Notice:
    """Whether this worker was asked to end (SIGTERM: a spot machine's notice, a scale-in, a new member)."""

    def __init__(self) -> None:
        self.given = False

    def listen(self) -> None:
        """From here on SIGTERM only sets a flag; before, it ends the process at once, as there is nothing to save."""
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.given = True


class Stopped(Exception):
    """All workers agreed to stop after a step, and the checkpoint of that step is written."""


def main(arguments: list[str]) -> int:
    """The exit code of this worker; see errors.py."""
    notice = Notice()
    try:
        config = configuration.load(arguments)
        run = configuration.run_directory(config)
        train(config, run, notice)
    except Stopped:
        return EXIT_TERMINATED if notice.given else EXIT_RESTART
    except (UserError, TrainingError) as error:
        report_failure(str(error))
        return EXIT_FATAL
    return EXIT_DONE


def train(config: Config, run: Path, notice: Notice) -> None:
    """Train from the newest checkpoint, or from scratch, to config.train.steps.

    Raises Stopped after an agreed early end, UserError and TrainingError when trying again cannot help.
    """
    import torch

    from trainer import checkpoint, distributed, model, optimizer
    from trainer.data import Batches, open_dataset, share
    from trainer.evaluate import Interrupted, Validation
    from trainer.schedule import learning_rate

    settings = config.train
    dataset = open_dataset(config.data.directory)
    world = distributed.join(config.run.collective_timeout_seconds)
    metrics.event("round", round=world.round, world_size=world.size, rank=world.rank)
    dtype = distributed.precision(settings.precision, world.device)
    torch.set_float32_matmul_precision("high")  # TF32 where fp32 is asked for on an accelerator that has it

    net = model.build(config.model.preset, dataset.vocabulary, dataset.end_of_text, config.run.seed)
    net.to(world.device)  # pyright: ignore[reportArgumentType]
    adam = optimizer.build(net, config.optimizer)
    scaler = torch.amp.GradScaler(world.device.type, enabled=dtype == torch.float16)
    reporter = metrics.Reporter(
        run, settings.steps, world.size, world.round, config.metrics, world.first, dataclasses.asdict(config)
    )

    step, figures = 0, dict[str, Any]()
    found = distributed.from_first(world, checkpoint.newest(run) if world.first else None)
    if found is not None:
        wait_for(found.path / checkpoint.MANIFEST)
        checkpoint.load_weights(found.path, net)
        state = checkpoint.load_optimizer(found.path, world.device)
        adam.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        step, figures = found.step, dict(found.figures)
        if world.first:
            metrics.event("resume", step=step, checkpoint=found.path)
    reporter.start(step, figures)

    compiled = torch.compile(net) if settings.compile else net
    parallel = distributed.parallel(compiled, world)  # pyright: ignore[reportArgumentType]
    batches = Batches(
        dataset.train, settings.sequence_length, settings.micro_batch, settings.tokens_per_step, config.run.seed
    )
    validation = Validation(
        dataset.validation, settings.sequence_length, settings.micro_batch, config.evaluation.batches
    )
    loss = gradient_norm = torch.zeros((), device=world.device)
    saved_step, saved_at = step, time.monotonic()

    def save(last: bool = False) -> Path:
        nonlocal saved_step, saved_at
        check(step, loss, gradient_norm)
        path = checkpoint.folder(run, step)
        if world.first:
            try:
                checkpoint.save(
                    run,
                    step,
                    net,
                    {"optimizer": adam.state_dict(), "scaler": scaler.state_dict()},
                    configuration.resolved(config),
                    dataset.directory / "tokenizer.json",
                    figures,
                    config.checkpoint.keep,
                )
                metrics.event("checkpoint", step=step)
            except OSError as error:
                if last:
                    raise TrainingError(
                        f"the last checkpoint cannot be written to {path} ({error.strerror}); free some space and "
                        "start the training again: it resumes from the checkpoint before"
                    ) from None
                metrics.event("checkpoint_failed", step=step, reason=repr(error.strerror), action="training goes on")
        saved_step, saved_at = step, time.monotonic()
        return path

    def evaluate() -> None:
        value = validation.loss(parallel, world, dtype, lambda: notice.given)
        figures.setdefault("initial_validation_loss", value)
        figures["validation_loss"] = value
        reporter.status(**figures)
        reporter.validation(step, value)

    def stop() -> None:
        save()
        distributed.barrier(world)  # nobody leaves before the checkpoint is written
        raise Stopped

    notice.listen()
    try:
        if "initial_validation_loss" not in figures:
            evaluate()
        reporter.status(state="training")
        log_time, log_step = time.monotonic(), step
        while step < settings.steps:
            minutes = (time.monotonic() - saved_at) / 60
            timed = world.first and 0 < config.checkpoint.every_minutes <= minutes
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
                inputs, targets = (torch.from_numpy(part).to(world.device) for part in batches.get(step, number))
                with distributed.without_sync(parallel, skip=number != (mine or [0])[-1]):
                    with torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
                        total = model.token_loss(parallel, inputs, targets) * (1.0 if mine else 0.0)
                    # DDP divides the sum over workers by their number; multiplying by it leaves the plain sum.
                    scaler.scale(total * (world.size / settings.tokens_per_step)).backward()
                loss += total.detach() / settings.tokens_per_step
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
                rate = settings.tokens_per_step / seconds
                reporter.training(
                    metrics.StepFigures(
                        step=step,
                        loss=mean,
                        learning_rate=adam.param_groups[0]["lr"],
                        gradient_norm=float(gradient_norm),
                        tokens_per_second=rate,
                        tokens_per_second_per_device=rate / world.size,
                        samples_per_second=rate / settings.sequence_length,
                        eta_seconds=seconds * (settings.steps - step),
                        epoch=step * settings.tokens_per_step / len(dataset.train),
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
            if config.checkpoint.every_steps and step % config.checkpoint.every_steps == 0 and step < settings.steps:
                save()
            log_time += time.monotonic() - pause  # tokens per second are those of training alone
        evaluate()
        path = save(last=True)
        if world.first:
            finish(config, run, step, figures, path, net, dataset.directory / "tokenizer.json")
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
    distributed.leave()


def check(step: int, loss: Any, gradient_norm: Any) -> None:
    """Raise TrainingError when the step's loss or gradient is not a number. Waits for the device."""
    import math

    for name, value in (("loss", float(loss)), ("gradient norm", float(gradient_norm))):
        if not math.isfinite(value):
            raise TrainingError(
                f"the {name} of step {step} is {value}: training diverged; lower optimizer.learning_rate, lengthen "
                "optimizer.warmup_steps or use train.precision=fp32; the last good checkpoint is kept"
            )


def finish(
    config: Config, run: Path, step: int, figures: dict[str, Any], path: Path, net: Any, tokenizer: Path
) -> None:
    """Write DONE, the last file of a run."""
    from tokenizers import Tokenizer

    from trainer.sample import generate

    text = ""
    if config.evaluation.sample_tokens > 0:
        text = generate(
            net,
            Tokenizer.from_file(str(tokenizer)),
            config.evaluation.prompt,
            config.evaluation.sample_tokens,
            temperature=0.8,
            top_k=50,
            seed=config.run.seed,
        )
    write_json(run / metrics.DONE, {"step": step, **figures, "checkpoint": str(path), "sample": text})


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


def report_failure(message: str) -> None:
    """Tell people on stderr, and the launcher through the error file that torch's agent names."""
    metrics.say(message, sys.stderr)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        content = {"message": message, "extraInfo": {"py_callstack": "", "timestamp": str(int(time.time()))}}
        write_json(Path(path), {"message": content}, durable=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
