"""The catalog agrees with what it describes."""

from infra.catalog import POSITIONS
from trainer.presets import PRESETS


def test_models_are_the_trainers_presets() -> None:
    assert {name: preset.positions for name, preset in PRESETS.items()} == POSITIONS
