"""Resume a run from its newest checkpoint, and report the settings that have changed since."""

import time
from pathlib import Path
from typing import Any

from trainer import log
from trainer.checkpoint.format import (
    CONFIGURATION,
    Checkpoint,
    fetched_model,
    list_checkpoints,
    load_optimizer,
    say_damaged,
    verify_checkpoint,
)
from trainer.config.base import effects_of
from trainer.config.schema import Config, resolved, stored
from trainer.errors import UserError
from trainer.files import read_text
from trainer.parallel.engine import Engine
from trainer.parallel.world import World
from trainer.tasks.work import Work
from trainer.train.progress import Progress

EFFECTS = {key: effect.text for key, effect in effects_of(Config).items() if effect.text}
"""What the change of a setting does to a run in progress, for the settings where something is said."""


DATA = "data"
"""The data set's digest in a checkpoint's state, status.json and DONE. A run's name is made of its settings, before the
data exist, so it does not tell data apart that are prepared anew in the same folder."""
OTHER_DATA = (
    "the data were prepared anew in the same place: order, epochs and validation losses mean another text from here "
    "on; prepare other data in a folder of their own, and train them in another run.directory"
)


def find(run: Path, world: World, config: Config) -> Checkpoint | None:
    """The newest checkpoint that verifies, the same on every worker.

    Raises UserError if a worker cannot see or read it, or if there are checkpoints and none verifies. But a run that
    has built its first weights (an adapter's, a preset's) then begins again; others have built only the shape.

    Each worker reads a part of the files, and all vote meanwhile: GPT-2 XL's 18.7 GB take longer than
    run.collective_timeout_seconds from a storage of 150 MB/s.
    """
    there = world.from_first([path.name for path in reversed(list_checkpoints(run))])
    if not there and world.from_first(fetched_model(run)):
        raise UserError(
            f"run.directory: {run} is a fetched copy with the model alone, which nothing resumes from; fetch it with "
            "--all, or use another run.directory and this one as model.name"
        )
    for name in there:
        path = run / "checkpoints" / name
        wait_for(path)
        own: list[str] = []
        found = world.together(lambda path=path, own=own: verify_checkpoint(path, (world.rank, world.size), own))
        problems = list(dict.fromkeys(problem for part in world.gather(own) for problem in part))
        if not problems:
            return found
        if world.first:
            say_damaged(path, problems)
    fresh = config.adapter.kind != "none" or (bool(config.model.size) and config.task == "language_model")
    if there and not fresh:
        raise UserError(
            f"run.directory: every checkpoint in {run / 'checkpoints'} is damaged, and none is overwritten; move the "
            "folder away to begin again, or use another run.directory"
        )
    return None


def load(found: Checkpoint, engine: Engine, progress: Progress, config: Config, data: str, first: bool) -> None:
    """Restore optimizer and progress of a checkpoint whose weights are already in the net; log what has changed.

    data: the digest of the data set.
    """
    engine.load(load_optimizer(found.path), found.state)
    progress.load(found.state, found.step)
    if first:
        log.event("resume", step=found.step, checkpoint=found.path)
        for key, before, now in changes(found.path / CONFIGURATION, config):
            log.warn("config_changed", key=key, before=before, now=now, effect=repr(EFFECTS[key]))
        if data and (before := found.state.get(DATA, data)) != data:
            log.warn("config_changed", key=DATA, before=str(before)[:12], now=data[:12], effect=repr(OTHER_DATA))


def load_weights(found: Checkpoint, work: Work, config: Config) -> None:
    """Read the weights of a checkpoint into the net. Raises UserError for another task's or another adapter.kind's."""
    settings = stored(read_text(found.path / CONFIGURATION))
    before = settings.get("task", config.task)
    if before != config.task:
        raise UserError(
            f"{found.path} is a checkpoint of task={before}, not {config.task}; use another run.directory, "
            "and model.name to start from these weights"
        )
    kind = settings.get("adapter.kind", "none")
    if kind != config.adapter.kind:
        raise UserError(
            f"{found.path} is a checkpoint of adapter.kind={kind}, not {config.adapter.kind}; use another run.directory"
        )
    work.load_model(found.path / "model")


def changes(path: Path, config: Config) -> list[tuple[str, Any, Any]]:
    """Key, value in the checkpoint's config.yaml, and value now, of each setting that matters and has changed."""
    before, now = stored(read_text(path)), stored(resolved(config))
    return [(key, before[key], now[key]) for key in EFFECTS if key in before and before[key] != now.get(key)]


def wait_for(path: Path, seconds: float = 60.0) -> None:
    """Wait until a file that another machine wrote is visible here: NFS caches directory listings for up to 60 s."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"{path} cannot be seen by every worker; put run.directory on storage that all of them mount"
            )
        time.sleep(0.5)
