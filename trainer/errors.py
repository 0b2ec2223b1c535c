"""The exceptions that end a training or the launcher, and what each means; the exit codes stand in contract.py."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

EXIT_USAGE = 2
"""Bad input to a command that nobody retries (prepare, sample)."""


class UserError(ValueError):
    """What a person has to change. Shown as one line, never with a traceback."""


class TrainingError(RuntimeError):
    """Training cannot go on and a retry cannot help (NaN loss, for one)."""


class Retry(RuntimeError):
    """Something failed that may pass: the launcher makes one more round for it."""


class BrokenNode(RuntimeError):
    """This node cannot train, others may: its launcher leaves them alone."""


def usage(main: Callable[P, int]) -> Callable[P, int]:
    """A command that tells bad input in one line, and ends with EXIT_USAGE."""

    @functools.wraps(main)
    def told(*given: P.args, **named: P.kwargs) -> int:
        try:
            return main(*given, **named)
        except UserError as error:
            print(error, file=sys.stderr)
            return EXIT_USAGE

    return told


def one_line(error: object, most: int = 200) -> str:
    """What an error of a library says, in one line; its kind where it says nothing."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def cause(error: BaseException | None) -> str:
    """Its kind, and what it says, in one line."""
    kind, text = type(error).__name__, one_line(error)
    return kind if text == kind else f"{kind}: {text}"


class Stopped(Exception):
    """All workers agreed to stop after a step, and the checkpoint of that step is written.

    `asked`: whether this worker was asked to end; else it stops for the sake of another one.
    """

    def __init__(self, asked: bool) -> None:
        super().__init__()
        self.asked = asked


class Stop(BaseException):
    """Ends the launcher with an exit code, from wherever it is.

    Not an Exception: torch's agent catches those in many places, and a SIGTERM must get through all of them.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message
