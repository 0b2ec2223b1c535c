"""Exit codes with one meaning each, and the two exceptions that carry them.

The Job that runs the launcher decides by these numbers whether a pod is replaced (workloads/): they are a contract.
"""

EXIT_DONE = 0
EXIT_USAGE = 2
"""Bad input to a command that nobody retries (prepare, sample)."""
EXIT_FATAL = 42
"""Bad configuration, bad data, NaN: the same again would fail the same. Never retried."""
EXIT_RESTART = 75
"""Nothing wrong with this process; start it again (sysexits.h: EX_TEMPFAIL)."""
EXIT_TERMINATED = 143
"""Ended by SIGTERM (128 + 15) after saving."""


class UserError(ValueError):
    """What a person has to change. Shown as one line, never with a traceback."""


class TrainingError(RuntimeError):
    """Training cannot go on and a retry cannot help (NaN loss, for one)."""


class Retry(RuntimeError):
    """Something failed that may pass: the launcher makes one more round for it."""


class Stopped(Exception):
    """All workers agreed to stop after a step, and the checkpoint of that step is written."""


class Stop(BaseException):
    """Ends the launcher with an exit code, from wherever it is.

    Not an Exception: torch's agent catches those in many places, and a SIGTERM must get through all of them.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message
