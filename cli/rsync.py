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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

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
T = TypeVar("T")


class LostError(Exception):
    """The connection broke, or the other end is not there yet."""


@dataclass
class Copied:
    """What one rsync has copied, or would copy."""

    files: int = 0
    bytes: int = 0
    left_out: tuple[str, ...] = ()
    """Links, FIFOs and devices."""


def send(pod: Pod, source: Path, folder: str, bar: Bar, follow_links: bool = False) -> Copied:
    """Send a file, or what is in a folder without hidden names, to a folder of the volume. Raises CommandError."""
    filters = ["--exclude=.*"] if source.is_dir() else []
    filters += ["--copy-links"] if follow_links or source.is_file() else []
    # An absolute path is none of another host, whatever its name.
    sent = f"{source.absolute()}/" if source.is_dir() else str(source.absolute())
    before = _states(source)
    copied = _copy(pod, (*filters, sent, f"{HOST}:{folder}/"), folder, bar)
    if changed := before.items() ^ _states(source).items():
        raise CommandError(f"{min(changed)[0]}: changed while it was sent; run the same command again")
    return copied


def _states(source: Path) -> dict[str, tuple[int, int]]:
    """Size and time of a file, or of each below a folder."""
    found = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def bring(pod: Pod, remote: str, folder: Path, bar: Bar, *filters: str) -> Copied:
    """Fetch a folder of the pod to one of this machine, by rsync's filters, no hidden names. Raises CommandError."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ("--exclude=.*", *filters, f"{HOST}:{remote}/", f"{folder.resolve()}/")
    return _copy(pod, options, remote, bar, room=folder)


def _copy(pod: Pod, options: tuple[str, ...], what: str, bar: Bar, room: Path | None = None) -> Copied:
    """Ask rsync what is to be copied, then let it. `room`: a folder of this machine whose disk must hold it."""
    shell = shlex.join([*pod.command("env")])
    command = [find_rsync(), f"--rsh={shell}", *OPTIONS]
    planned = _patiently(lambda _: _rsync([*command, "--dry-run", *options], lambda moved: None), what)
    if room and planned.bytes > (free := shutil.disk_usage(room).free):
        raise CommandError(f"{room}: {planned.bytes / 1e9:,.1f} GB are to come, {free / 1e9:,.1f} GB are free")
    if not planned.files:
        return planned
    bar.expect(planned.files, planned.bytes)
    done = 0

    def attempt(alive: Callable[[], None]) -> None:
        nonlocal done
        before = done

        def advance(moved: int) -> None:
            nonlocal done
            alive()
            more = max(done, min(before + moved, planned.bytes)) - done
            done += more
            bar.advance(more)

        _rsync([*command, *options], advance)

    _patiently(attempt, what)
    bar.advance(planned.bytes - done)
    return planned


def _rsync(command: list[str], advance: Callable[[int], None]) -> Copied:
    """Run rsync to its end; `advance` is told the bytes so far. Raises CommandError, and LostError."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    found, left_out, moved = Copied(), list[str](), 0
    with tempfile.TemporaryFile() as said:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": said}
        with started(command, env={**own, "LC_ALL": "C"}, **pipes) as process:
            assert process.stdout
            for line in _pieces(process.stdout):
                if progress := re.match(r" *(\d+) +\d+%", line):
                    if int(progress[1]) > moved:
                        advance(moved := int(progress[1]))
                elif count := re.match(r"Number of regular files transferred: (\d+)", line):
                    found.files = int(count[1])
                elif size := re.match(r"Total transferred file size: (\d+)", line):
                    found.bytes = int(size[1])
                elif odd := re.match(r'skipping non-regular file "(.*)"', line):
                    left_out.append(plain(odd[1]))
            code = process.wait()
        said.seek(0)
        lines = error_lines(said.read().decode("utf-8", "replace"))
    found.left_out = tuple(sorted(left_out))
    if code == 0:
        return found
    telling = (line for line in lines if not line.startswith(EMPTY) and "Broken pipe" not in line)
    reason = next(telling, f"no reason given (rsync ended with {code})").removeprefix("rsync: ")
    if "(NotFound)" in reason or "completed pod" in reason:
        raise CommandError(f"the pod on the volume is gone ({reason}); run the same command again")
    if code not in FINAL:
        raise LostError(reason)
    raise CommandError(f"{reason}; run the same command again, it continues where it stopped")


def _pieces(stream: IO[bytes]) -> Iterator[str]:
    """The lines of a stream, and what comes before each carriage return: rsync redraws its progress."""
    rest = b""
    while part := os.read(stream.fileno(), 1 << 16):
        *lines, rest = re.split(rb"[\r\n]", rest + part)
        yield from (line.decode("utf-8", "replace") for line in lines)


def _patiently(attempt: Callable[[Callable[[], None]], T], what: str) -> T:
    """Try again while the connection breaks, until nothing has come through for a while."""
    broken: float | None = None

    def alive() -> None:
        nonlocal broken
        broken = None

    while True:
        try:
            return attempt(alive)
        except LostError as error:
            broken = broken or time.monotonic()
            if time.monotonic() - broken > PATIENCE_SECONDS:
                raise CommandError(
                    f"the connection to the volume is lost ({what}): {error}; run the same command again: it continues "
                    "where it stopped"
                ) from None
            time.sleep(PAUSE_SECONDS)
