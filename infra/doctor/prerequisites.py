"""Checks what every stack needs: programs on PATH, a place for the state."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from infra.buildx import credentials_name
from infra.finding import Finding, NoAnswer, ok, problem, reason_of, warning
from infra.state import BACKEND

INSTALL_PULUMI = "curl -fsSL https://get.pulumi.com | sh"
PATIENCE = 20  # seconds: some ask a cloud for a token


def ask(*command: str, given: str = "") -> str:
    """A program's output. Raises NoAnswer with the last line of its error, because the output may be a secret."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=PATIENCE)
    except FileNotFoundError:
        raise NoAnswer(f"{command[0]} is not on PATH") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(type(error).__name__) from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise NoAnswer(lines[-1][:160] if lines else f"exit code {done.returncode}")
    return done.stdout.strip()


def run(*command: str) -> str | None:
    """A program's output; None if it fails, hangs or is not there."""
    try:
        return ask(*command)
    except NoAnswer:
        return None


def pulumi() -> Finding:
    """One that is too old is refused by Pulumi.yaml."""
    return ok("pulumi", "is on PATH") if shutil.which("pulumi") else problem("pulumi", "is not on PATH", INSTALL_PULUMI)


def state(billed: bool = False) -> Finding:
    """Check where Pulumi keeps the state. `billed`: the stack is in a cloud."""
    backend = os.environ.get("PULUMI_BACKEND_URL") or _logged_in()
    if not backend:
        login = "pulumi login   # or: pulumi login gs://YOUR-BUCKET, s3://YOUR-BUCKET"
        return problem("state", "Pulumi is not logged in to a backend", login)
    if billed and backend.partition("?")[0] == BACKEND.as_uri():
        return problem(
            "state",
            "kept in .local/state, and secrets with an empty passphrase: this shell has the local stack's environment "
            "(`trainyard local env`)",
            "open another shell, and there: pulumi login",
        )
    return ok("state", f"kept at {backend}")


def _logged_in() -> str | None:
    home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    try:
        return json.loads((home / "credentials.json").read_text()).get("current") or None
    except (OSError, ValueError):
        return None


def kubectl(install: str) -> Finding:
    """`install`: how to install kubectl for the stack's cloud."""
    if shutil.which("kubectl"):
        return ok("kubectl", "is on PATH")
    return warning("kubectl", "is not on PATH; the commands that the stack prints use it", install)


def push_credentials(host: str, login: str) -> Finding:
    """Whether Docker may push to `host`, and the helper that it asks answers. `login`: the command that lets it."""
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    names = {host, f"https://{host}", credentials_name(host)}
    try:
        config = json.loads(path.read_text("utf-8-sig"))
        helpers, known = config.get("credHelpers") or {}, names & {*(config.get("auths") or {})}
        helper = next((helpers[name] for name in names if name in helpers), "")
        if helper:
            ask(f"docker-credential-{helper}", "get", given=host)
    except FileNotFoundError:
        helper = known = ""
    except Exception as error:  # the file is somebody's
        return problem("push", f"Docker has no credentials for {host}: {path}: {reason_of(error)}", login)
    if helper or known:
        return ok("push", f"Docker has credentials for {host}")
    return problem("push", f"Docker has no credentials for {host}", login)
