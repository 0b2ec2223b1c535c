"""List all runs on a stack's volume, with step, losses, state, size and age."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Any

import typer
import yaml
from rich.filesize import decimal
from rich.table import Table

from cli import CommandError
from cli.cluster import TrainingJob
from cli.pods import Pod, volume_pod
from cli.progress import age
from cli.table import cells, table, wide
from cli.target import Kubeconfig, RunningStack, targets_of
from cli.volume import users
from trainer.config.base import flat
from trainer.config.values import Plain, read_yaml
from trainer.contract import UNREADABLE, checkpoint_step, patience
from trainer.plain import plain
from trainer.record import figures
from workloads.layout import DATA, run_folder


def _named(run: str | None) -> str | None:
    """The name of a run. Raises CommandError for a path."""
    if run in ("", ".", "..") or (run and "/" in run):
        raise CommandError(f"--run {run}: give the name of a run, a folder in {run_folder('')}", code=2)
    return run


RunName = Annotated[
    str | None, typer.Option("--run", metavar="NAME", callback=_named, help="Another run on the volume.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Run:
    """A run on the volume, as its folder tells of it."""

    name: str
    state: str
    figures: dict[str, Any]
    """Those of trainer.record.figures."""
    bytes: int
    age: float | None
    """Seconds since its figures were written, by the cluster's clock; None: nobody knows."""
    checkpoints: tuple[int, ...] = ()
    """Steps of the complete ones, the oldest first."""
    settings: dict[str, Any] = field(default_factory=dict)
    """By dotted key: all of them, with their defaults."""
    tokenizer: str = ""
    """Digest of its file."""
    weights: int = 0
    """Bytes of the newest checkpoint's model."""
    data: str = ""
    """Digest of the data set."""

    @property
    def checkpoint(self) -> int | None:
        """Step of the newest one."""
        return max(self.checkpoints, default=None)

    @property
    def validated(self) -> int | None:
        """The step of its validation loss."""
        return self.figures.get("validation_step", self.figures.get("step"))

    @property
    def model(self) -> str:
        named = (self.settings.get(f"model.{key}") for key in ("name", "preset", "config"))
        return str(next(filter(None, named), "")).removeprefix(f"{DATA}/").removeprefix("models/")

    def as_json(self) -> dict[str, Any]:
        updated = None if self.age is None else datetime.fromtimestamp(datetime.now(UTC).timestamp() - self.age, UTC)
        told = {"run": self.name, "model": self.model, "state": self.state, **self.figures}
        told |= {"checkpoint": self.checkpoint, "bytes": self.bytes}
        return {**told, "updated": updated and updated.isoformat(timespec="seconds"), "settings": self.settings}


def runs(stack: RunningStack = "", kubeconfig: Kubeconfig = None, as_json: AsJson = False) -> None:
    target = targets_of(stack, kubeconfig)[0]
    used = users(TrainingJob.of(target))
    with volume_pod(target) as (pod, _):
        found = read(pod, used)
    if as_json:
        print(json.dumps([run.as_json() for run in found], indent=1, default=str))
    elif found:
        wide().print(_table(found))
    else:
        print(f"no run yet; the first training makes one in {run_folder('')}")


def read(pod: Pod, used: Mapping[str, str] | None = None, *names: str) -> list[Run]:
    """The runs of these names, or all, the newest figures first. Raises CommandError.

    used: path -> who uses it (cli.volume.users): such a run waits where it does not train.
    """
    found = [run_of(told, used or {}) for told in pod.ask("runs", DATA, *names)]
    return sorted(found, key=lambda run: (math.inf if run.age is None else run.age, run.name))


def trained(pod: Pod, folder: str) -> Run:
    """The run in a folder. Raises CommandError where there is none, or no checkpoint."""
    found = read(pod, {}, PurePosixPath(folder).name)
    if not found:
        raise CommandError(f"{folder}: no such run; `trainyard runs` lists them all", code=2)
    if found[0].checkpoint is None:
        raise CommandError(f"{folder} has no checkpoint yet; `trainyard status` says how far the training is")
    return found[0]


def run_of(told: dict[str, Any], used: Mapping[str, str]) -> Run:
    """A run, of what the pod tells."""
    records = (told.get(kind) or {} for kind in ("status", "done"))
    status, done = ({key: value for key, value in each.items() if value is not None} for each in records)
    name = plain(told["run"])
    age = max(0.0, told["now"] - status["updated"]) if "updated" in status else None
    return Run(
        name,
        "done" if done else _state(plain(status.get("state", "begun")), age, used.get(run_folder(name), "")),
        figures({**status, **done}),
        told["bytes"],
        age,
        tuple(step for name in told.get("checkpoints", ()) if (step := checkpoint_step(name)) is not None),
        settings(told.get("config")),
        told.get("tokenizer") or "",
        told.get("weights", 0),
        status.get("data", ""),
    )


def _state(state: str, age: float | None, user: str) -> str:
    """A run's own word, while it is fresh; `user` is the Job that has not ended."""
    going = state != "terminated" and age is not None and age < patience(state)
    if going or state in ("failed", UNREADABLE):
        return state
    return ("stopped" if "stopped" in user else "waiting") if user else "interrupted"


def settings(text: Any) -> dict[str, Any]:
    """The configuration of a checkpoint by dotted key; empty where it is none."""
    try:
        found = read_yaml(str(text or ""), Plain)
    except (yaml.YAMLError, ValueError):
        return {}
    return flat(found) if isinstance(found, dict) else {}


def _table(found: list[Run]) -> Table:
    figures = ("step", "loss", "valid.", "size", "age")
    shown = table("run", "model", "state", *figures, right=figures, whole=("state",), gap=1)
    for run in found:
        losses = [f"{run.figures[key]:.3f}" if key in run.figures else "" for key in ("loss", "validation_loss")]
        step = f"{run.figures['step']:,}" if "step" in run.figures else ""
        old = "" if run.age is None else age(run.age)
        shown.add_row(*cells(run.name, run.model, run.state, step, *losses, decimal(run.bytes), old))
    return shown
