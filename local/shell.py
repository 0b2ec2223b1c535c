"""Runs helper programs to their end. If one fails, a line of its output becomes the one-line error."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# trainyard installs packages, and starts their services itself.\nexit 101\n"
# Services of the installed packages, which would start at the machine's next boot.
SERVICES = ("containerd", "docker-registry")
# Of systemd's units, too. Below a stricter one of the user, containers could not read their own files.
UMASK = 0o022


class LocalError(Exception):
    """An error that a user can cause or fix, as one line."""


def run(command: list[str], what: str, **environment: str) -> str:
    """Run the command; return its standard output. `what` names the task in an error message."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, umask=UMASK, env={**os.environ, **environment})
    except OSError as error:
        raise LocalError(f"cannot {what}: {command[0]}: {error.strerror}") from None
    if result.returncode:
        lines = [line for line in (result.stderr or result.stdout).strip().splitlines() if line.strip()]
        # apt and mmdebstrap print the cause first, and last that they failed.
        told = [line for line in lines if line.startswith("E: ")][:1] or lines[-1:]
        raise LocalError(f"cannot {what}: {told[0].strip() if told else f'exit code {result.returncode}'}")
    return result.stdout


@contextmanager
def no_services() -> Iterator[None]:
    """Keep the packages' services from starting (containerd, docker-registry): we start our own, in a namespace.

    policy-rc.d is Debian's hook for this. The machine's own policy-rc.d is left as it is. Ours goes even when a signal
    ends the run: it would keep every service of the machine from starting.
    """
    if POLICY.exists() and POLICY.read_text() != POLICY_TEXT:
        yield
        return
    # Under nohup, which ignores SIGHUP, keep ignoring it.
    endings = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = [signal.signal(number, signal.default_int_handler) for number in endings]
    try:
        POLICY.write_text(POLICY_TEXT)
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)
        for number, handler in zip(endings, before, strict=True):
            signal.signal(number, handler)


def install(names: tuple[str, ...]) -> None:
    """Install from the machine's own package sources. Refreshes their lists only if the first try fails."""
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
    disable = "systemctl" if shutil.which("systemctl") else "deb-systemd-helper"
    for service in set(SERVICES) & set(names):
        # The helper serves a package's scripts, and asks for the name that dpkg gives them.
        called = {"DPKG_MAINTSCRIPT_PACKAGE": service}
        run([disable, "disable", f"{service}.service"], f"keep {service} from starting at boot", **called)
