"""Models to train from scratch by name: sizes of GPT-2, and of a modern decoder.

Plain numbers, apart from the model's code, so that the launcher and rules.py need no torch. distil to xl are those of
openai-community/gpt2* and distilgpt2. modern-* have Qwen3's architecture (arXiv 2505.09388, section 2: RMSNorm, rotary
positions, normalised queries and keys, SwiGLU), which transformers, vLLM and llama.cpp load as it is, in the sizes of
GPT-2's: a gated MLP of 8/3 of the width has as many weights as GPT-2's of 4 (arXiv 2002.05202, section 3.1). All heads
have keys and values of their own: shared ones save memory while a large model answers, and cost loss in a small one.
"""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Preset:
    layers: int
    heads: int
    width: int
    positions: int = 1024
    """The longest sequence in training."""
    architecture: Literal["gpt2", "qwen3"] = "gpt2"
    inner: int = 0
    """Width between the products of the MLP. 0: 4 x width."""

    def document(self, vocabulary: int, length: int) -> dict[str, Any]:
        """The config.json of transformers. length: the longest sequence in training.

        A model knows its rotary positions only as far as it has seen them: its config names no more, so nobody serves
        it beyond them.
        """
        if self.architecture == "gpt2":
            return {
                "model_type": "gpt2",
                "vocab_size": vocabulary,
                "n_positions": self.positions,
                "n_embd": self.width,
                "n_layer": self.layers,
                "n_head": self.heads,
            }
        return {
            "model_type": self.architecture,
            "vocab_size": vocabulary,
            "max_position_embeddings": length,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.width // self.heads,
            "intermediate_size": self.inner,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        }


PRESETS = {
    "tiny": Preset(layers=2, heads=2, width=32, positions=128),
    "micro": Preset(layers=4, heads=4, width=128, positions=256),
    "distil": Preset(layers=6, heads=12, width=768),
    "small": Preset(layers=12, heads=12, width=768),
    "medium": Preset(layers=24, heads=16, width=1024),
    "large": Preset(layers=36, heads=20, width=1280),
    "xl": Preset(layers=48, heads=25, width=1600),
    "modern-micro": Preset(layers=4, heads=4, width=128, positions=4096, architecture="qwen3", inner=352),
    "modern-small": Preset(layers=12, heads=12, width=768, positions=4096, architecture="qwen3", inner=2048),
    "modern-medium": Preset(layers=24, heads=16, width=1024, positions=4096, architecture="qwen3", inner=2816),
}
