"""Sizes of GPT-2 by name.

Plain numbers, apart from the model's code, so that the launcher and rules.py need no torch. distil to xl are those of
openai-community/gpt2* and distilgpt2.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    layers: int
    heads: int
    width: int
    positions: int = 1024


PRESETS = {
    "tiny": Preset(layers=2, heads=2, width=32, positions=128),
    "micro": Preset(layers=4, heads=4, width=128, positions=256),
    "distil": Preset(layers=6, heads=12, width=768),
    "small": Preset(layers=12, heads=12, width=768),
    "medium": Preset(layers=24, heads=16, width=1024),
    "large": Preset(layers=36, heads=20, width=1280),
    "xl": Preset(layers=48, heads=25, width=1600),
}
