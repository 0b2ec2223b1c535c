"""The training loop for every task, every engine and any number of workers.

A step is a fixed number of tokens. Its micro-batches are numbered and dealt to the workers in turn; the gradient is
that of the summed losses, divided by the items of the step. So one worker or seven compute the same step, and a run
resumes from a checkpoint at any world size.

The loop makes the host wait for the device at log steps, evaluations and checkpoints only; a DeepSpeed file may add
waits (parallel/deepspeed.py).
"""

import contextlib
import gc
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from trainer import log, record
from trainer.checkpoint.format import Checkpoint, checkpoint_folder
from trainer.checkpoint.saver import Saver, retry_pause
from trainer.config.schema import Config, resolved
from trainer.contract import DONE
from trainer.errors import Stopped, TrainingError, UserError, one_line
from trainer.files import write_json
from trainer.models.adapters import hold_frozen
from trainer.parallel import communication, optimizer
from trainer.parallel.engine import Engine, Outcome
from trainer.parallel.world import World
from trainer.tasks.work import Interrupted, Work
from trainer.train import compiled, failures, precision, resume
from trainer.train.feed import Batch, Feed, draw_seed, rounds
from trainer.train.metrics import Reporter, StepFigures, Stopwatch
from trainer.train.profiler import Profiler
from trainer.train.progress import Progress, Schedule, check_first_loss, check_weights

LAST_ATTEMPTS = 5
"""Attempts to write the last checkpoint and DONE, over 450 s: a storage that moves to another node is back by then."""
ACTIVATIONS_EVERY = 10
"""Log steps between two statistics of the activations: the other workers wait while the first computes them."""


def train(work: Work, config: Config, run: Path, world: World) -> None:
    """Train from the newest checkpoint, or from scratch, to config.steps.

    Raises Stopped after an agreed early end, Retry for a failure that may pass, UserError and TrainingError if a retry
    cannot help.
    """
    name, reason = precision.choose(config.precision, precision.hardware(world.device))
    compiling, why = compiled.choose(config, world.device)
    if world.first:
        log.event("precision", precision=name, reason=repr(reason))
        log.event("compile", compile=str(compiling).lower(), reason=repr(why))
        sent = communication.wire(config, world.device, precision.TYPES[name])
        log.event("batch", micro_batch=work.windows, per_step=work.batches.per_step, compression=sent)
        if world.size > 1 and world.device.type == "cuda":
            group: Any = dist.group.WORLD
            log.event("exchange", backend=type(group._get_backend(world.device)).__name__)
    if world.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where fp32 is asked for and the accelerator has it
    reporter = Reporter(run, config, world, world.gather(record.introduce(world.rank)))
    found: Checkpoint | None = None
    loop: Loop | None = None
    try:
        found = resume.find(run, world, config)
        if found is not None:
            world.together(lambda: resume.load_weights(found, work, config))
        hold_frozen(work.net, precision.TYPES[name])
        if config.engine.name != "fsdp":  # FSDP moves the module to the device part by part
            work.module.to(world.device)
        world.together(lambda: work.check(precision.TYPES[name]))
        if compiling:
            work.module.compile()
        loop = Loop(work, config, run, world, precision.TYPES[name], reporter)
        if found is not None:
            world.together(lambda: resume.load(found, loop.engine, loop.progress, config, work.data, world.first))
            loop.step, loop.figures = found.step, dict(found.figures)
        reporter.start(loop.step, loop.figures, work.data)
        if compiling:
            reporter.status(state="compiling")
            world.together(lambda: compiled.prepare(work, loop.engine, run, world, loop.dtype, loop.step))
        loop.listen()
        with contextlib.closing(Feed(work.batches, world, loop.step, loop.engine.equal_turns)) as batches:
            try:
                loop.run(batches)
            except Interrupted:
                loop.stop()
    except (TrainingError, UserError) as error:
        if loop is not None:
            loop.saver.finish()
        reporter.end("failed", error)
        raise
    except RuntimeError as error:
        if loop is not None:
            loop.saver.finish()
        if world.size > 1 and failures.lost_peers(error):
            failures.leave_lost_peers(world.rank, error)
        step = loop.step if loop is not None else found.step if found is not None else 0
        failure = failures.judge(error, work, config, run, world, step)
        reporter.end("failed" if isinstance(failure, TrainingError) else "restarting", failure)
        raise failure from None
    finally:
        gc.unfreeze()
        gc.enable()
        reporter.close()


class Loop:
    """The state of a run between two steps, and the operations on it."""

    def __init__(
        self, work: Work, config: Config, run: Path, world: World, dtype: torch.dtype, reporter: Reporter
    ) -> None:
        self.work, self.config, self.folder, self.world = work, config, run, world
        self.dtype, self.reporter, self.noticed = dtype, reporter, False
        self.engine = build_engine(work, config, world, dtype)
        self.progress = Progress(config.optimizer.skipped_steps_limit, world.first)
        self.schedule = Schedule(config)
        self.saver = Saver(run, config.checkpoint, work.save_model, resolved(config))
        reporter.saved = lambda: self.saver.saved
        self.watch = Stopwatch(work, world, dtype)
        self.profiler = Profiler(config.metrics.profile, run, world.device, world.first)
        self.share = communication.Share(communication.advice(config, communication.wire(config, world.device, dtype)))
        self.step = 0
        self.figures: dict[str, Any] = {}

    def listen(self) -> None:
        """From here on SIGTERM (a spot machine's notice, a scale-in, a new member) only sets a flag; before, it ends
        the process at once, as there is nothing to save."""
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.noticed = True

    def run(self, batches: Feed) -> None:
        settings = self.config
        if "initial_validation_loss" not in self.figures:
            self.evaluate()
            check_first_loss(self.figures["validation_loss"], self.work.expected_loss, self.world.first)
        self.reporter.status(state="training")
        first = self.step
        self.watch.start()
        while self.step < settings.steps:
            self.profiler.before(self.step + 1)
            stopping, overdue = self.one_step(batches)
            if stopping:
                self.profiler.close(self.step)
                self.stop()
            self.profiler.after(self.step)
            if self.step == first + 1:
                gc.collect()
                gc.freeze()  # objects that are alive after one step stay: do not scan them again
                gc.disable()  # collect in `paused`, where all workers pause, and not inside one worker's step
            saving = self.schedule.saves(self.step, overdue, self.progress)
            if self.progress.unvalidated(self.step, settings):
                self.evaluate()
            if saving:
                self.save()
        self.finish()

    def one_step(self, batches: Feed) -> tuple[bool, bool]:
        """Make one step, or stop in the middle of it. Returns whether all workers are to stop, and to save.

        The workers vote after each micro-batch: a step can take longer than a termination notice. A step that stops in
        the middle is discarded; the next round computes it again.
        """
        work, world, plan = self.work, self.world, batches.plan
        loss = torch.zeros((), device=world.device)
        batch: Batch = ()
        stopping = overdue = False
        turns = max(len(plan), rounds(work.batches.per_step, world))
        # A worker with fewer micro-batches than others sits out the first turn, not the last. So all exchange gradients
        # in the last turn, and a step that stops before it leaves no worker waiting in an all-reduce.
        idle = turns - len(plan)
        for turn in range(turns):
            vote = world.vote(self.noticed, world.first and self.saver.overdue())
            if turn >= idle:
                number, weight = plan[turn - idle]
                began = time.perf_counter()
                batch = batches.next()
                self.watch.data += time.perf_counter() - began
                world.seed(draw_seed(self.config.run.seed, self.step, number))  # dropout, a router's choice
                loss += self.engine.accumulate(batch, weight * work.weight(self.step), last=turn == turns - 1)
            if turn < turns - 1:
                stopping, overdue = vote.result()
                if stopping:
                    return True, False
        self.progress.settle()
        learning_rate = optimizer.learning_rate(self.progress.updates, self.config.steps, self.config.optimizer)
        outcome = self.engine.step(learning_rate)
        self.step += 1
        self.progress.note(self.step, outcome)
        self.watch.steps += 1
        if self.step % self.config.metrics.every == 0 or self.step == self.config.steps:
            self.report(loss / work.items_per_step, learning_rate, outcome, batch)
        stopping, overdue = vote.result()  # pyrefly: ignore[unbound-name]
        return stopping, overdue

    def report(self, loss: torch.Tensor, learning_rate: float, outcome: Outcome, batch: Batch) -> None:
        mean = float(self.world.sum(loss)[0])
        self.progress.settle()
        activations: dict[str, float] = {}
        told = self.step // self.config.metrics.every
        whole = self.world.first and not self.engine.divided
        if self.work.activations is not None and whole and told % ACTIVATIONS_EVERY == 0:
            with torch.no_grad():
                activations = {name: float(value) for name, value in self.work.activations(batch).items()}
        figures = StepFigures(
            step=self.step,
            loss=mean,
            learning_rate=learning_rate,
            gradient_norm=float(outcome.gradient_norm),
            skipped_steps=self.progress.skipped,
            loss_scale=self.engine.loss_scale,
            activations=activations,
            **self.watch.read(self.engine, self.step, self.config.steps - self.step),
        )
        if self.progress.in_a_row > 0:
            return  # a skipped step has no figures; event=step_skipped reports it
        advice = self.share.add(figures.communication_seconds, figures.step_seconds, self.world.first)
        self.reporter.training(figures, advice)

    def evaluate(self) -> None:
        with self.paused():
            value = self.work.validation.loss(self.work.module, self.world, self.dtype, lambda: self.noticed)
            self.figures.setdefault("initial_validation_loss", value)
            further = self.work.validation_figures()
            self.figures |= {"validation_loss": value, **further}
            self.reporter.status(**self.figures)
            self.reporter.validation(self.step, value, further)
            self.progress.validated = self.step

    def save(self) -> Path:
        """Have a thread write the state, and go on. Raises TrainingError if not finite."""
        with self.paused() as began:
            self.idle()
            self.progress.settle()
            state = self.engine.state()
            check_weights(state.weights, self.step, self.world)
            if self.world.first:
                small = {**state.state, **self.progress.state(), resume.DATA: self.work.data}
                self.saver.save(self.step, replace(state, state=small, figures=self.figures))
            if not self.config.checkpoint.asynchronous:
                self.idle()
            self.watch.checkpoint += time.perf_counter() - began
        return checkpoint_folder(self.folder, self.step)

    def stop(self) -> None:
        """Save and leave together. Raises Stopped."""
        self.save()
        problem = ""
        try:
            self.written()
        except OSError as error:  # this attempt can do no more
            problem = f"the checkpoint of step {self.step} could not be written: {one_line(error.strerror or error)}"
        self.reporter.end("terminated" if self.noticed else "restarting", problem)
        raise Stopped(self.noticed)

    def finish(self) -> None:
        self.evaluate()
        for attempt in range(1, LAST_ATTEMPTS + 1):
            path = self.save()
            self.idle()
            problem = self.world.from_first(self.world.together(lambda path=path: self.conclude(path)))
            if not problem:
                return
            if attempt < LAST_ATTEMPTS:
                self.pause(retry_pause(attempt), problem)
        raise TrainingError(
            # pyrefly: ignore[unbound-name]
            f"cannot write the last checkpoint {path} or {DONE}: {problem}; free some space and start the training "
            "again: it resumes from the newest checkpoint"
        )

    def conclude(self, path: Path) -> str:
        """Write DONE after the last checkpoint, on the first worker. Returns the storage's error, or nothing."""
        if not self.world.first:
            return ""
        try:
            self.saver.wait()
            done = {"step": self.step, **self.figures, "checkpoint": str(path), resume.DATA: self.work.data}
            done |= {"adapter_of": self.config.model.name} if self.config.adapter.kind != "none" else {}
            # With divided weights each token would need all workers: sample the checkpoint with trainer.sample.
            done["sample"] = self.work.sample() if self.work.sample is not None and not self.engine.divided else ""
            write_json(self.folder / DONE, done | self.work.results())
        except OSError as error:
            return one_line(error.strerror or error)
        self.reporter.status(state="done", step=self.step, eta_seconds=0)
        return ""

    def pause(self, seconds: float, problem: str) -> None:
        """Wait for a storage that has a problem. Raises Stopped if a worker is asked to end meanwhile."""
        if self.world.first:
            log.warn("end_delayed", reason=repr(problem), retry_seconds=seconds)
        end = time.monotonic() + seconds
        while not self.world.any(self.world.first and time.monotonic() > end):
            if self.world.any(self.noticed):
                self.stop()
            time.sleep(0.05)

    def written(self) -> None:
        """Wait on every worker until the newest checkpoint is written. Raises OSError on the first if it cannot be."""
        self.idle()
        try:
            if self.world.first:
                self.saver.wait()
        finally:
            self.world.barrier()

    def idle(self) -> None:
        """Wait on every worker until no checkpoint is being written."""
        while self.world.any(self.world.first and self.saver.busy):
            time.sleep(0.05)  # short votes, not one long exchange: slow storage must not look like a lost worker

    @contextlib.contextmanager
    def paused(self) -> Iterator[float]:
        """Collect garbage, and leave the time within out of tokens per second."""
        began = time.perf_counter()
        gc.collect()
        yield began
        self.watch.paused += time.perf_counter() - began


def build_engine(work: Work, config: Config, world: World, dtype: torch.dtype) -> Engine:
    """Raises UserError when the settings do not fit the engine or the number of workers."""
    if config.engine.name == "deepspeed":
        from trainer.parallel.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(work, config, world, dtype)
    if config.engine.name == "fsdp":
        from trainer.parallel.fsdp import FsdpEngine

        return FsdpEngine(work, config, world, dtype)
    from trainer.parallel.ddp import DdpEngine

    return DdpEngine(work, config, world, dtype)
