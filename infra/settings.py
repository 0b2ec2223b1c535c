"""Reads the values under `trainyard:` from Pulumi, and refuses to build from a stack file's placeholders."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG

from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig
from infra.stackfiles import ours, stack_file_values
from trainer.config.values import as_typed


def stack_values() -> dict[str, Any]:
    """Every value under the project's name, as the stack file has it: the engine passes 1.30 as 1.3.

    What stands elsewhere (`--config-file`, an environment of Pulumi Cloud) comes as the engine spells it.
    """
    written: dict[str, Any] = {}
    with suppress(OSError, ConfigError):
        written = stack_file_values(pulumi.get_stack())
    return as_typed(ours(CONFIG.get()), written)


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
