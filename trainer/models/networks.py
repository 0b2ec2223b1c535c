"""Models of transformers: those of presets.py with fresh weights, and any causal language model.

They are the plain models, with the names and shapes that every other program knows. The vocabulary is padded only in
the copies that the matrix products read (weight_cache.py), so no checkpoint has padded rows.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainer import patches
from trainer.config import memory
from trainer.config.presets import PRESETS
from trainer.errors import UserError, one_line
from trainer.models import adapters, capacity, checks, loading

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from transformers.generation.configuration_utils import GenerationConfig
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, AutoModelForCausalLM
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME
from transformers.utils.hub import cached_file
from transformers.utils.logging import disable_progress_bar

from trainer.models.causal import CausalModel
from trainer.models.checks import positions
from trainer.models.gpt2 import LanguageModel

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig
    from transformers.modeling_utils import PreTrainedModel

SHAPE = {"n_embd", "n_layer", "n_head", "d_model", "n_layers", "n_heads", "hidden_size", "num_hidden_layers"}
SHAPE |= {"num_attention_heads", "num_key_value_heads", "intermediate_size"}
"""Keys of a model's shape, in one architecture or another. Several read a head_dim that their defaults do not name."""
disable_progress_bar()  # one bar per saved file, in the middle of the log lines
patches.save_without_deepspeed()


def from_preset(preset: str, vocabulary: int, end_of_text: int, seed: int, length: int = 0) -> "PreTrainedModel":
    """A model of presets.py with fresh weights that depend on `seed` alone.

    GPT-2's are drawn as in the paper: normal with standard deviation 0.02, and 0.02 / sqrt(2 x layers) for the two
    projections of each layer into the residual stream, whose sum would otherwise grow with the depth. length: the
    longest sequence in training, in tokens; 0: the most that the preset takes.
    """
    size = PRESETS[preset]
    capacity.require_room("model.preset", preset, memory.of_preset(preset, vocabulary).parameters)
    document = size.document(vocabulary, length or size.positions)
    config = AutoConfig.for_model(**document, bos_token_id=end_of_text, eos_token_id=end_of_text)
    _drop_nothing(config)
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


def from_config(file: str, vocabulary: int, end_of_text: int, length: int, seed: int) -> "PreTrainedModel":
    """A model of the shape that a config.json describes, with fresh weights that depend on `seed` alone.

    Raises UserError if it does not fit the data.
    """
    config = _config("model.config", file, file)
    _check_shape(file, config)
    _check("model.config", file, config, vocabulary, length)
    try:
        config.update({"bos_token_id": end_of_text, "eos_token_id": end_of_text, "pad_token_id": None})
    except Exception as error:  # ModernBERT's decoder has to have a token of padding, which would never be learned
        kind = config.model_type
        raise UserError(
            f"model.config: {file}: a {kind} model is not trained from scratch ({one_line(error)}); name another kind"
        ) from None
    return _fresh("model.config", file, config, seed)


def load(
    name: str, vocabulary: int, length: int, tokenizer: Path | None, dtype: str = "float32", key: str = "model.name"
) -> "PreTrainedModel":
    """Load the causal language model `name`: a Hugging Face folder or hub name, or one of our runs or checkpoints.

    dtype: "auto" keeps the stored type. key: the setting that names it. Raises UserError if there is no model or it
    does not fit: an adapter, another kind of model, a smaller vocabulary than the data's, fewer positions than
    `length`, another tokenizer.
    """
    source = loading.from_name(name, key).model
    if adapters.is_folder(source):
        raise UserError(
            f"{key}: {name} is an adapter, no whole model; make one of it with python -m trainer.export --merge"
        )
    config = _config(key, name, source)
    _check(key, name, config, vocabulary, length)
    if tokenizer is not None:
        with loading.told(key, name, source):
            _same_words(name, source, tokenizer)
    net = loading.read_weights(key, name, source, AutoModelForCausalLM, config, dtype)
    try:
        net.generation_config.validate(strict=True)
    except ValueError:  # a temperature without sampling (Llama 2): transformers reads it, but refuses to save it
        net.generation_config.do_sample = True
    freeze_beside_text(net)
    return net


def shaped_as(folder: Path) -> "PreTrainedModel":
    """The model that a checkpoint's config.json describes; the resume loads its weights."""
    net = _fresh("run.directory", str(folder), _config("run.directory", str(folder), str(folder)))
    if (folder / GENERATION_CONFIG_NAME).is_file():
        net.generation_config = GenerationConfig.from_pretrained(folder)
    freeze_beside_text(net)
    return net


def freeze_beside_text(net: Any) -> None:
    """Freeze the vision parts (Gemma 3 and 4): text gives them no gradient, and workers would wait for one."""
    if not adapters.is_text_alone(net):
        net.requires_grad_(False)
        net.get_decoder().requires_grad_(True)
        net.get_output_embeddings().requires_grad_(True)


def save(net: Any, weights: Mapping[str, torch.Tensor], folder: Path, **options: Any) -> None:
    """Save `weights` in place of the network's own in a transformers folder, with their type in config.json.

    transformers 5 loads a model in the type that its config.json names. By itself it would write the network's type,
    which DeepSpeed has made bf16.
    """
    [*_, kind] = (value.dtype for value in weights.values() if value.is_floating_point())
    net.save_pretrained(folder, state_dict=weights, **options)  # this empties `weights`
    described = json.loads((folder / CONFIG_NAME).read_text("utf-8"))
    described["dtype"] = str(kind).removeprefix("torch.")
    (folder / CONFIG_NAME).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", "utf-8")


def module(
    net: Any, checkpointing: bool = False, packed: bool = False, divided: bool = False, key: str = "model.name"
) -> LanguageModel | CausalModel:
    """The fastest training module for `net`.

    packed: several texts share a row, told apart by their positions. divided: a layer has its weights only while it is
    called (FSDP), and LanguageModel reads them without a call. key: the setting that names the model.
    Raises UserError if the model cannot recompute its layers, or cannot keep packed texts apart.
    """
    if packed and checks.mixes_texts(key, net):
        raise UserError(
            f"{key}: a {net.config.model_type} model attends across packed conversations; name one that honours "
            "position_ids, such as a Llama, Qwen, Mistral, Gemma, GPT-NeoX or GPT-2"
        )
    plain = not packed and not divided and not adapters.is_adapted(net)
    if net.config.model_type == "gpt2" and plain:
        return LanguageModel(net, checkpointing)
    if checkpointing:
        if not net.supports_gradient_checkpointing:
            kind = net.config.model_type
            raise UserError(
                f"model.checkpointing: a {kind} model does not support activation checkpointing; leave it out"
            )
        net.activation_checkpointing_enable({"use_reentrant": False})
    return CausalModel(net)


def flops_per_token(net: Any, length: int, backward: bool = True) -> float:
    """Forward and backward: 6 x parameters + 12 x layers x width x length (PaLM, arXiv 2204.02311, appendix B).

    Forward alone is a third. Frozen parameters count 4 x: they get no gradient. Embeddings are looked up, not
    multiplied, and do not count unless tied to the head. The width is that of all heads. All experts of a mixture
    count, although a token meets few.
    """
    head = getattr(net.get_output_embeddings(), "weight", None)  # an encoder has none
    looked_up = {
        part.weight: part.weight.numel()
        for part in net.modules()
        if isinstance(part, nn.Embedding) and part.weight is not head
    }
    used = [value for value in net.parameters() if value not in looked_up]
    products = sum(value.numel() * (6.0 if value.requires_grad or not backward else 4.0) for value in used)
    shape = net.config.get_text_config()
    heads = getattr(shape, "num_attention_heads", 0)  # without any: a state space model, whose own products are few
    width = heads * (getattr(shape, "head_dim", None) or shape.hidden_size // max(1, heads))
    return (products + 12.0 * shape.num_hidden_layers * width * length) / (1 if backward else 3)


def _fresh(key: str, name: str, config: Any, seed: int | None = None) -> Any:
    """Raises UserError if this machine cannot hold it, or there is no such model."""
    capacity.require_room(key, name, capacity.parameters(key, name, config))
    if seed is not None:
        torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _config(key: str, name: str, source: str) -> "PreTrainedConfig":
    """Read config.json. Raises UserError if it is not that of a causal language model."""
    with loading.told(key, name, source):
        config = loading.read_config(source)
    kind, own = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type), config.architectures or []
    if kind is None or (own and kind not in own):
        raise UserError(
            f"{key}: {name} is a {config.model_type} model ({', '.join(own) or 'no decoder'}), which does not continue "
            "text; name a causal language model, such as gpt2 or Qwen/Qwen2.5-0.5B"
        )
    if getattr(config, "add_cross_attention", False):
        raise UserError(f"{key}: {name} is a decoder with cross-attention; name one that reads text alone")
    _drop_nothing(config)
    return config


def _check_shape(file: str, config: "PreTrainedConfig") -> None:
    """Raise UserError for what transformers builds in another shape than the file's author meant."""
    shape = config.get_text_config()
    known = {*type(shape)().to_dict(), *type(shape).attribute_map}
    if foreign := sorted(SHAPE & shape.to_dict().keys() - known):
        raise UserError(
            f"model.config: {file}: a {shape.model_type} model has no {', '.join(foreign)}, which transformers would "
            f"pass over; its shape is in {', '.join(sorted(SHAPE & known))}"
        )


def _drop_nothing(config: "PreTrainedConfig") -> None:
    """Switch dropout off: one or few passes over the data need no regularisation, and it slows attention down."""
    rates = {key: 0.0 for key, value in config.to_dict().items() if "drop" in key and isinstance(value, float)}
    config.update(rates)


def _check(key: str, name: str, config: "PreTrainedConfig", vocabulary: int, length: int) -> None:
    """Raise UserError if vocabulary or positions are too few. A larger vocabulary is padded (Qwen's by 271 rows).

    vocabulary: the largest id in the data, and one; the tokenizer may have more (Gemma 3 1B's has one more than rows).
    """
    words, most = config.get_text_config().vocab_size, positions(config)
    if words < vocabulary:
        raise UserError(
            f"{key}: {name} has a vocabulary of {words}, the data of {vocabulary}; prepare the data with the tokenizer "
            "of this model"
        )
    if most is not None and most < length:
        raise UserError(f"{key}: {name} has {most} positions, sequence_length is {length}; lower it")


def _same_words(name: str, source: str, ours: Path) -> None:
    from tokenizers import Tokenizer

    theirs = cached_file(source, ours.name, _raise_exceptions_for_missing_entries=False)
    words = Tokenizer.from_file(str(ours)).get_vocab()
    if theirs is None or Tokenizer.from_file(theirs).get_vocab() == words:
        return
    from transformers import AutoTokenizer

    # Another file may name further tokens, and a class others.
    tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    if tokenizer.get_vocab() != words:
        raise UserError(f"{name} has another tokenizer than the data; prepare the data with --tokenizer {source}")
