"""Runs a helper program to its end; its last line of output becomes the one-line error."""

import os
import subprocess

from local.errors import LocalError


def run(command: list[str], what: str, **environment: str) -> str:
    """Standard output of the command. `what` says in the error what could not be done."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    except OSError as error:
        raise LocalError(f"cannot {what}: {command[0]}: {error.strerror}") from None
    if result.returncode:
        lines = [line for line in (result.stderr or result.stdout).strip().splitlines() if line.strip()]
        raise LocalError(f"cannot {what}: {lines[-1].strip() if lines else f'exit code {result.returncode}'}")
    return result.stdout
