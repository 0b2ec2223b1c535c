"""The stack files of the repository, read without Pulumi's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "trainyard"


def stacks() -> list[str]:
    """The names of all stacks that have a file, without those of tests."""
    names = (path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml"))
    return sorted(name for name in names if not name.startswith("e2e"))


def stack_file_values(stack: str) -> dict[str, Any]:
    """What Pulumi.STACK.yaml holds under `trainyard:`."""
    config = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())["config"]
    prefix = f"{PROJECT}:"
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
