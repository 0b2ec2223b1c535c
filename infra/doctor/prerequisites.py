"""Checks what every stack needs: programs on PATH, a place for the state, the passphrase of its secrets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.buildx import credentials_name
from infra.doctor.finding import Finding, ok, problem, unchecked, warning
from infra.stackfiles import ROOT
from infra.state import BACKEND

INSTALL_PULUMI = "curl -fsSL https://get.pulumi.com | sh"
#: Pulumi itself checks this limit of Pulumi.yaml too late to say what to do.
OLDEST_PULUMI = (3, 200)
PATIENCE = 15  # seconds for a program to say its version


def run(*command: str) -> str | None:
    """A program's output; None if it fails, hangs or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def pulumi() -> Iterator[Finding]:
    if not shutil.which("pulumi"):
        yield problem("pulumi", "is not on PATH", INSTALL_PULUMI)
        return
    version = run("pulumi", "version") or ""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if not found:
        yield unchecked("pulumi", f"does not say its version ({version or 'no answer'})")
    elif (int(found[1]), int(found[2])) < OLDEST_PULUMI:
        yield problem("pulumi", f"{version} is too old; needs {'.'.join(map(str, OLDEST_PULUMI))}", INSTALL_PULUMI)
    else:
        yield ok("pulumi", version)


def state(stack: str, content: dict[str, Any], billed: bool = False) -> Iterator[Finding]:
    """Check where Pulumi keeps the state, and that it can read the secrets. `billed`: the stack is in a cloud."""
    backend = os.environ.get("PULUMI_BACKEND_URL") or _logged_in()
    if not backend:
        yield problem(
            "state",
            "Pulumi is not logged in to a backend",
            "pulumi login   # or: pulumi login gs://YOUR-BUCKET, s3://YOUR-BUCKET",
        )
    elif billed and backend.partition("?")[0] == BACKEND.as_uri():
        yield problem(
            "state",
            "kept in .local/state, and secrets with an empty passphrase: this shell has the local stack's environment "
            "(`trainyard local env`)",
            "open another shell, and there: pulumi login",
        )
        return  # what this shell's passphrase is says nothing of the other's
    else:
        yield ok("state", f"kept at {backend}")
    passphrase = "PULUMI_CONFIG_PASSPHRASE" in os.environ or "PULUMI_CONFIG_PASSPHRASE_FILE" in os.environ
    provider = content.get("secretsprovider")
    if provider and provider != "passphrase":
        yield ok("secrets", f"encrypted by {provider}")
    elif content.get("encryptionsalt") or (backend and not backend.startswith(("https://", "http://"))):
        if passphrase:
            empty = os.environ.get("PULUMI_CONFIG_PASSPHRASE") == ""
            what = "an empty passphrase, which guards nothing" if empty else "the passphrase of the environment"
            yield ok("secrets", f"encrypted with {what}")
        else:
            salted = content.get("encryptionsalt")
            what = f"Pulumi.{stack}.yaml is encrypted with a" if salted else "a state outside Pulumi Cloud needs a"
            yield problem(
                "secrets",
                f"{what} passphrase, and none is set",
                'export PULUMI_CONFIG_PASSPHRASE_FILE=FILE   # or PULUMI_CONFIG_PASSPHRASE="" if it guards nothing',
            )
    elif backend:
        yield ok("secrets", "encrypted by the backend")


def _logged_in() -> str | None:
    home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    try:
        return json.loads((home / "credentials.json").read_text()).get("current") or None
    except (OSError, ValueError):
        return None


def in_state(stack: str) -> set[str]:
    """Ids, names and ARNs of what Pulumi's state of a stack has; empty: nothing, or the state cannot be read."""
    export = ("stack", "export", "--stack", stack)
    try:
        content = json.loads(run("pulumi", "--non-interactive", "--cwd", str(ROOT), *export) or "")
    except ValueError:
        return set()
    found: set[str] = set()
    for resource in content["deployment"].get("resources") or []:
        inputs, outputs = resource.get("inputs") or {}, resource.get("outputs") or {}
        found |= {
            name for name in (resource.get("id"), inputs.get("name"), outputs.get("arn")) if isinstance(name, str)
        }
    return found


def kubectl(install: str) -> Iterator[Finding]:
    """`install`: how to install kubectl for the stack's cloud."""
    if shutil.which("kubectl"):
        yield ok("kubectl", "is on PATH")
    else:
        yield warning("kubectl", "is not on PATH; the commands that the stack prints use it", install)


def docker_config() -> dict[str, Any]:
    """Docker's own configuration, with the registries that it has credentials for; empty if there is none."""
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        found = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if value is not None} if isinstance(found, dict) else {}


def push_credentials(host: str, login: str) -> Iterator[Finding]:
    """`login`: the command that lets Docker push to `host`."""
    config = docker_config()
    known = {*config.get("credHelpers", {}), *config.get("auths", {})}
    if known & {host, f"https://{host}", credentials_name(host)}:
        yield ok("push", f"Docker has credentials for {host}")
    else:
        yield problem("push", f"Docker has no credentials for {host}", login)
