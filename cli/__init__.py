"""The commands of `trainyard`, one file each."""

from __future__ import annotations

import os
from pathlib import Path

import typer


class CommandError(typer.TyperException):
    """Stops a command with one line on the terminal and an exit code."""

    def __init__(self, text: str, code: int = 1):
        super().__init__(text)
        self.exit_code = code


def name_of(path: Path) -> str:
    """Its own name, also that of a link: one of the Hugging Face cache leads to a file that is called by its digest."""
    return os.path.basename(os.path.abspath(path))


def last_line(output: str) -> str:
    """The last line of a failed command's output: the one that says why."""
    return (output.strip().splitlines() or ["no reason given"])[-1]
