"""What a run tells the world: metrics.jsonl, status.json, TensorBoard and log lines. Rank 0 only."""

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from trainer.files import read_json, write_atomic, write_json

STATUS = "status.json"
METRICS = "metrics.jsonl"
DONE = "DONE"


def line(**fields: Any) -> str:
    """One logfmt line: key=value with spaces between; floats to 6 significant digits."""
    return " ".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in fields.items()
    )


def say(text: str, stream: TextIO | None = None) -> None:
    """Write one line (stdout by default) at once.

    In one write: print() hands an unbuffered stream the text and the line's end apart, and the workers of a pod, which
    share one stream, then end up in each other's lines.
    """
    target = stream or sys.stdout
    target.write(text + "\n")
    target.flush()


def event(name: str, **fields: Any) -> None:
    say(line(event=name, **fields))


class Reporter:
    """Writes the figures of a run as it goes; on a worker that is not the first it writes nothing."""

    def __init__(self, run: Path, steps: int, world_size: int, round: int, tensorboard: bool, first: bool) -> None:
        self._run, self._first = run, first
        self._tensorboard = tensorboard and first
        self._writer: Any = None
        self._status: dict[str, Any] = {"state": "starting", "step": 0, "steps": steps}
        self._status |= {"world_size": world_size, "round": round, "message": ""}
        for key in ("loss", "validation_loss", "initial_validation_loss", "tokens_per_second", "eta_seconds"):
            self._status[key] = None

    def start(self, step: int, figures: dict[str, Any]) -> None:
        """Take up the run at `step`: later lines of an interrupted attempt are cut off, so no step is there twice."""
        self._status |= {"step": step, **figures}
        if not self._first:
            return
        path = self._run / METRICS
        if path.exists():
            kept = [text for text in path.read_text("utf-8").splitlines() if _step(text) <= step]
            write_atomic(path, "".join(text + "\n" for text in kept))
        if self._tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._run / "tensorboard"), purge_step=step + 1)
        self.status(state="starting")

    def status(self, **changes: Any) -> None:
        """Replace status.json with these changes; none of the values is ever removed."""
        self._status |= changes
        if self._first:
            write_json(self._run / STATUS, self._status | {"updated": time.time()}, durable=False)

    def training(
        self, step: int, loss: float, learning_rate: float, gradient_norm: float, tokens_per_second: float, eta: float
    ) -> None:
        values = {
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "tokens_per_second": tokens_per_second,
        }
        self._append(step, values)
        self.status(
            state="training",
            step=step,
            loss=loss,
            tokens_per_second=round(tokens_per_second, 1),
            eta_seconds=round(eta),
        )
        if self._first:
            text = line(
                step=step,
                steps=self._status["steps"],
                loss=f"{loss:.4f}",
                learning_rate=learning_rate,
                tokens_per_second=round(tokens_per_second),
                eta_seconds=round(eta),
                world_size=self._status["world_size"],
            )
            say(text)

    def validation(self, step: int, loss: float) -> None:
        self._append(step, {"validation_loss": loss})
        self.status(step=step, validation_loss=loss)
        if self._first:
            say(line(step=step, validation_loss=f"{loss:.4f}"))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _append(self, step: int, values: dict[str, float]) -> None:
        if not self._first:
            return
        with open(self._run / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values, "time": time.time()}) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)


def _step(text: str) -> int:
    """The step of a metrics line; a torn last line counts as beyond every step."""
    try:
        return int(json.loads(text)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**62


def status(run: Path) -> dict[str, Any]:
    return read_json(run / STATUS) or {}


def done(run: Path) -> dict[str, Any] | None:
    """The content of DONE, or None while the run is not finished."""
    return read_json(run / DONE)
