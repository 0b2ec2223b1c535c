"""Run Pulumi for `trainyard up` and `down`: on a terminal as it is, elsewhere with one line a resource."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

from cli import CommandError
from cli.target import STOPPED, node_runs, run
from infra.stackfiles import ROOT
from infra.state import lock

TRAINYARD = (sys.executable, "-m", "cli")
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


def pulumi(command: str, stack: str, yes: bool, local: bool, *options: str) -> int:
    """Run `up` or `destroy`; on this machine `trainyard local timings` lists how long it took.

    Raises:
        CommandError: the stack is locked, or its node was stopped meanwhile.
    """
    if local and (locked := lock(stack)):
        raise CommandError(locked)
    typed = ["pulumi", command, "--stack", stack, *(["--yes", "--skip-preview", "--suppress-progress"] if yes else [])]
    timed = [*TRAINYARD, "local", "run", "--phase", f"pulumi {command}", "--"] if local else []
    whole = [*timed, *typed, *options]
    code = run(*whole) if sys.stdout.isatty() else _piped(whole, local)
    if code and local and not node_runs():
        raise CommandError(f"{STOPPED}; then the same command again", code=code)
    return code


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
