"""Installs the Debian packages that the node needs and that are missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local.errors import LocalError
from local.shell import run

POLICY = Path("/usr/sbin/policy-rc.d")


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
