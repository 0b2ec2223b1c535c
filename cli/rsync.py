"""Copy files between this machine and the shared volume with rsync, whose remote shell is `kubectl exec`.

A file appears under its name when it is whole and on the disk; until then it is in a hidden folder beside it, from
which the next attempt goes on. A lost connection is made again. The other end is not trusted: rsync checks the names
that it sends against what was asked for (--trust-sender is never given), and neither links nor devices are created.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli import CommandError
from cli.pods import Pod, error_lines, started
from cli.programs import find_rsync
from cli.progress import Bar
from trainer.plain import plain

PATIENCE_SECONDS = 60.0
"""Seconds without progress, over several connections, before the error is reported."""
PAUSE_SECONDS = 1.0
"""Between two attempts."""
SILENCE_SECONDS = 120
"""After which either end gives a connection up."""
HOST = "volume="
"""rsync's remote host: kubectl knows the pod, so `env` there takes this word as the name of an empty variable."""
OPTIONS = (
    *("--recursive", "--times", "--modify-window=-1", "--omit-dir-times", "--no-links", "--chmod=D755,F644", "--fsync"),
    *("--partial-dir=.incomplete", "--mkpath", "--no-inc-recursive", f"--timeout={SILENCE_SECONDS}"),
    *("--secluded-args", "--blocking-io", "--8-bit-output", "--outbuf=L", "--no-human-readable"),
    *("--info=progress2,stats2,nonreg1", "--out-format="),
)
FINAL = (1, 2, 3, 4, 6, 11, 13, 14, 21, 22, 23, 24, 25)
"""Exit codes of rsync after which another attempt would fail the same way; others are those of a lost connection,
20 too: rsync was told to end, and not by Ctrl-C, which interrupts this program as well."""
EMPTY = ("rsync error:", "rsync: connection unexpectedly closed")
"""Beginnings of lines that say only that there was an error."""


class LostError(Exception):
    """The connection broke, or the other end is not there yet."""


@dataclass(frozen=True)
class Copied:
    """What one rsync has copied, or would copy."""

    files: int
    bytes: int
    left_out: tuple[str, ...]
    """Links, FIFOs and devices."""


def send(pod: Pod, source: Path, folder: str, bar: Bar, follow_links: bool = False) -> Copied:
    """Send a file, or what is in a folder without hidden names, to a folder of the volume. Raises CommandError."""
    filters = ["--exclude=.*"] if source.is_dir() else []
    filters += ["--copy-links"] if follow_links or source.is_file() else []
    # An absolute path is none of another host, whatever its name.
    options = (*filters, f"{source.absolute()}{'/' if source.is_dir() else ''}", f"{HOST}:{folder}/")
    copied = _copy(pod, options, bar)
    if copied.files and _copy(pod, ("--dry-run", *options), bar).files:
        raise CommandError(f"{source}: changed while it was sent; run the same command again")
    return copied


def bring(pod: Pod, remote: str, folder: Path, bar: Bar, *filters: str) -> Copied:
    """Fetch a folder of the pod to one of this machine, by rsync's filters, no hidden names. Raises CommandError."""
    folder.mkdir(parents=True, exist_ok=True)
    return _copy(pod, ("--exclude=.*", *filters, f"{HOST}:{remote}/", f"{folder.resolve()}/"), bar, room=folder)


def _copy(pod: Pod, options: tuple[str, ...], bar: Bar, room: Path | None = None) -> Copied:
    """Ask rsync what is to be copied, then let it. `room`: a folder of this machine whose disk must hold it."""
    command = [find_rsync(), f"--rsh={shlex.join(pod.command('env'))}", *OPTIONS]
    planned = _patiently([*command, "--dry-run", *options])
    if room and planned.bytes > (free := shutil.disk_usage(room).free):
        raise CommandError(f"{room}: {planned.bytes / 1e9:,.1f} GB are to come, {free / 1e9:,.1f} GB are free")
    if planned.files and "--dry-run" not in options:
        bar.expect(planned.files, planned.bytes)
        _patiently([*command, *options], bar.reached)
    return planned


def _patiently(command: list[str], reached: Callable[[int], None] = lambda size: None) -> Copied:
    """Run rsync, and again while the connection breaks, until nothing has come through for a while.

    `reached` is told the bytes so far. Raises CommandError.
    """
    before = moved = 0
    broken: float | None = None

    def advance(size: int) -> None:
        nonlocal moved, broken
        if size > moved:
            moved, broken = size, None
            reached(before + moved)

    while True:
        try:
            return _rsync(command, advance)
        except LostError as error:
            before, moved = before + moved, 0
            broken = broken or time.monotonic()
            if time.monotonic() - broken > PATIENCE_SECONDS:
                raise CommandError(
                    f"the connection to the volume is lost: {error}; run the same command again: it continues where it "
                    "stopped"
                ) from None
            time.sleep(PAUSE_SECONDS)


def _rsync(command: list[str], advance: Callable[[int], None]) -> Copied:
    """Run rsync to its end; `advance` is told the bytes so far. Raises CommandError, and LostError."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")} | {"LC_ALL": "C"}
    counts, left_out = list[int](), list[str]()
    with tempfile.TemporaryFile() as said:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": said}
        # As text, for which a carriage return ends a line: rsync redraws its progress.
        with started(command, env=own, encoding="utf-8", errors="replace", **pipes) as process:
            lines: Any = process.stdout
            for line in lines:
                if progress := re.match(r" *(\d+) +\d+%", line):
                    advance(int(progress[1]))
                elif count := re.match(r"(?:Number of regular files|Total) transferred(?: file size)?: (\d+)", line):
                    counts.append(int(count[1]))
                elif odd := re.match(r'skipping non-regular file "(.*)"', line):
                    left_out.append(plain(odd[1]))
            code = process.wait()
        said.seek(0)
        errors = error_lines(said.read().decode("utf-8", "replace"))
    if code == 0:
        files, size = counts
        return Copied(files, size, tuple(sorted(left_out)))
    telling = (line for line in errors if not line.startswith(EMPTY) and "Broken pipe" not in line)
    reason = next(telling, f"no reason given (rsync ended with {code})").removeprefix("rsync: ")
    if "(NotFound)" in reason or "completed pod" in reason:
        raise CommandError(f"the pod on the volume is gone ({reason}); run the same command again")
    if code not in FINAL:
        raise LostError(reason)
    raise CommandError(f"{reason}; run the same command again, it continues where it stopped")
