"""Reads the values under `trainyard:` from Pulumi, and refuses to build from a stack file's placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG, is_config_secret

from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig
from infra.stackfiles import PROJECT, ours, plain_tokens, stack_file_values
from trainer.config.values import as_typed


def stack_values() -> dict[str, Any]:
    """Every value under the project's name, as the stack file has it: the engine passes 1.30 as 1.3.

    What stands elsewhere (`--config-file`, an environment of Pulumi Cloud) comes as the engine spells it.
    """
    written: dict[str, Any] = {}
    with suppress(OSError, ConfigError):
        written = stack_file_values(pulumi.get_stack())
    return as_typed(ours(CONFIG.get()), written)


def warn_of_tokens(values: Mapping[str, Any], stack: str) -> None:
    """Warn of each token in plain text. The engine tells which keys hold something encrypted, the file what."""
    written: dict[str, Any] = {}
    with suppress(OSError, ConfigError):
        written = stack_file_values(stack)
    for key, value in values.items():
        hidden = is_config_secret(f"{PROJECT}:{key}")
        for found in plain_tokens({key: written.get(key) if hidden else value}, stack):
            pulumi.log.warn(f"{found}; {found.fix}")


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
