"""transformers' GPT-2 in the sizes of presets.py, ready to train from scratch."""

import os

import torch
from torch import nn
from torch.nn import functional as F

from trainer.presets import PRESETS

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # one bar per saved file, in the middle of the log lines


def build(preset: str, vocabulary: int, end_of_text: int, seed: int) -> GPT2LMHeadModel:
    """A GPT-2 with fresh weights that depend on `seed` alone.

    Dropout is off: in one or few passes over the data there is nothing to regularise, and it slows attention down.
    """
    size = PRESETS[preset]
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=size.positions,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    return GPT2LMHeadModel(config)


def token_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum (not the mean) of the token losses in nats, fp32. inputs and targets: int64 [batch, length]."""
    logits = model(input_ids=inputs).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
