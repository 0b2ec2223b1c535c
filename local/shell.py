"""Runs helper programs to their end; the last line of a failed one's output becomes the one-line error."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")


class LocalError(Exception):
    """An error that a user can cause or mend, told in one line."""


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


@contextmanager
def no_services() -> Iterator[None]:
    """Keeps the packages' own services from starting (containerd, docker-registry): we start our own, in a namespace.

    policy-rc.d is Debian's hook for that; an existing one is left as it is.
    """
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def install(names: tuple[str, ...]) -> None:
    """Installs from the machine's own package sources; refreshes their lists only when the first try fails."""
    if not names:
        return
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]
    with no_services():
        try:
            run(command, "install", **quiet)
        except LocalError:
            run(["apt-get", "update", "-qq"], "refresh the lists of Debian packages", **quiet)
            run(command, f"install the Debian packages {' '.join(names)}", **quiet)
