"""Checks that one login serves all three programs that `pulumi up` uses on Google Cloud.

Pulumi's provider takes Application Default Credentials, and so does gke-gcloud-auth-plugin as the stack's kubeconfig
calls it (kubernetes/cloud-provider-gcp, cmd/gke-gcloud-auth-plugin); Docker's credential helper takes gcloud's own
login. The checks run both programs, because being on PATH says nothing about whose credentials they give.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from infra.doctor.finding import Finding, ok, problem, unchecked, warning
from infra.doctor.prerequisites import docker_config
from infra.gke.cluster import PLUGIN
from infra.gke.doctor.google_client import LOGIN, Google

PATIENCE = 20  # seconds: the plug-in and the helper ask Google for a token


def plugin(google: Google | None) -> Iterator[Finding]:
    """Run the plug-in that the kubeconfig names, as the kubeconfig runs it."""
    name = str(PLUGIN["command"])
    if not shutil.which(name):
        yield problem(name, "is not on PATH; the cluster's credentials come from it", str(PLUGIN["installHint"]))
        return
    if google is None:
        yield ok(name, "is on PATH")
        return
    answer, reason = _run([name, *PLUGIN["args"]])
    token = (answer.get("status") or {}).get("token")
    if not token:
        yield problem(name, f"gives no credentials ({reason or 'no token in its answer'})", LOGIN)
        return
    yield _compared(name, "speaks for", google, google.identify(token))


def push(google: Google, host: str) -> Iterator[Finding]:
    """Check Docker's credentials for the registry."""
    config = docker_config()
    helper = (config.get("credHelpers") or {}).get(host) or config.get("credsStore")
    if host in (config.get("auths") or {}) and not helper:
        yield ok("push", f"Docker has a login for {host}")
        return
    if not helper:
        yield problem("push", f"Docker has no credentials for {host}", f"gcloud auth configure-docker {host}")
        return
    program = f"docker-credential-{helper}"
    answer, reason = _run([program, "get"], host)
    if not answer.get("Secret"):
        yield problem(
            "push", f"{program} gives no credentials for {host} ({reason or 'no secret in its answer'})", LOGIN
        )
        return
    yield _compared("push", f"{program} speaks for", google, google.identify(answer["Secret"]))


def _compared(subject: str, verb: str, google: Google, other: str) -> Finding:
    mine = google.identify(google.token)
    if not other or not mine:
        return unchecked(subject, "gives credentials; Google does not say whose")
    if other == mine:
        return ok(subject, f"{verb} {other}, as Pulumi does")
    return warning(subject, f"{verb} {other}, and Pulumi for {mine}: both need their rights", LOGIN)


def _run(command: list[str], given: str = "") -> tuple[dict[str, Any], str]:
    """(a program's answer, read as JSON; why there is none). Its output is a secret, and is never shown."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=PATIENCE)
    except FileNotFoundError:
        return {}, "it is not on PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, type(error).__name__
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {}, lines[-1][:160] if lines else f"exit code {done.returncode}"
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    return (answer, "") if isinstance(answer, dict) else ({}, "its answer is not JSON")
