"""What can be trained: the presets of GPT-2."""

#: Longest sequence of each preset of GPT-2, tokens. The presets are those of trainer/config/presets.py, which the
#: program that builds clusters does not import; tests/infra/test_catalog.py holds the two together.
POSITIONS = {"tiny": 128, "micro": 256, "distil": 1024, "small": 1024, "medium": 1024, "large": 1024, "xl": 1024}
