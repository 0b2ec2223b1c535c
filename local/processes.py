"""Starts, checks and stops the daemons of the node.

A daemon's record has its process id, its start time and the machine's boot id, because the kernel reuses process ids:
a process with another start time is never signalled. A daemon is restarted when its command or configuration changed,
or when it is unhealthy.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from local import paths
from local.shell import UMASK, LocalError

# A start deletes a daemon's log that is larger than this, in bytes.
LOG_LIMIT = 20_000_000
# Seconds that a running daemon may take to answer before it is restarted: the machine may just be busy.
GRACE = 15.0


@dataclass(frozen=True)
class Daemon:
    """One program of the node. `health` returns None while it serves, else the problem."""

    name: str
    command: list[str]
    health: Callable[[], str | None]
    files: tuple[Path, ...] = ()  # configuration whose change needs a restart
    environment: dict[str, str] = field(default_factory=dict)
    netns: str = "trainyard"
    stop_seconds: float = 10.0  # between SIGTERM and SIGKILL
    start_seconds: float = 180.0  # until it must be healthy: an API server on a busy machine took more than a minute


@dataclass(frozen=True)
class Record:
    """Identifies a process that we started, until the machine reboots."""

    pid: int
    started: int  # clock ticks after boot, field 22 of /proc/PID/stat
    boot: str
    digest: str  # of the command and the configuration it was started with
    since: float  # seconds since the epoch


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks after boot; None if it does not exist or is a zombie.

    One whose first thread has ended looks like a zombie while others still hold its files and ports.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the program's name may contain spaces and parentheses
    threads, started = int(fields[17]), int(fields[19])
    return None if fields[0] in "ZX" and threads < 2 else started


def is_alive(record: Record | None) -> bool:
    """Whether the recorded process still runs."""
    return record is not None and record.boot == boot_id() and start_time(record.pid) == record.started


def record_path(name: str) -> Path:
    return paths.PROCESSES / f"{name}.json"


def read_record(name: str) -> Record | None:
    try:
        return Record(**json.loads(record_path(name).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def log_path(name: str) -> Path:
    return paths.LOGS / f"{name}.log"


def digest(daemon: Daemon) -> str:
    summary = hashlib.sha256(json.dumps([daemon.command, daemon.environment, daemon.netns]).encode())
    for path in daemon.files:
        summary.update(path.read_bytes())
    return summary.hexdigest()


def is_current(daemon: Daemon) -> bool:
    """Whether the daemon runs with today's command and configuration."""
    record = read_record(daemon.name)
    return is_alive(record) and record is not None and record.digest == digest(daemon)


def ensure(daemon: Daemon) -> bool:
    """Start the daemon unless it runs unchanged and healthy. Returns whether it was started; `wait` waits for it."""
    deadline = time.monotonic() + GRACE
    while is_current(daemon):
        if daemon.health() is None:
            return False
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    stop(daemon.name, daemon.stop_seconds)
    end_all(strays(daemon.command), daemon.stop_seconds)
    start(daemon)
    return True


def start(daemon: Daemon) -> Record:
    for folder in (paths.PROCESSES, paths.LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    log = log_path(daemon.name)
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.unlink()
    # nsenter, because `ip netns exec` mounts a fresh /sys, in which the kubelet finds no cgroups.
    command = ["nsenter", f"--net=/run/netns/{daemon.netns}", "--", *daemon.command] if daemon.netns else daemon.command
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C and hangup do not reach the daemons
            cwd="/",
            umask=UMASK,
            env=environment(daemon),
        )
    started = start_time(process.pid)
    record = Record(process.pid, started or 0, boot_id(), digest(daemon), time.time())
    temporary = record_path(daemon.name).with_suffix(".new")
    temporary.write_text(json.dumps(asdict(record)))
    temporary.replace(record_path(daemon.name))
    _CHILDREN[process.pid] = process
    return record


# The children of this process. Polling reaps those that have ended, so that none stays a zombie.
_CHILDREN: dict[int, "subprocess.Popen[bytes]"] = {}


def environment(daemon: Daemon) -> dict[str, str]:
    """Return a daemon's environment. It has no proxy of the caller's: daemons use only the namespace's addresses."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        **daemon.environment,
    }


def wait(daemon: Daemon) -> None:
    """Wait until the daemon serves.

    Raises:
        LocalError: it ended, or does not serve in time; with its last log lines.
    """
    deadline = time.monotonic() + daemon.start_seconds
    reason: str | None = "not asked yet"
    while time.monotonic() < deadline:
        reason = daemon.health()
        if reason is None:
            return
        record = read_record(daemon.name)
        if record and record.pid in _CHILDREN:
            _CHILDREN[record.pid].poll()
        if not is_alive(record):
            raise LocalError(f"{daemon.name} ended before it served: {last_lines(daemon.name)}")
        time.sleep(0.1)
    raise LocalError(
        f"{daemon.name} does not serve after {daemon.start_seconds:.0f} s ({reason}): {last_lines(daemon.name)}"
    )


def last_lines(name: str) -> str:
    """Return the end of a daemon's log, with the log's path, for an error message."""
    try:
        with log_path(name).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4000))
            lines = log.read().decode(errors="replace").strip().splitlines()[-3:]
    except OSError:
        lines = ["no log"]
    return " | ".join(line[:300] for line in lines) + f" (log: {log_path(name)})"


def stop(name: str, seconds: float = 10.0) -> bool:
    """End the recorded process, with SIGTERM first. Returns whether it ran."""
    record = read_record(name)
    running = is_alive(record)
    if running and record:
        end_all([record.pid], seconds)
    record_path(name).unlink(missing_ok=True)
    return running


def end_all(pids: Iterable[int], seconds: float) -> None:
    """Send SIGTERM to these processes, and SIGKILL to those that are left after `seconds`."""
    started = {pid: start_time(pid) for pid in pids}

    def left() -> list[int]:
        for pid in started.keys() & _CHILDREN.keys():
            _CHILDREN[pid].poll()
        return [pid for pid, when in started.items() if when is not None and start_time(pid) == when]

    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience
        while left() and time.monotonic() < deadline:
            time.sleep(0.02)


def find(matches: Callable[[Path], bool]) -> list[int]:
    """Find the processes whose directory in /proc matches, without those that end meanwhile."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if matches(entry):
                    found.append(int(entry.name))
    return found


def strays(command: list[str]) -> list[int]:
    """Find unrecorded processes of ours by their exact command line, which names files of this checkout.

    A start that was killed between starting the process and writing its record leaves one.
    """
    wanted = b"\0".join(part.encode() for part in command) + b"\0"
    return find(lambda entry: (entry / "cmdline").read_bytes() == wanted)


def in_namespace(netns: str) -> list[int]:
    """Find all processes in the named network namespace."""
    try:
        wanted = os.stat(f"/run/netns/{netns}").st_ino
    except OSError:
        return []
    return find(lambda entry: os.stat(entry / "ns" / "net").st_ino == wanted)
