"""What only a cloud can do to a machine, and what only it knows to be left. One module a cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from infra.config import StackConfig
from infra.eks.section import EksConfig

Until = Callable[[Callable[[], Any], float, str], Any]
"""Waits for a condition, at most so many seconds; the text says for what."""


class Cloud(Protocol):
    def delete_machine(self, provider_id: str) -> None:
        """Take the machine of a node away, as a failure does."""

    def interrupt(self, provider_id: str, until: Until) -> str:
        """Have the cloud take a Spot machine back. Returns how."""
        ...

    def leftovers(self, config: StackConfig, stack: str) -> tuple[str, list[str]]:
        """(What was looked at, what of the stack is still there)."""
        ...


def cloud_of(config: StackConfig) -> Cloud | None:
    """None: the cluster was there before. Its SDK is imported for the stack that needs it."""
    match config.cluster.kind:
        case "gke":
            from prove.gcp import Gcp

            return Gcp()
        case "eks":
            from prove.aws import Aws

            return Aws(config.section(EksConfig).region)
        case "existing":
            return None
