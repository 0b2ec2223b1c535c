"""A trace of a few steps, to see where the time goes: metrics.profile=FIRST:LAST."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from trainer import log
from trainer.errors import one_line

FOLDER = "profile"
"""In the run directory; `trainyard fetch` downloads it."""
ROWS = 40
"""Rows of the table of operators beside the trace."""


class Profiler:
    """Traces the first worker; on the others it does nothing."""

    def __init__(self, steps: str, run: Path, device: torch.device, first: bool) -> None:
        begin, _, end = steps.partition(":")
        self._begin, self._end = (int(begin), int(end)) if steps and first else (1, 0)
        self._folder, self._cuda = run / FOLDER, device.type == "cuda"
        self._running: profile | None = None

    def before(self, step: int) -> None:
        """Call before each step (from 1): a run that resumes in the middle is traced from there."""
        if self._running is None and self._begin <= step <= self._end:
            self._begin = step
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
            self._running = profile(activities=kinds)
            self._running.start()

    def after(self, step: int) -> None:
        """Call after each step."""
        if self._running is not None and step >= self._end:
            self.close(step)

    def close(self, step: int) -> None:
        """Write the trace up to `step`, if there is one. A full storage costs the trace alone."""
        if self._running is None:
            return
        if self._cuda:
            torch.cuda.synchronize()
        running, self._running, self._end = self._running, None, 0
        running.stop()
        path = self._folder / f"steps-{self._begin}-{step}.json.gz"
        try:
            self._folder.mkdir(exist_ok=True)
            running.export_chrome_trace(str(path))
            by = "self_cuda_time_total" if self._cuda else "self_cpu_time_total"
            table = running.key_averages().table(sort_by=by, row_limit=ROWS)
            path.with_name(f"steps-{self._begin}-{step}.txt").write_text(table, encoding="utf-8")
        except (OSError, RuntimeError) as error:
            log.event("profile_failed", path=path, reason=repr(one_line(error)), action="'training goes on'")
            return
        log.event("profile", path=path)
