"""Run Pulumi for `trainyard up` and `down`: on a terminal as it is, but for advice that no longer holds, elsewhere with
one line a resource.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterable, Iterator

from cli import CommandError
from cli.target import STOPPED, node_runs, run
from infra.stackfiles import ROOT
from infra.state import lock

#: A resource's line while Pulumi works on it: its state, seconds and what is said of it. Pulumi 3.200 has no option
#: that leaves these lines out.
DOING = re.compile(
    r" [-+~ ]{2} \S+ \S+ (?:creat|updat|delet|replac|read|refresh|import|discard|runn)ing(?: replacement| original)?"
    r"(?: \((\d+)s\))? ?(.*)"
)
#: Seconds after which a resource that is not done tells what it waits for.
SLOW = 15
#: What Pulumi says at the end of a destroy; a stack on this machine is removed next.
MAINTAINED = ("The resources in the stack have been deleted, but the history", "If you want to remove the stack compl")


def pulumi(command: str, stack: str, yes: bool, local: bool, *options: str, preview: bool = False) -> int:
    """Run `up` or `destroy`. `preview`: also with `yes`, since Pulumi's own guards stand there.

    Raises:
        CommandError: the stack is locked, or its node was stopped meanwhile.
    """
    if local and (locked := lock(stack)):
        raise CommandError(locked)
    unasked = ["--yes", *([] if preview else ["--skip-preview"]), "--suppress-progress"] if yes else []
    whole = ["pulumi", command, "--stack", stack, *unasked, *options]
    if not sys.stdout.isatty():
        code = _piped(whole, local)
    elif local and command == "destroy" and sys.stdin.isatty():
        code = on_terminal(whole)
    else:
        code = run(*whole)
    if code and local and not node_runs():
        raise CommandError(f"{STOPPED}; then the same command again", code=code)
    return code


def on_terminal(command: list[str]) -> int:
    """Run it on this terminal without Pulumi's last words, which call a stack maintained that is removed next.

    They are the last: all that comes after their beginning is left out. Ctrl-C reaches it as a key.
    """
    words, held = MAINTAINED[0].encode(), b""

    def read(terminal: int) -> bytes:
        nonlocal held
        while True:
            # At each output, so that a new size of the window is passed on.
            termios.tcsetwinsize(terminal, termios.tcgetwinsize(sys.stdout))
            select.select([terminal], [], [])
            try:
                more = os.read(terminal, 4096)
            except OSError:  # the end, on Linux
                more = b""
            held += more
            at = held.find(words)
            if at < 0:  # their beginning waits for the rest
                at = next(n for n in range(len(held) + 1) if words.startswith(held[n:]))
            told, held = held[:at], held[at:]
            if told or not more:
                return told

    with contextlib.chdir(ROOT):
        return os.waitstatus_to_exitcode(pty.spawn(command, read))


def _piped(command: list[str], local: bool) -> int:
    """Run it with what it prints in short; Ctrl-C reaches it too, and it ends what it has begun."""
    sys.stdout.flush()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        lines = short(process.stdout, removed=local)
        while True:
            try:
                for line in lines:
                    print(line, end="", flush=True)
                return process.wait()
            except KeyboardInterrupt:
                lines = short(process.stdout, removed=local)


def short(lines: Iterable[str], removed: bool = False) -> Iterator[str]:
    """Pulumi's lines without those that the end of a resource repeats. Errors and diagnostics are all there.

    removed: without the advice to remove the stack, too.
    """
    told: set[str] = set()
    progress = True
    for line in lines:
        progress = progress and not line.startswith("Diagnostics:")
        doing = DOING.fullmatch(line.rstrip()) if progress else None
        if doing:
            seconds, said = int(doing[1] or 0), doing[2]
            kept = "error" in said or (seconds >= SLOW and not said.startswith(("[diff", "warning: ")))
            if not kept or not said or said in told:
                continue
            told.add(said)
        if not (removed and line.startswith(MAINTAINED)):
            yield line
