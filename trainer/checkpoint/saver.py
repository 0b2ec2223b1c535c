"""Decides when to write a checkpoint and which older ones to delete. Rank 0 only.

Training waits only for a copy to host memory; a thread writes the copy to the storage (docs/training.md has figures).
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import log
from trainer.checkpoint.format import (
    ModelWriter,
    Snapshot,
    checkpoint_folder,
    list_checkpoints,
    step_of,
    write_checkpoint,
)
from trainer.config.settings import Checkpoint as Settings
from trainer.contract import MANIFEST
from trainer.errors import cause, one_line

if TYPE_CHECKING:
    import torch

RETRY_SECONDS = 30.0
"""Pause after a failed write; doubles with each consecutive failure."""
LONGEST_RETRY_SECONDS = 600.0
LAST_SECONDS = 60.0
"""When the other workers are lost, the next round waits for a checkpoint in progress, since it holds minutes of work.
The worker that writes it and its launcher wait this long."""


def retry_pause(failures: int) -> float:
    """Seconds until the next attempt after this many consecutive failed writes."""
    return min(RETRY_SECONDS * 2 ** (failures - 1), LONGEST_RETRY_SECONDS)


class Saver:
    """Writes one checkpoint at a time.

    A save waits for the one in progress: every requested checkpoint is written, and host memory holds one copy. A
    failed write is logged as event=checkpoint_failed and training goes on; `overdue` asks for another attempt soon.
    """

    def __init__(
        self,
        run: Path,
        settings: Settings,
        write_model: ModelWriter,
        configuration: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._settings, self._write_model, self._configuration = run, settings, write_model, configuration
        self._clock = clock
        self._host: dict[str, torch.Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._failures = 0
        self._since = clock()
        """When the last checkpoint was copied, or the last write failed."""
        self.saved: tuple[int, float] | None = None
        """Step of the newest checkpoint that was written, and when, in seconds since 1970."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def overdue(self) -> bool:
        """Whether a checkpoint is due by this worker's clock: by checkpoint.every_minutes, or after a failed one."""
        if self.busy:
            return False
        waited = self._clock() - self._since
        if self._failures:
            return waited >= retry_pause(self._failures)
        return 0 < self._settings.every_minutes * 60 <= waited

    def save(self, step: int, snapshot: Snapshot) -> Path:
        """Copy the snapshot, start a thread that writes it, and return its future folder.

        The snapshot's tensors may change once this returns. Storage failures are not raised here: see `wait`.
        """
        self._join()
        copy = snapshot if snapshot.owned else self._copied(snapshot)
        self._since = self._clock()
        # Not a daemon: a process that ends on an error still finishes its checkpoint.
        self._thread = threading.Thread(target=self._write, args=(step, copy), name="checkpoint")
        self._thread.start()
        return checkpoint_folder(self._run, step)

    def wait(self) -> None:
        """Return when the newest checkpoint is written. Raises OSError when it could not be."""
        self._join()
        if self._error is not None:
            raise self._error

    def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Wait up to this long for the checkpoint in progress. For use before os._exit, which waits for no thread."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _copied(self, snapshot: Snapshot) -> Snapshot:
        """Copy the snapshot to our own host memory, which is reused: new pages cost more than the copy itself."""
        import torch

        copies: dict[tuple[int, torch.Size, torch.dtype], torch.Tensor] = {}

        def copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
            tensor = tensor.detach()
            same = (tensor.data_ptr(), tensor.shape, tensor.dtype)
            if tensor.numel() and same in copies:
                return copies[same]  # tied weights stay tied: save_pretrained recognises them by their memory
            buffer = self._host.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._host[name] = buffer
            copies[same] = buffer.copy_(tensor, non_blocking=True)
            return buffer

        def all_of(prefix: str, tensors: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
            return {name: copied(f"{prefix}/{name}", tensor) for name, tensor in tensors.items()}

        copy = replace(
            snapshot,
            weights=all_of("weights", snapshot.weights),
            optimizer={name: all_of(f"optimizer/{name}", part) for name, part in snapshot.optimizer.items()},
            state=dict(snapshot.state),
            figures=dict(snapshot.figures),
        )
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return copy

    def _write(self, step: int, snapshot: Snapshot) -> None:
        """Write the checkpoint, put the outcome into `_error`, and delete old checkpoints."""
        begin = self._clock()
        try:
            path = write_checkpoint(self._run, step, snapshot, self._write_model, self._configuration)
            self._error, self._failures, self.saved = None, 0, (step, time.time())
        except Exception as error:  # whatever it is, it must not stop the training
            self._error = error if isinstance(error, OSError) else OSError(0, cause(error))
            self._failures += 1
            self._since = self._clock()
            log.warn(
                "checkpoint_failed",
                step=step,
                reason=repr(self._error.strerror or str(self._error)),
                action="'training goes on'",
            )
            return
        log.event("checkpoint", step=step, seconds=self._clock() - begin)
        prune(self._run, path, self._settings.keep, self._settings.keep_every)


def prune(run: Path, written: Path, keep: int, keep_every: int) -> None:
    """Delete all but the newest `keep` checkpoints, those at multiples of `keep_every`, and `written`, which is good.

    A checkpoint later than `written` failed verification when the run resumed from an earlier one: it is not counted,
    and stays until it is written again. One without a manifest never takes the place of a good one.
    """
    older = [path for path in list_checkpoints(run) if path.name < written.name]
    good = [path for path in older if (path / MANIFEST).exists()]
    kept = set(good[-(keep - 1) :] if keep > 1 else [])
    for path in older:
        forever = keep_every > 0 and step_of(path) % keep_every == 0
        if path in kept or (forever and path in good):
            continue
        try:
            # Renamed first: a half-deleted folder must not look like a checkpoint.
            hidden = path.with_name(f".{path.name}.old.{os.getpid()}")
            path.rename(hidden)
            shutil.rmtree(hidden)
        except OSError as error:  # deleting can wait: `clean` tries again with the next checkpoint
            reason = repr(error.strerror or one_line(error))
            log.say(log.line(event="checkpoint_kept", path=path, reason=reason), sys.stderr)
