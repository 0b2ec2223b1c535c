"""Reads what the stack file holds under `trainyard:`, as plain values for infra.config."""

from __future__ import annotations

import json
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG


def stack_values() -> dict[str, Any]:
    """Every value under the project's name, decoded; keys that no section knows included, so that they can be
    refused."""
    prefix = f"{pulumi.get_project()}:"
    return {key.removeprefix(prefix): _decode(value) for key, value in CONFIG.get().items() if key.startswith(prefix)}


def _decode(value: str) -> Any:
    """Structured values reach the program as JSON, plain ones as they are."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
