"""Log lines: logfmt (key=value with spaces between), one write each. cli/progress.py reads them."""

import sys
from typing import Any, TextIO


def line(**fields: Any) -> str:
    """One logfmt line; floats to 6 significant digits."""
    return " ".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in fields.items()
    )


def say(text: str, stream: TextIO | None = None) -> None:
    """Write one line (stdout by default) at once.

    One write call: unbuffered print() writes text and line end separately, and the workers of a pod share one stream.
    """
    target = stream or sys.stdout
    target.write(text + "\n")
    target.flush()


def event(name: str, **fields: Any) -> None:
    say(line(event=name, **fields))
