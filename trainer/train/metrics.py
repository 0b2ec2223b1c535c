"""The figures of a run: metrics.jsonl, its record in status.json and the log, and the exporters. Rank 0 only.

docs/model.md defines each figure. A storage that is full or gone delays figures until it is back: lines that could not
be written wait in memory, and training goes on.
"""

import contextlib
import dataclasses
import json
import os
import resource
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer import record
from trainer.checkpoint.format import CONFIGURATION
from trainer.config.schema import Config, resolved
from trainer.config.speed import peak_of
from trainer.contract import METRICS, STACK, STATUS
from trainer.elastic.processor import read_processor
from trainer.errors import Retry, one_line
from trainer.files import read_record, read_text, write_atomic, write_json
from trainer.log import line, say, warn, warned
from trainer.parallel.engine import Engine
from trainer.parallel.world import World
from trainer.tasks.work import Work
from trainer.train import exporters

ACTIVATIONS = "activations/"
"""Prefix of per-layer figures, as in Mistral's logs: activations/layer0_attention_weight_max."""
PENDING_LINES = 10_000
"""Metrics lines kept while the storage refuses them: some megabytes."""


@dataclass(frozen=True)
class StepFigures:
    """The figures of a log step. Times, rates and bytes are means over the steps since the log step before."""

    step: int
    """Optimizer steps since the beginning of the run, however often it was interrupted."""
    loss: float
    """Mean training loss of this one step, in nats per token (per example for question answering)."""
    learning_rate: float
    """The learning rate of this step."""
    gradient_norm: float
    """Norm of the whole gradient before clipping."""
    tokens_per_second: float
    """By all workers together, in training alone: time for evaluations and checkpoints does not count."""
    tokens_per_second_per_device: float
    """The same for each worker."""
    samples_per_second: float
    """Windows (examples for question answering) a second, by all workers together."""
    eta_seconds: float
    """Seconds to the last step at this speed."""
    epoch: float
    """Passes over the training data so far."""
    step_seconds: float
    """One optimizer step: the sum of the next three and of what is left over."""
    data_seconds: float
    """Of a step: waiting for batches."""
    compute_seconds: float
    """Of a step: forward, backward and optimizer."""
    communication_seconds: float
    """Of a step: exchange with the other workers that computing does not hide."""
    checkpoint_seconds: float
    """Time a step for which checkpoints held training up; not part of step_seconds."""
    memory_bytes: int
    """Peak memory of tensors so far: the accelerator's; on a CPU the worker's resident memory."""
    bytes_sent_per_step: int
    """Sent to other workers by this one, in a step."""
    skipped_steps: int = 0
    """Steps since the beginning of the run that changed nothing, because a gradient was not finite."""
    loss_scale: float | None = None
    """The fp16 scaler's factor; null without one."""
    memory_reserved_bytes: int | None = None
    """Peak memory that torch has taken from the accelerator, gaps between tensors included; CUDA and NCCL take about a
    gigabyte more. Null on a CPU."""
    mfu: float | None = None
    """Model FLOPs utilisation, 0 to 1: FLOP/s of the model's products (PaLM, appendix B) divided by the device's peak;
    null when that is unknown."""
    activations: dict[str, float] = field(default_factory=dict)
    """Per-layer statistics, each under a name of its own: activations/layer0_attention_weight_max, the greatest
    attention logit (scaled, before mask and softmax) of layer 0, and _min, the least. Only where they are measured."""

    def values(self) -> dict[str, float | int | None]:
        """By the names that metrics.jsonl and the exporters use; without `step`."""
        named = dataclasses.asdict(self)
        del named["step"]
        activations = named.pop("activations")
        return named | {ACTIVATIONS + name: value for name, value in activations.items()}


def device_peak(device: torch.device, dtype: torch.dtype) -> float | None:
    """Peak FLOP/s of products of this type; None where it is unknown.

    That of a CPU depends on clock, cores and what else runs; that of a MIG instance on its size. fp32 products are TF32
    from compute capability 8.0 on, at half the rate of bf16 by NVIDIA's data sheets; older devices have none.
    """
    if device.type != "cuda" or (peak := peak_of(torch.cuda.get_device_name(device))) is None:
        return None
    if dtype != torch.float32:
        return peak
    return peak / 2 if torch.cuda.get_device_capability(device) >= (8, 0) else None


def machine(device: torch.device) -> str:
    """Name of the accelerator, with its memory, or of the processor."""
    if device.type != "cuda":
        return read_processor()[0]
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} ({found.total_memory / 2**30:.1f} GiB)"


def peak_memory(device: torch.device) -> int:
    """Peak bytes so far: of the device, or of this process (ru_maxrss counts in KiB)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Stopwatch:
    """Where the time between two log lines went.

    Measured on the host, with two readings of its clock a micro-batch. What only the device knows is read at log steps,
    when the host waits for the device anyway.
    """

    def __init__(self, work: Work, world: World, dtype: torch.dtype) -> None:
        self._work, self._world, self._peak = work, world, device_peak(world.device, dtype)
        self.start()

    def start(self) -> None:
        """Begin to count."""
        self.data = 0.0
        """Seconds that the loop has waited for micro-batches."""
        self.checkpoint = 0.0
        """Seconds that checkpoints have held the loop up."""
        self.paused = 0.0
        """Seconds not spent on training: evaluations, checkpoints."""
        self.steps = 0
        self._since = time.perf_counter()

    def read(self, engine: Engine, step: int, left: int) -> dict[str, Any]:
        """Return time, bytes and memory since the last call, and start again. left: steps that remain.

        The device must have finished the step.
        """
        work, count = self._work, max(1, self.steps)
        seconds = (time.perf_counter() - self._since - self.paused) / count
        waited, sent = engine.take_communication()
        data, communication = self.data / count, waited / count
        tokens = work.tokens_per_step / seconds
        per_device = tokens / self._world.size
        found = {
            "tokens_per_second": tokens,
            "tokens_per_second_per_device": per_device,
            "samples_per_second": work.samples_per_step / seconds,
            "eta_seconds": seconds * left,
            "epoch": work.batches.epoch(step),
            "step_seconds": seconds,
            "data_seconds": data,
            "compute_seconds": max(0.0, seconds - data - communication),
            "communication_seconds": communication,
            "checkpoint_seconds": self.checkpoint / count,
            "memory_bytes": peak_memory(self._world.device),
            "memory_reserved_bytes": torch.cuda.max_memory_reserved() if self._world.device.type == "cuda" else None,
            "bytes_sent_per_step": round(sent / count),
            "mfu": work.flops_per_token * per_device / self._peak if self._peak and work.flops_per_token else None,
        }
        self.start()
        return found


class Reporter:
    """Writes the figures of a run; on workers other than the first it writes nothing."""

    def __init__(self, run: Path, config: Config, world: World, members: list[dict[str, Any]] | None = None) -> None:
        """members: what all workers told by `record.introduce`; None: this one is alone."""
        self._run, self._config, self._first = run, config, world.first
        self._exporters: list[exporters.Exporter] = []
        self._pending: list[str] = []
        self._found = self._read_status()
        """The content of status.json until `start`."""
        self._former: str | None = None
        """The writer in status.json until this attempt has written its own name, which a full disk may delay."""
        self._status: dict[str, Any] = {"state": "starting", "step": 0, "steps": config.steps}
        self._status |= {"world_size": world.size, "message": "", "checkpoint": None, "times": {}}
        self._status |= {"stack": os.environ.get(STACK, ""), "machine": machine(world.device)}
        self._status |= record.begin(self._found, members or [record.introduce(world.rank)])
        self.saved: Callable[[], tuple[int, float] | None] = lambda: None
        """Asks for the newest checkpoint's step and time."""
        for key in ("loss", "validation_loss", "initial_validation_loss", "tokens_per_second", "eta_seconds"):
            self._status[key] = None
        self._status["writer"] = self._found.get("writer")

    def start(self, step: int, figures: dict[str, Any], data: str = "") -> None:
        """Resume at `step`: cut off later lines of an interrupted attempt, so no step appears twice."""
        self._status |= {"step": step, "checkpoint": step or None, "resumed": step or None, "data": data, **figures}
        if not self._first:
            return
        # Name the new writer in status.json before cutting lines: see _flush.
        self._status["writer"] = uuid.uuid4().hex
        self._former, self._found = self._found.get("writer"), {}
        self._write_status()
        try:
            write_atomic(self._run / CONFIGURATION, resolved(self._config), durable=False)
        except OSError as error:
            _failed(CONFIGURATION, one_line(error.strerror or error))
        path = self._run / METRICS
        if path.exists():
            try:
                kept = [text for text in read_text(path, errors="replace").splitlines() if _step(text) <= step]
                write_atomic(path, "".join(text + "\n" for text in kept))
            except OSError as error:
                _failed(METRICS, one_line(error.strerror or error))
        self._exporters = exporters.start(self._config, self._run, step, _failed)

    def status(self, **changes: Any) -> None:
        """Rewrite status.json with these changes; values are never removed. Raises Retry as _hold does.

        `times` says when each value was written, in seconds since 1970: another write repeats what is old.
        """
        written = dict.fromkeys(changes, time.time()) | changes.get("times", {})
        if (saved := self.saved()) and saved[0] != self._status["checkpoint"]:
            changes["checkpoint"], written["checkpoint"] = saved
        self._status |= changes | {"times": self._status["times"] | written}
        if self._first:
            self._hold()
            self._write_status()

    def end(self, state: str, reason: Exception | str) -> None:
        """Write the last status of an attempt that `reason` ends, unless another training writes by now.

        An attempt that ends before `start` has no figures of its own: those of the run stay.
        """
        with contextlib.suppress(Retry):
            self.status(**self._found | {"state": state, "message": str(reason)[: record.MESSAGE_CHARACTERS]})

    def training(self, figures: StepFigures, advice: str = "") -> None:
        """The figures of a log step: to metrics.jsonl, the exporters, status.json and the log."""
        self._append(figures.step, figures.values())
        self.status(
            state="training",
            step=figures.step,
            loss=figures.loss,
            tokens_per_second=round(figures.tokens_per_second, 1),
            eta_seconds=round(figures.eta_seconds),
            epoch=round(figures.epoch, 4),
            mfu=figures.mfu,
            advice=advice,
        )
        if self._first:
            text = line(
                step=figures.step,
                steps=self._status["steps"],
                loss=f"{figures.loss:.4f}",
                learning_rate=figures.learning_rate,
                gradient_norm=f"{figures.gradient_norm:.3f}",
                tokens_per_second=round(figures.tokens_per_second),
                mfu="n/a" if figures.mfu is None else f"{figures.mfu:.3f}",
                wire=f"{figures.communication_seconds / figures.step_seconds:.2f}",
                eta_seconds=round(figures.eta_seconds),
                world_size=self._status["world_size"],
            )
            say(text)

    def validation(self, step: int, loss: float, further: dict[str, float] | None = None) -> None:
        """The loss on held-out items, and a task's further figures such as f1."""
        self._append(step, {"validation_loss": loss, **(further or {})})
        self.status(step=step, validation_step=step, validation_loss=loss, **(further or {}))
        if self._first:
            say(line(step=step, validation_loss=f"{loss:.4f}", **(further or {})))

    def close(self) -> None:
        if self._pending:
            with contextlib.suppress(Retry):
                self._flush()
        self._export(lambda exporter: exporter.close())
        self._exporters = []

    def _append(self, step: int, values: dict[str, Any]) -> None:
        if not self._first:
            return
        self._pending.append(json.dumps({"step": step, **values, "time": time.time()}) + "\n")
        self._flush()
        known = {name: value for name, value in values.items() if value is not None}
        self._export(lambda exporter: exporter.write(step, known))

    def _export(self, act: Callable[[exporters.Exporter], None]) -> None:
        for exporter in list(self._exporters):
            try:
                act(exporter)
            except Exception as error:  # each library has its own; none may end a training
                _failed(exporter.name, one_line(error))
                self._exporters.remove(exporter)

    def _read_status(self) -> dict[str, Any]:
        """Empty without a status.json, or if the storage is out of reach."""
        with contextlib.suppress(OSError):
            return read_record(self._run / STATUS)
        return {}

    def _write_status(self) -> None:
        before, own = self._status["incidents"], record.worker()
        new = [{"time": at, "worker": own, "cause": text[: record.CAUSE_CHARACTERS]} for at, text in warned]
        new = [each for each in new if each["time"] >= self._status["began"] and each not in before]
        self._status["incidents"] = sorted([*before, *new], key=lambda each: each["time"])[-record.KEPT :]
        told = self._status | {"updated": time.time()}
        say(record.line(told))
        try:
            write_json(self._run / STATUS, told, durable=False)
            self._former = None
        except OSError as error:
            _failed(STATUS, one_line(error.strerror or error))

    def _hold(self) -> None:
        """Raise Retry if another training writes to the run, as when a network partition hides one from the other. The
        newer one goes on."""
        # A name that cannot be read does not mean another training.
        if self._read_status().get("writer") not in (None, self._former, self._status["writer"]):
            self._first, self._pending = False, []
            raise Retry(f"another training has begun to write to {self._run}; this one stops")

    def _flush(self) -> None:
        """Append the pending lines; they stay pending while the storage refuses them. Raises Retry as _hold does.

        Another training names itself in status.json before it replaces the file. So open first, then check the name:
        the lines never reach the new file, at worst the one that was replaced.
        """
        path = self._run / METRICS
        try:
            size = path.stat().st_size if path.exists() else 0
            try:
                with open(path, "ab") as file:
                    self._hold()
                    file.write("".join(self._pending).encode())
            except OSError:
                with open(path, "r+b") as file:  # undo a partial write, which the next attempt would repeat
                    file.truncate(size)
                raise
            self._pending = []
        except OSError as error:
            if len(self._pending) == 1:  # once for each outage, not for each line
                _failed(METRICS, one_line(error.strerror or error))
            self._pending = self._pending[-PENDING_LINES:]


def _failed(what: str, reason: str) -> None:
    warn("metrics_failed", what=what, reason=repr(reason), action="'training goes on'")


def _step(text: str) -> int:
    """The step of a metrics line; a torn last line counts as beyond every step."""
    try:
        return int(json.loads(text)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**62
