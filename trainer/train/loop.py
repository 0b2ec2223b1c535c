"""The training loop: all of it, for every task, every engine and at any number of workers.

A step is a fixed number of tokens; its micro-batches are numbered, dealt to the workers in turn, and the gradient is
the sum of the losses divided by the items of the step. So one worker or seven compute the same step, and a run goes on
from a checkpoint with whoever is there.

The host waits for the device at log steps and checkpoints only.
"""

import contextlib
import dataclasses
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from trainer import log
from trainer.checkpoint import resume
from trainer.checkpoint.format import Checkpoint, Snapshot, checkpoint_folder
from trainer.checkpoint.saver import Saver, scheduled
from trainer.config import schema as configuration
from trainer.config.schema import Config
from trainer.contract import DONE, EXIT_RESTART
from trainer.data import feed
from trainer.errors import Stopped, TrainingError, UserError
from trainer.evaluate import Interrupted
from trainer.files import write_json
from trainer.models import compiled
from trainer.parallel import communication, engine
from trainer.parallel import world as distributed
from trainer.parallel.world import World
from trainer.tasks.work import Work
from trainer.train import failures, metrics, precision
from trainer.train.profiler import Profiler
from trainer.train.progress import Progress, check_first_loss, check_weights
from trainer.train.schedule import learning_rate
from trainer.train.stopwatch import Stopwatch

ACTIVATIONS_EVERY = 10
"""Log steps between two statistics of the activations: the other workers wait for the first one meanwhile."""


class Notice(Protocol):
    """Whether this worker was asked to end."""

    given: bool

    def listen(self) -> None: ...


def train(work: Work, config: Config, run: Path, world: World, notice: Notice) -> None:
    """Train from the newest checkpoint, or from scratch, to config.steps.

    Raises Stopped after an agreed early end, UserError and TrainingError when trying again cannot help.
    """
    name, reason = precision.choose(config.precision, precision.hardware(world.device))
    compiling, why = compiled.choose(config, world.device)
    if world.first:
        log.event("precision", precision=name, reason=repr(reason))
        log.event("compile", compile=str(compiling).lower(), reason=repr(why))
        windows, sent = windows_at_once(work), communication.wire(config, world.device, precision.TYPES[name])
        log.event("batch", micro_batch=windows, per_step=work.batches.per_step, compression=sent)
    if world.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where fp32 is asked for and the accelerator has it
    agree_on_micro_batch(work, world)
    reporter = metrics.Reporter(
        run, config.steps, world.size, world.round, config.metrics, world.first, dataclasses.asdict(config)
    )
    found: Checkpoint | None = None
    loop: Loop | None = None
    try:
        found = resume.find(run, world)
        if found is not None:
            distributed.together(world, lambda: resume.load_weights(found, work, config))
        work.module.to(world.device)
        if compiling:
            work.module.compile()
        loop = Loop(work, config, run, world, notice, reporter, precision.TYPES[name])
        if found is not None:
            distributed.together(world, lambda: resume.load(found, loop.engine, loop.progress, config, world.first))
            loop.step, loop.figures = found.step, dict(found.figures)
        reporter.start(loop.step, loop.figures)
        if compiling:
            reporter.status(state="compiling")
            distributed.together(world, lambda: compiled.prepare(work, run, world, loop.dtype, loop.step))
        notice.listen()
        with contextlib.closing(feed.Feed(work.batches, world, loop.step, loop.engine.equal_turns)) as batches:
            try:
                loop.run(batches)
            except Interrupted:
                loop.stop()
    except TrainingError as error:
        reporter.status(state="failed", message=str(error))
        raise
    except RuntimeError as error:
        if loop is not None:
            loop.saver.finish()
        if world.size > 1 and failures.lost_peers(error):
            leave_lost_peers(world.rank, error)
        step = loop.step if loop is not None else found.step if found is not None else 0
        failure = failures.judged(error, work, config, run, world, step)
        reporter.status(state="failed" if isinstance(failure, TrainingError) else "restarting", message=str(failure))
        raise failure from None
    finally:
        gc.unfreeze()
        gc.enable()
        reporter.close()


class Loop:
    """The state of a run between two steps, and what is done with it."""

    def __init__(
        self,
        work: Work,
        config: Config,
        run: Path,
        world: World,
        notice: Notice,
        reporter: metrics.Reporter,
        dtype: torch.dtype,
    ) -> None:
        self.work, self.config, self.folder, self.world, self.notice = work, config, run, world, notice
        self.reporter, self.dtype = reporter, dtype
        self.engine = engine.build(work, config, world, dtype)
        self.progress = Progress(config.optimizer.skipped_steps_limit, world.first)
        self.saver = Saver(run, config.checkpoint, work.save_model, configuration.resolved(config))
        self.watch = Stopwatch(work, world)
        self.profiler = Profiler(config.metrics.profile, run, world.device, world.first)
        self.advice = communication.advice(config, communication.wire(config, world.device, dtype))
        self.step = 0
        self.figures: dict[str, Any] = {}

    def run(self, batches: feed.Feed) -> None:
        settings = self.config
        if "initial_validation_loss" not in self.figures:
            self.evaluate()
            check_first_loss(self.figures["validation_loss"], self.work.expected_loss, self.world.first)
        self.reporter.status(state="training")
        first, due = self.step, False
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
                gc.freeze()  # what is there after one step stays: the collector need not look at it again and again,
                gc.disable()  # and runs below, where all workers pause, instead of in one worker's step
            last = self.step == settings.steps
            if settings.evaluation.every and self.step % settings.evaluation.every == 0 and not last:
                self.evaluate()
            due = due or overdue or scheduled(self.step, settings.checkpoint)
            if due and not last:
                self.progress.settle()
                if self.progress.in_a_row == 0:  # else after the next step that updates something
                    self.save()
                    due = False
        self.finish()

    def one_step(self, batches: feed.Feed) -> tuple[bool, bool]:
        """Make one step, or stop in the middle of it; whether all workers are to stop, and to save.

        A worker with a notice of its end is heard after each micro-batch: a step can take longer than the notice is
        long. What was computed of the step is thrown away then; the next round computes it again.
        """
        work, world, plan = self.work, self.world, batches.plan
        loss = torch.zeros((), device=world.device)
        batch: feed.Batch = ()
        stopping = overdue = False
        turns = max(len(plan), feed.rounds(work.batches.per_step, world))
        # A worker with fewer micro-batches than others sits out the first turn, not the last: so all exchange gradients
        # in the last one, and a step that is given up before it leaves nobody waiting in an exchange.
        idle = turns - len(plan)
        for turn in range(turns):
            vote = distributed.Vote(world, self.notice.given, world.first and self.saver.overdue())
            if turn >= idle:
                number, weight = plan[turn - idle]
                began = time.perf_counter()
                batch = batches.next()
                self.watch.data += time.perf_counter() - began
                if work.draws:
                    torch.manual_seed(draw_seed(self.config.run.seed, self.step, number))
                loss += self.engine.accumulate(batch, weight, last=turn == turns - 1)
            if turn < turns - 1:
                stopping, overdue = vote.result()
                if stopping:
                    return True, False
        self.progress.settle()
        rate = learning_rate(self.progress.updates, self.config.steps, self.config.optimizer)
        outcome = self.engine.step(rate, self.step + 1)
        self.step += 1
        self.progress.note(self.step, outcome)
        self.watch.stepped()
        if self.step % self.config.metrics.every == 0 or self.step == self.config.steps:
            self.report(loss / work.items_per_step, rate, outcome, batch)
        stopping, overdue = vote.result()
        return stopping, overdue

    def report(self, loss: torch.Tensor, rate: float, outcome: engine.Outcome, batch: feed.Batch) -> None:
        mean = float(distributed.summed(self.world, loss)[0])
        self.progress.settle()
        norm = float(outcome.gradient_norm)
        activations: dict[str, float] = {}
        told = self.step // self.config.metrics.every
        if self.work.activations is not None and self.world.first and told % ACTIVATIONS_EVERY == 0:
            with torch.no_grad():
                activations = {name: float(value) for name, value in self.work.activations(batch).items()}
        figures = self.watch.figures(
            self.step,
            self.config.steps,
            mean,
            rate,
            norm,
            self.engine,
            self.progress.skipped,
            activations,
        )
        if self.progress.in_a_row == 0:  # a skipped step has no figures; the event says so
            self.reporter.training(figures)
            share = figures.communication_seconds / figures.step_seconds
            if share >= communication.NOTABLE and self.advice:
                if self.world.first:
                    log.event("exchange_slow", share=round(share, 3), advice=repr(self.advice))
                self.reporter.status(advice=self.advice)
                self.advice = ""  # told once

    def evaluate(self) -> None:
        with self.paused():
            value = self.work.validation.loss(self.work.module, self.world, self.dtype, lambda: self.notice.given)
            self.figures.setdefault("initial_validation_loss", value)
            further = self.work.validation_figures()
            self.figures |= {"validation_loss": value, **further}
            self.reporter.status(**self.figures)
            self.reporter.validation(self.step, value, further)

    def save(self) -> Path:
        """Have the state written, and go on. Raises TrainingError when the weights are not finite."""
        with self.paused() as began:
            self.idle()
            self.progress.settle()
            self.engine.synchronise()
            state = self.engine.state()
            check_weights(state.weights, self.step)
            if self.world.first:
                small = {**state.small, **self.progress.state()}
                self.saver.save(self.step, Snapshot(state.weights, state.optimizer, small, self.figures))
            if not self.config.checkpoint.asynchronous:
                self.idle()
            self.watch.checkpoint += time.perf_counter() - began
        return checkpoint_folder(self.folder, self.step)

    def stop(self) -> None:
        """Save and leave together. Raises Stopped."""
        self.save()
        with contextlib.suppress(OSError):  # told already; nothing more can be done for this attempt
            self.written()
        raise Stopped

    def finish(self) -> None:
        self.engine.synchronise()
        self.evaluate()
        path = self.save()
        try:
            self.written()
        except OSError as error:
            raise TrainingError(
                f"the last checkpoint cannot be written to {path} ({error.strerror}); free some space and start the "
                "training again: it resumes from the checkpoint before"
            ) from None
        distributed.together(self.world, lambda: self.conclude(path) if self.world.first else None)

    def conclude(self, path: Path) -> None:
        done = {"step": self.step, **self.figures, "checkpoint": str(path)}
        done["sample"] = self.work.sample() if self.work.sample is not None else ""
        write_json(self.folder / DONE, done | self.work.results())
        self.reporter.status(state="done", step=self.step, eta_seconds=0)

    def written(self) -> None:
        """Return on every worker when the newest checkpoint is on the storage. Raises OSError on the first when not."""
        self.idle()
        try:
            if self.world.first:
                self.saver.wait()
        finally:
            distributed.barrier(self.world)

    def idle(self) -> None:
        """Return on every worker when no checkpoint is being written."""
        while distributed.any_of(self.world, self.world.first and self.saver.busy)[0]:
            time.sleep(0.05)  # not one long exchange: a slow storage must not look like a lost worker

    @contextlib.contextmanager
    def paused(self) -> Iterator[float]:
        """Tokens per second are those of training alone."""
        began = time.perf_counter()
        gc.collect()
        yield began
        self.watch.pause(time.perf_counter() - began)


def windows_at_once(work: Work) -> int:
    return work.samples_per_step // work.batches.per_step


def agree_on_micro_batch(work: Work, world: World) -> None:
    """Raise UserError on all workers where their memories differ so much that each would cut the step otherwise."""
    sizes = distributed.gathered(world, windows_at_once(work))
    if len(set(sizes)) > 1:
        raise UserError(
            f"micro_batch: by their memory the workers would take {', '.join(map(str, sizes))} windows at once; "
            f"give the smallest, micro_batch={min(sizes)}"
        )


def draw_seed(seed: int, step: int, number: int) -> int:
    """A seed of its own for each micro-batch of each step (63 bits)."""
    return ((seed * 1_000_003 + step) * 1_000_003 + number) % 2**63


def leave_lost_peers(rank: int, error: RuntimeError) -> NoReturn:
    """End at once when the exchange with the others broke: the launcher then makes a new round.

    No clean-up: destroying a process group whose peers are gone can hang.
    """
    text = " ".join(str(error).split())[:300]
    log.say(log.line(event="peers_lost", rank=rank, reason=repr(text)), sys.stderr)
    sys.stdout.flush()
    os._exit(EXIT_RESTART)
