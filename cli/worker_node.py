"""The node of a worker for a command's pod: its place, and with `accelerators` all that a worker has there."""

from __future__ import annotations

from typing import Any

from cli import CommandError
from workloads.layout import CONSUMES

PLACE = ("nodeSelector", "tolerations", "affinity", "runtimeClassName")
"""Fields of a pod that decide where it runs, and in what."""


def worker_pod(job: dict[str, Any], what: str, remedy: str) -> dict[str, Any]:
    """The specification of a worker's pod. Raises CommandError where workers' nodes come for a training alone."""
    template = job["spec"]["template"]
    if CONSUMES in (template["metadata"].get("annotations") or {}):
        raise CommandError(
            f"{what}, and the stack gets its nodes for a training alone (nodes.consumption queued); {remedy}"
        )
    return template["spec"]


def move(spec: dict[str, Any], worker: dict[str, Any], accelerators: bool = True) -> None:
    """Change a pod's specification so that it runs on a worker's node."""
    spec |= {field: worker[field] for field in PLACE if field in worker}
    if accelerators:
        spec["containers"][0]["resources"] = worker["containers"][0]["resources"]
