"""transformers' GPT-2, with fresh weights in the sizes of presets.py or with weights from elsewhere.

What is built here is the plain model with the names and shapes that every other program knows: the vocabulary is padded
in the copies that the matrix products read (gpt2.py) and nowhere else, so no checkpoint has padded rows.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from trainer.checkpoint.format import MANIFEST, newest_checkpoint, verify_checkpoint
from trainer.config.presets import PRESETS, shape_name
from trainer.errors import UserError

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # one bar per saved file, in the middle of the log lines

NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
"""In one or few passes over the data there is nothing to regularise, and it slows attention down."""


def build(preset: str, vocabulary: int, end_of_text: int, seed: int) -> GPT2LMHeadModel:
    """A GPT-2 with fresh weights that depend on `seed` alone.

    They are drawn as the paper says: normal with deviation 0.02, the two projections into the residual stream of each
    layer with 0.02 / sqrt(2 x layers), since their sum would otherwise grow with the depth.
    """
    size = PRESETS[preset]
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=size.positions,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        use_cache=False,
        **NO_DROPOUT,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    return GPT2LMHeadModel(config)


def load(weights: str, preset: str, vocabulary: int, length: int, tokenizer: Path | None) -> GPT2LMHeadModel:
    """The GPT-2 that `weights` names, in fp32: a Hugging Face folder or name, one of our runs or checkpoints.

    Raises UserError when there is none, or when it does not fit: another architecture, another size than `preset`
    ("weights" takes any), another vocabulary than the data's, fewer positions than `length`, another tokenizer.
    """
    source = locate(weights)
    config = _config(weights, source)
    _check(weights, config, preset, vocabulary, length)
    if tokenizer is not None and (Path(source) / tokenizer.name).is_file():
        _same_words(weights, Path(source) / tokenizer.name, tokenizer)
    try:
        read: Any = GPT2LMHeadModel.from_pretrained(
            source,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            use_safetensors=True,
        )
    except Exception as error:  # the libraries below raise two dozen kinds
        raise _unreadable(weights, error) from None
    net, details = read
    missing = sorted(details["missing_keys"]) + sorted(str(key) for key in details.get("mismatched_keys", ()))
    if missing:
        raise UserError(
            f"model.name: {weights} lacks {len(missing)} of the model's tensors, such as {missing[0]}; "
            "the download may be incomplete: give a folder with all of them"
        )
    return net


def shaped_as(folder: Path) -> GPT2LMHeadModel:
    """The model that a checkpoint's config.json describes, its weights to be read by the resume."""
    config = GPT2Config.from_pretrained(folder, **NO_DROPOUT)
    config._attn_implementation = "sdpa"
    return GPT2LMHeadModel(config)


def flops_per_token(net: GPT2LMHeadModel, length: int) -> float:
    """Forward and backward: 6 x parameters + 12 x layers x width x length (PaLM, arXiv 2204.02311, appendix B).

    Position embeddings take no part in products and do not count; the word embedding does, as the head.
    """
    parameters = sum(parameter.numel() for parameter in net.parameters()) - net.transformer.wpe.weight.numel()
    return 6.0 * parameters + 12.0 * net.config.n_layer * net.config.n_embd * length


def locate(weights: str) -> str:
    """What transformers is to open: a folder with config.json, or a name on the hub."""
    path = Path(weights).expanduser()
    if (path / "checkpoints").is_dir():
        found = newest_checkpoint(path)
        if found is None:
            raise UserError(f"model.name: the run {weights} holds no checkpoint that verifies; give one that does")
        return str(found.path / "model")
    if (path / MANIFEST).is_file():
        if verify_checkpoint(path) is None:
            raise UserError(
                f"model.name: the checkpoint {weights} is damaged (a file does not match its checksum); use another"
            )
        return str(path / "model")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(
                f"model.name: {weights} holds no config.json; give a Hugging Face folder, a run or a checkpoint"
            )
        if not any(path.glob("*.safetensors")):
            raise UserError(
                f"model.name: {weights} holds a config.json but no weights (model.safetensors); a pytorch_model.bin "
                "is a pickle, which may hold code, and is not opened: save the model again with transformers"
            )
        return str(path)
    if path.exists() or path.is_absolute() or weights.startswith((".", "~")) or weights.count("/") > 1:
        raise UserError(f"model.name: {weights} is no folder; give a folder or a name on the hub such as gpt2")
    return weights


def _config(weights: str, source: str) -> GPT2Config:
    from transformers.models.auto.configuration_auto import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False, **NO_DROPOUT)
    except Exception as error:
        raise _unreadable(weights, error) from None
    if config.model_type != "gpt2":
        raise UserError(
            f"model.name: {weights} is a {config.model_type} model; this task trains GPT-2 (gpt2, gpt2-medium, "
            "distilgpt2, ...)"
        )
    if config.add_cross_attention:
        raise UserError(f"model.name: {weights} is a decoder with cross-attention; this task trains plain GPT-2")
    return config


def _check(weights: str, config: GPT2Config, preset: str, vocabulary: int, length: int) -> None:
    shape = (config.n_layer, config.n_head, config.n_embd)
    size = PRESETS.get(preset)
    if size is not None and (size.layers, size.heads, size.width) != shape:
        name = shape_name(*shape) or "weights"
        raise UserError(
            f"model.name: {weights} has {shape[0]} layers, {shape[1]} heads and width {shape[2]}, preset {preset} "
            f"has {size.layers}, {size.heads} and {size.width}; set model.preset={name}"
        )
    if config.vocab_size != vocabulary:
        raise UserError(
            f"model.name: {weights} has a vocabulary of {config.vocab_size}, the data of {vocabulary}; prepare the "
            "data with the tokenizer of these weights"
        )
    if config.n_positions < length:
        raise UserError(
            f"model.name: {weights} has {config.n_positions} positions, sequence_length is {length}; "
            "shorten the sequence"
        )


def _same_words(weights: str, theirs: Path, ours: Path) -> None:
    from tokenizers import Tokenizer

    if Tokenizer.from_file(str(theirs)).get_vocab() != Tokenizer.from_file(str(ours)).get_vocab():
        raise UserError(
            f"model.name: {weights} has another tokenizer than the data, of the same size; prepare the data with "
            f"--tokenizer {theirs.parent}"
        )


def _unreadable(weights: str, error: Exception) -> UserError:
    cause = " ".join(str(error).split())[:200] or type(error).__name__
    return UserError(
        f"model.name: {weights} cannot be read, here or on the hub ({cause}); give a folder, or a name that can be "
        "reached (and unset HF_HUB_OFFLINE)"
    )


def token_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the token losses in nats, fp32, through transformers' own code: what gpt2.py is held to.

    inputs and targets: int64 [batch, length].
    """
    logits = model(input_ids=inputs).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
