"""Transfer files between this machine and the shared volume with rsync, through the pod that mounts the volume.

rsync's remote shell is `kubectl exec -i` (cli/reach.py), and its other end is started by cli/volume_program.py. Both
ends keep incomplete files in a hidden folder, under which an interrupted command continues. A broken connection is made
again. Neither end is trusted: names that the volume gives are checked here and by rsync itself (--trust-sender is never
given), and neither links nor devices are created, on either side.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, TypeVar

from cli import CommandError
from cli.programs import find_rsync
from cli.progress import Bar
from cli.volume_program import BUSY, PIECE, REFUSED, WRITING, RefusedError, drop, enter, prepare
from trainer.plain import plain

PATIENCE_SECONDS = 60.0
"""Seconds without progress, over several connections, before the error is reported."""
PAUSE_SECONDS = 1.0
"""Between two attempts."""
ANSWER_SECONDS = 120
"""Seconds of silence after which either end gives a connection up."""
PARTIAL = ".incomplete"
HOLES, HOLES_BYTES = 16, 64 << 20
"""A larger file whose size is that many times what it has on the disk is left out: terabytes of nothing take hours."""
REMOTE = 'sh -c \'shift; eval "exec $TRAINYARD_POD \\"\\$@\\""\' sh'
"""rsync's remote shell: drops the host's name; the environment has the command, quoted for this shell."""
OPTIONS = (
    *("--secluded-args", "--blocking-io", "--files-from=-", "--from0", "--no-inc-recursive"),
    # Links and devices of the sender are left out: rsync follows and creates none unless it is told to.
    *("--no-links", "--no-D", "--times", "--omit-dir-times", "--modify-window=-1", "--chmod=D755,F644", "--fsync"),
    *("--info=progress2,stats2", "--out-format=%i %n", "--no-human-readable", "--8-bit-output", "--outbuf=L"),
)
FINAL = (1, 2, 3, 4, 6, 11, 13, 14, 20, 21, 22, 23, 24, 25)
"""Exit codes of rsync after which another attempt would fail the same way; others are those of a lost connection."""
EMPTY = ("rsync error:", "rsync: connection unexpectedly closed", "command terminated with exit code")
"""Beginnings of lines that say only that there was an error."""


T = TypeVar("T")


class TransferError(CommandError):
    """One line for the terminal."""


class LostError(Exception):
    """The connection broke, or the other end is not there yet."""


@dataclass(frozen=True)
class Found:
    """What is under a folder of the volume."""

    files: dict[str, int]
    """Relative path -> size."""
    odd: dict[str, str]
    """Relative path -> why it is left out: links, FIFOs, files that are mostly holes."""


@dataclass(frozen=True)
class Volume:
    """The shared volume. `shell` runs a command in its pod, `program` is that of cli/volume_program.py there."""

    shell: tuple[str, ...]
    program: tuple[str, ...]

    def find(self, folder: str) -> Found:
        """The files under a folder; none when it is not there. Raises TransferError.

        Also for a name that leads out of the folder: somebody who may change pods could answer in its place, and the
        files are written to this machine.
        """
        files, odd = dict[str, int](), dict[str, str]()
        for item in patiently(lambda _: list(self.lines("list", folder)), folder):
            name = PurePosixPath(item["path"])
            if name.is_absolute() or any(part.startswith(".") for part in name.parts) or not name.parts:
                raise TransferError(
                    f"{folder}: the volume names '{name!s}', which leads out of the folder; nothing is fetched"
                )
            if "odd" in item:
                odd[item["path"]] = str(item["odd"])
            elif item["size"] > max(HOLES_BYTES, item["allocated"] * HOLES):
                odd[item["path"]] = f"{item['size'] / 1e9:,.1f} GB of holes"
            else:
                files[item["path"]] = int(item["size"])
        return Found(files, odd)

    def lines(self, *arguments: str) -> Iterator[dict[str, Any]]:
        """Yield the program's lines as they come. Raises TransferError, and LostError when the last one is missing."""
        command = [*self.shell, *self.program, *arguments]
        with (
            tempfile.TemporaryFile() as said,
            started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said) as process,
        ):
            assert process.stdout
            for text in process.stdout:
                with contextlib.suppress(ValueError):
                    line = json.loads(text)
                    if line == {"complete": True}:
                        return
                    yield line
            process.wait()
            raise LostError(_reason(said))


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    process: Any = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()
        process.wait()


def put(volume: Volume, source: Path, names: list[str], folder: str, bar: Bar, shared: bool = False) -> bool:
    """Send files below the folder `source` to a folder of the volume. Raises TransferError.

    Returns whether it changed a file there, or what is in a folder that had files, unless others share that folder.
    """
    had = bool(shared or volume.find(folder).files)
    before = {name: _state(source / name) for name in names}
    own = hashlib.sha256(f"{platform.node()} {source.resolve()}".encode("utf-8", "surrogateescape")).hexdigest()[:12]
    # Links of the list were followed, and checked, when it was made.
    ends = ["--copy-links", f"{source}/", "volume:./"]
    bar.total(len(names), sum(size for size, _ in before.values()))
    new = changed = False
    for number, batch in _batches({name: size for name, (size, _) in before.items()}):
        partial = f"{PARTIAL}-{own}-{number}"
        made, other = _rsync(volume, batch, folder, f"{folder}/{partial}", partial, ends, bar, bool(number))
        new, changed = new or made, changed or other
    for name, state in before.items():
        if _state(source / name) != state:
            raise TransferError(f"{source / name}: changed while it was sent; run the same command again")
    return changed or (new and had and not shared)


def get(volume: Volume, remote: str, files: dict[str, int], folder: Path, bar: Bar) -> None:
    """Fetch files (path below `remote` -> size) to a folder of this machine. Raises TransferError."""
    if not files:
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    there = {name: path.stat().st_size for name in files if (path := folder / name).is_file()}
    needed = sum(size for name, size in files.items() if there.get(name) != size)
    if needed > (free := shutil.disk_usage(folder).free):
        raise TransferError(f"{folder}: {needed / 1e9:,.1f} GB are to come, {free / 1e9:,.1f} GB are free")
    top = enter(folder)
    try:
        for number, batch in _batches(files):
            partial = f"{PARTIAL}-{number}"
            lock = patiently(lambda _, name=partial: prepare(top, name), str(folder))
            try:
                ends = ["volume:./", f"{folder}/"]
                _rsync(volume, batch, remote, f"{folder}/{partial}", "", ends, bar, bool(number), lock)
                drop(top, partial)
            finally:
                os.close(lock)
    except RefusedError as error:
        raise TransferError(str(error)) from None
    finally:
        os.close(top)
    for name in files:
        if not (folder / name).is_file() or (folder / name).is_symlink():
            raise TransferError(f"{remote}/{name}: went while it was fetched; run the same command again")


def _batches(files: dict[str, int]) -> Iterator[tuple[int, dict[str, int]]]:
    """Number and files of each run of rsync: small files, which are not resumed, then large ones.

    rsync looks for the part of an interrupted file by the last word of its path, so no two in a batch have that in
    common. The same files give the same batches in the next command.
    """
    batches: list[dict[str, int]] = [{}]
    words = Counter[str]()
    for name, size in sorted(files.items()):
        word = name.rpartition("/")[2].casefold()
        words[word] += size > PIECE
        number = words[word] if size > PIECE else 0
        batches += [{}] if number == len(batches) else []
        batches[number][name] = size
    yield from ((number, batch) for number, batch in enumerate(batches) if batch)


def copy(volume: Volume, source: str, folder: str, bar: Bar, name: str = "") -> str:
    """Let the pod copy what an address names into a folder of the volume. Raises TransferError.

    Returns the path of the file or folder there. `name`: the subfolder to make when the address is not a file.
    """

    def attempt(alive: Callable[[], None]) -> str:
        inside, seen = folder, dict[str, int]()
        try:
            for step in volume.lines("copy", source, folder, name):
                alive()
                if "files" in step:
                    inside = step["inside"]
                    bar.total(step["files"], step["bytes"] or None)
                    continue
                bar.file(step["name"])
                bar.advance(step["done"] - seen.get(step["name"], 0))
                seen[step["name"]] = step["done"]
        except LostError:
            bar.advance(-sum(seen.values()))  # the next attempt starts over and reports it again
            raise
        return inside

    return patiently(attempt, folder)


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise TransferError(f"{path}: {error.strerror}; run the same command again") from None
    return status.st_size, status.st_mtime_ns


def _rsync(
    volume: Volume,
    files: dict[str, int],
    remote: str,
    incomplete: str,
    there: str,
    ends: list[str],
    bar: Bar,
    resume: bool,
    *inherited: int,
) -> tuple[bool, bool]:
    """Run rsync until it is through; return whether it made a file, and whether it changed one.

    incomplete: the receiver's folder of incomplete files; there: its name, when the volume receives, else "".
    """
    keep = [f"--temp-dir={incomplete}/{WRITING}", f"--timeout={ANSWER_SECONDS}"]
    keep += [f"--partial-dir={incomplete}"] if resume else []
    command = [find_rsync(), f"--rsh={REMOTE}", *OPTIONS, *keep, *ends]
    size = sum(files.values())
    shell = shlex.join([*volume.shell, *volume.program, "rsync", remote, there])
    own = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    environment = {**own, "LC_ALL": "C", "TRAINYARD_POD": shell}
    done, new, changed = 0, False, False

    def attempt(alive: Callable[[], None]) -> None:
        nonlocal done, new, changed
        with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile() as said:
            listed.write(b"".join(os.fsencode(name) + b"\0" for name in files))
            listed.seek(0)
            options = {"stdin": listed, "stdout": subprocess.PIPE, "stderr": said, "pass_fds": inherited}
            with started(command, env=environment, **options) as process:
                assert process.stdout
                moved = literals = 0
                for line in _pieces(process.stdout):
                    if item := re.match(r"[<>]f(.)(.)\S* (.*)", line):
                        new, changed = new or item[1] == "+", changed or item[2] == "s"
                        bar.file(plain(item[3].rpartition("/")[2]))
                    elif literal := re.match(r"Literal data: (\d+)", line):
                        literals = int(literal[1])
                    elif progress := re.match(r" *(\d+) +\d+%", line):
                        if int(progress[1]) > moved:
                            alive()
                        moved = int(progress[1])
                        bar.advance(min(moved, size) - done)
                        done = min(moved, size)
                code = process.wait()
            if code == 0:
                # What came for new files counts as literal, too.
                changed |= bool(literals) and not new
                return
            reason = _reason(said)
            if code == -2 or code == 20:
                raise KeyboardInterrupt
            if code not in FINAL:
                raise LostError(reason)
            raise TransferError(f"{reason}; run the same command again, it continues where it stopped")

    patiently(attempt, remote)
    bar.skip(size - done)
    return new, changed


def _pieces(stream: IO[bytes]) -> Iterator[str]:
    """The lines of a stream, and what comes before each carriage return: rsync redraws its progress."""
    rest = b""
    while part := os.read(stream.fileno(), 1 << 16):
        *lines, rest = re.split(rb"[\r\n]", rest + part)
        yield from (line.decode("utf-8", "replace") for line in lines)


def _reason(said: BinaryIO) -> str:
    """The line of an output that names the cause. Raises TransferError for what the pod's program refuses, and
    BlockingIOError when another command uses the folder."""
    said.seek(0)
    text = said.read().decode("utf-8", "replace")
    lines = [plain(line) for line in text.splitlines()]
    for line in lines:
        if REFUSED in line:
            raise TransferError(line.partition(REFUSED)[2])
        if "(NotFound)" in line:
            raise TransferError(f"the pod on the volume is gone ({line}); run the same command again")
        if BUSY in line:
            raise BlockingIOError
    told = [line for line in lines if line.strip() and not line.startswith(EMPTY) and "Broken pipe" not in line]
    return (told or lines or ["no reason given"])[0].removeprefix("rsync: ")


def patiently(attempt: Callable[[Callable[[], None]], T], what: str) -> T:
    """Try again while the connection breaks, until nothing has come through for a while."""
    broken: float | None = None

    def alive() -> None:
        nonlocal broken
        broken = None

    while True:
        try:
            return attempt(alive)
        except (LostError, BlockingIOError) as error:
            broken = broken or time.monotonic()
            if time.monotonic() - broken > PATIENCE_SECONDS:
                said = f"the connection to the volume is lost ({what}): {error}"
                if isinstance(error, BlockingIOError):
                    said = f"{what}: another command transfers the same files; wait for its end"
                raise TransferError(f"{said}; run the same command again: it continues where it stopped") from None
            time.sleep(PAUSE_SECONDS)
