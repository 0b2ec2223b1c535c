"""The exceptions that end a training or the launcher, and what each means; contract.py has the exit codes."""

import functools
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import ParamSpec

from trainer.contract import EXIT_RESTART, EXIT_USAGE, STACK_KEYS
from trainer.plain import plain

P = ParamSpec("P")


class UserError(ValueError):
    """Bad input that a person has to correct. Shown as one line, never with a traceback."""


class Passing(UserError):
    """A failure of the network or of a service, which a second attempt may not meet."""


class TrainingError(RuntimeError):
    """Training cannot go on and a retry cannot help (such as a NaN loss)."""


class Retry(RuntimeError):
    """A failure that may be transient: the launcher starts one more round."""


class BrokenNode(RuntimeError):
    """This node cannot train, but others may: its launcher leaves the training to them."""


def forbidden(error: PermissionError) -> UserError:
    """What to say of a file or folder that this process may not read or write. Raises the error if it is of neither."""
    if error.filename is None:
        raise error
    return UserError(f"{error.filename}: user {os.getuid()} may not read or write it; change its owner or its mode")


def usage(main: Callable[P, int]) -> Callable[P, int]:
    """Make a command report a UserError in one line and return EXIT_USAGE, or EXIT_RESTART where a retry may help.

    The same for a file that it may not read or write, and for a tokenizer whose library gives up.
    """

    @functools.wraps(main)
    def told(*given: P.args, **named: P.kwargs) -> int:
        try:
            return main(*given, **named)
        except BaseException as error:
            said = forbidden(error) if isinstance(error, PermissionError) else panic(error, "any text") or error
            if not isinstance(said, UserError):
                raise
            print(plain(_for_stack(str(said))), file=sys.stderr)
            return EXIT_RESTART if isinstance(error, Passing) else EXIT_USAGE

    return told


def in_stack() -> bool:
    """Whether this is a Job of a stack, whose reader knows keys, not arguments."""
    return bool(os.environ.get(STACK_KEYS))


def _for_stack(text: str) -> str:
    """The message with the stack's keys in place of the arguments that they became."""
    keys = json.loads(os.environ.get(STACK_KEYS) or "{}")
    return re.sub(r"(?<![\w-])--[a-z-]+", lambda found: keys.get(found[0], found[0]), text)


def one_line(error: object, most: int = 200) -> str:
    """The message of an error in one line of at most `most` characters; its class name if the message is empty."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def panic(error: BaseException, what: str) -> UserError | None:
    """What to say where Rust gives up inside of a library, as for a tokenizer's own pattern; None of other errors.

    It is no Exception, its class has no module to import it from, and so no process can send it to another.
    """
    if type(error).__name__ != "PanicException":
        return None
    return UserError(f"--tokenizer: cannot encode {what} ({one_line(error)}); give another tokenizer")


def cause(error: BaseException | None) -> str:
    """The class name and the message of an error, in one line."""
    kind, text = type(error).__name__, one_line(error)
    return kind if text == kind else f"{kind}: {text}"


def may_pass(error: BaseException | None) -> bool:
    """Whether the same command may succeed later: the network or a server failed, not what was asked for."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", getattr(error, "status", None))  # aiohttp's
        if isinstance(status, int):
            return status in (408, 429) or status >= 500
        if isinstance(error, OSError) and error.errno == socket.EAI_NONAME:  # a misspelt host
            return False
        if isinstance(error, (ConnectionError, TimeoutError)) or (
            isinstance(error, OSError) and error.errno is not None
        ):
            return not isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError))
        if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "requests", "urllib3", "aiohttp"):
            return True
        error = error.__cause__ or error.__context__
    return False


def offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def advice(name: str) -> str:
    """What helps where a library could not read the files by this name: those of a folder, of the cache, of the hub."""
    if os.path.exists(name):
        return "its files are damaged, or of a kind that this version of transformers does not read"
    if offline():
        return "it is no folder, and not in the hub's cache: give a folder, or unset HF_HUB_OFFLINE"
    return "give a folder, or a name that the hub has and that can be reached"


class Stopped(Exception):
    """All workers agreed to stop after a step, and the checkpoint of that step is written.

    `asked`: whether this worker was asked to end; otherwise another one was.
    """

    def __init__(self, asked: bool) -> None:
        super().__init__()
        self.asked = asked


class Stop(BaseException):
    """Ends the launcher with an exit code, from any depth of the stack.

    Not an Exception: torch's agent catches those in many places, and a SIGTERM must pass through all of them.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message
