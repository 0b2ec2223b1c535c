"""`python -m prove --stack NAME`: bring a stack up, try every claim on the living cluster, destroy it, write a report.

The stack is one of its own, prove-NAME, with the machines and the model of Pulumi.NAME.yaml and a short training; what
somebody brought up as NAME is not touched. The report goes to bench/results/prove-NAME.md and .json.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.graph import creation, destruction
from infra.config import ConfigError
from infra.doctor.amazon import NoAnswer as AmazonSilent
from infra.doctor.google import NoAnswer as GoogleSilent
from infra.stackfiles import ROOT, stack_file_values, stacks
from prove import report
from prove.engine import State, load, play
from prove.rows import steps
from prove.screen import Screen
from prove.subject import Command, Subject
from prove.volume import reachable
from review.recording import record

HOME = ROOT / ".local" / "prove"
LOCAL = "trainyard-local"
STEP_MINUTES = 45
"""What the steps between `up` and `destroy` take on a cloud, about: nodes come four times."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        values = stack_file_values(options.stack) if options.stack in stacks() else None
        if values is None:
            raise Refused(f"--stack {options.stack}: no such stack; there are {', '.join(stacks())}")
        if not options.limit_usd > 0:
            raise Refused(f"--limit-usd {options.limit_usd:g}: has to be more than 0")
        if (values.get("cluster") or {}).get("context") == LOCAL and not _is_inside():
            return _inside(sys.argv[1:] if arguments is None else arguments)
        folder: Path = options.folder or HOME / options.stack
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"--stack {options.stack}: another proof of it runs now") from None
            return _prove(options, folder)
    except (Refused, ConfigError, Command, AmazonSilent, GoogleSilent) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


class Refused(Exception):
    """Nothing was begun; the text says why and what to do."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prove", description="Bring a stack up, try every claim on it, destroy it, write a report."
    )
    parser.add_argument("--stack", required=True, metavar="NAME", help=f"one of {', '.join(stacks())}")
    parser.add_argument("--short", action="store_true", help="5 minutes: up, training, a lost pod, own text, destroy")
    parser.add_argument("--keep", action="store_true", help="leave the stack; --destroy takes it away later")
    parser.add_argument("--limit-usd", type=float, default=5, metavar="USD", help="destroy when it costs more (5)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--resume", action="store_true", help="go on with the run that was interrupted or kept")
    how.add_argument(
        "--adopt", action="store_true", help="begin with a stack prove-NAME that is there, without its run"
    )
    how.add_argument("--destroy", action="store_true", help="only take away what a run has left")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, default=report.FOLDER, metavar="FOLDER", help="where the report goes")
    return parser


def _is_inside() -> bool:
    """Whether this process has the local node's environment."""
    return os.environ.get("PULUMI_BACKEND_URL", "").endswith(".local/state")


def _inside(arguments: list[str]) -> int:
    """The same command with the local node's programs, state and kubeconfig."""
    command = [sys.executable, "-m", "local", "run", "--", sys.executable, "-m", "prove", *arguments]
    os.chdir(ROOT)
    os.execv(sys.executable, command)


def _prove(options: argparse.Namespace, folder: Path) -> int:
    state = _state(options, folder)
    screen = Screen(state, len(steps(state.short)))
    subject = Subject(options.stack, state, folder, options.limit_usd, screen.say)
    if not state.results:
        _refuse_what_is_there(options, subject)
        _refuse_what_costs_more(options, subject)
        state.notes |= {"load": report.load(), "commit": report.commit()}
    subject.save()
    chosen = steps(state.short)
    if options.destroy:
        for step in chosen:
            if step.closing:
                state.results.pop(step.name, None)
        chosen = tuple(step for step in chosen if step.closing)
    if screen.console.is_terminal:
        screen.console.print(f"Proof of {options.stack} as stack {subject.stack.name}; log: {folder / 'log.txt'}")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        good = play(chosen, subject, screen, keep=options.keep)
    except KeyboardInterrupt:
        screen.close()
        print(f"\nInterrupted. {_what_is_there(options.stack, subject)}", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    path = report.write(options.stack, steps(state.short), state, report.facts(subject.config, state), options.report)
    print(f"\n{report.verdict(state)}. Report: {path}")
    if state.is_up:
        print(_what_is_there(options.stack, subject))
    else:
        (folder / "state.json").unlink(missing_ok=True)
    return 0 if good else 1


def _state(options: argparse.Namespace, folder: Path) -> State:
    """The state of the run that is gone on with, or a new one."""
    known = load(folder / "state.json")
    if options.resume or options.destroy:
        if known is None:
            raise Refused(f"--{'resume' if options.resume else 'destroy'}: no run of {options.stack} is known here")
        return known
    if known is not None and known.is_up and not options.adopt:
        raise Refused(
            f"--stack {options.stack}: a run of {known.begun} is not at its end; give --resume to go on with it, or "
            "--destroy to take it away"
        )
    state = State(options.stack, short=options.short, begun=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    state.notes["web"] = not options.short and reachable()
    return state


def _refuse_what_is_there(options: argparse.Namespace, subject: Subject) -> None:
    there = subject.stack.exists() and bool(subject.stack.resources())
    if there and not options.adopt:
        raise Refused(
            f"stack {subject.stack.name} has resources, and no run of it is known here; give --adopt to prove it and "
            "destroy it then"
        )
    subject.state.notes["adopted"] = there


def _refuse_what_costs_more(options: argparse.Namespace, subject: Subject) -> None:
    """A run that would be cut off in its middle is not worth its money."""
    rate = subject.state.usd_per_hour
    if not rate:
        return
    minutes = expected_minutes(subject.stack.name, subject.stack.values)
    if rate * minutes / 60 > options.limit_usd:
        raise Refused(
            f"--limit-usd {options.limit_usd:g}: {options.stack} costs {rate:.2f} USD an hour at full size, and a "
            f"proof takes about {minutes:.0f} min: give --limit-usd {rate * minutes / 60 * 1.2:.0f}, or a smaller stack"
        )


def expected_minutes(stack: str, values: dict[str, Any]) -> float:
    """How long a whole proof on a cloud takes, about."""
    recorded = record(stack, values)
    return creation(recorded).minutes + destruction(recorded).minutes + STEP_MINUTES


def _what_is_there(stack: str, subject: Subject) -> str:
    """What goes on after the command, what it costs, and how it is taken away."""
    state = subject.state
    if not state.is_up:
        return "Nothing is there that costs."
    bill = (
        f"up to {state.usd_per_hour:.2f} USD an hour are billed" if state.usd_per_hour else "nothing is billed for it"
    )
    return (
        f"Stack {subject.stack.name} is still there; {bill}.\n"
        f"  go on:          python -m prove --stack {stack} --resume\n"
        f"  take it away:   python -m prove --stack {stack} --destroy"
    )


if __name__ == "__main__":
    sys.exit(main())
