"""Facts about what can be bought or trained, in one place, so that configuration is checked before anything is
created."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Model:
    """A preset of GPT-2 as far as the infrastructure needs to know it."""

    parameters: int
    """Trainable parameters."""
    positions: int
    """Longest sequence, tokens."""


#: The presets of trainer/model.py; tests/infra holds the two tables together.
#: Sizes of small to xl: Radford et al. 2019, table 2; distil: DistilGPT-2's published configuration.
MODELS = {
    "tiny": Model(parameters=1_000_000, positions=128),
    "micro": Model(parameters=7_000_000, positions=256),
    "distil": Model(parameters=81_912_576, positions=1024),
    "small": Model(parameters=124_439_808, positions=1024),
    "medium": Model(parameters=354_823_168, positions=1024),
    "large": Model(parameters=774_030_080, positions=1024),
    "xl": Model(parameters=1_557_611_200, positions=1024),
}
