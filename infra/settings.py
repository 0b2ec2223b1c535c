"""Reads the values under `trainyard:` from Pulumi, and refuses to build from a stack file's placeholders."""

from __future__ import annotations

import json
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG

from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig


def stack_values() -> dict[str, Any]:
    """Every value under the project's name, decoded; unknown keys too, so that infra/parse.py can refuse them."""
    prefix = f"{pulumi.get_project()}:"
    return {key.removeprefix(prefix): _decode(value) for key, value in CONFIG.get().items() if key.startswith(prefix)}


def refuse_placeholders(config: StackConfig, stack: str) -> None:
    """Warn of placeholders in a preview, and refuse them in `pulumi up`.

    Raises:
        ConfigError: placeholders outside a preview; nothing was changed yet.
    """
    found = cloud_of(config).placeholders(config)
    if found and not pulumi.runtime.is_dry_run():
        raise ConfigError(stack, found)
    for line in found:
        pulumi.log.warn(f"{line}; `pulumi up` refuses it")


def _decode(value: str) -> Any:
    """Decode JSON, in which Pulumi passes structured values; plain ones stay as they are.

    Pulumi passes a key without a value as an empty text (sdk/go/common/workspace/loaders.go, v3.200.0), where a stack
    file that is read as YAML has null: a section whose keys are all commented out.
    """
    if not value:
        return None
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
