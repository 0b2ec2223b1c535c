"""Reads what the stack file holds under `trainyard:`, as plain values for infra.config; nothing is built from its
placeholders."""

from __future__ import annotations

import json
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG

from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig


def stack_values() -> dict[str, Any]:
    """Every value under the project's name, decoded; keys that no section knows included, so that they can be
    refused."""
    prefix = f"{pulumi.get_project()}:"
    return {key.removeprefix(prefix): _decode(value) for key, value in CONFIG.get().items() if key.startswith(prefix)}


def refuse_placeholders(config: StackConfig, stack: str) -> None:
    """Say what the stack file still has from the documents.

    Raises:
        ConfigError: it is no preview, which may go on; nothing was changed yet.
    """
    found = cloud_of(config).placeholders(config)
    if found and not pulumi.runtime.is_dry_run():
        raise ConfigError(stack, found)
    for line in found:
        pulumi.log.warn(f"{line}; `pulumi up` refuses it")


def _decode(value: str) -> Any:
    """Structured values reach the program as JSON, plain ones as they are."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
