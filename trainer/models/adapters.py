"""LoRA (arXiv 2106.09685) by peft: small matrices beside the frozen layers of a causal language model.

Only they are trained, exchanged between workers and saved. The frozen model is loaded from model.name at each start and
held in the type of the products; the adapter stays fp32. A checkpoint's model/ is peft's own folder:

    adapter_config.json          peft's settings; names the base model
    adapter_model.safetensors    a few megabytes
    base.json                    where the base model was found, and its fingerprint
    generation_config.json       how texts end: the token that closes an answer
"""

import functools
import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer import files
from trainer.config.schema import Config
from trainer.config.settings import ALL_LINEAR
from trainer.config.values import shown, typed
from trainer.contract import FETCHED
from trainer.errors import UserError, one_line
from trainer.files import read_json, write_json
from trainer.models import capacity

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base.json"
NAMED = "base_model_name_or_path"
"""Key of CONFIG that names the base model."""
PREFIX = "base_model.model."
"""Prefix of each tensor name in peft's files."""
GENERATION = "generation_config.json"
FILES = (CONFIG, WEIGHTS, BASE, GENERATION)
STATE_BYTES = 16
"""Of a trained number: itself, its gradient and AdamW's two moments, in fp32."""
SAMPLES = 64
"""Values of each tensor that enter a fingerprint."""


class Adapter:
    """The adapter of a run, in its model."""

    def __init__(self, net: Any, config: Config) -> None:
        """Freeze `net` and add a fresh adapter to its layers; the same run.seed gives the same adapter.

        Raises UserError if adapter.targets names layers that the model does not have or that take no adapter.
        """
        # peft imports DeepSpeed, which prints its guess of the device on stdout unless this variable names it.
        os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
        from peft import LoraConfig
        from transformers.pytorch_utils import Conv1D

        settings, self._net = config.adapter, net
        source = net.name_or_path
        found = str(Path(source).resolve()) if Path(source).is_dir() else source
        self._base = {"model": found, "fingerprint": fingerprint(net)}
        targets = _targets(net, settings.targets)
        endings = tuple(f".{target}" for target in targets)
        meant = [part.weight.shape for name, part in net.named_modules() if f".{name}".endswith(endings)]
        numbers = settings.rank * sum(map(sum, meant))
        capacity.require_room("adapter.rank", f"an adapter of rank {settings.rank}", numbers, STATE_BYTES, device=True)
        self._config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,  # pyrefly: ignore[bad-argument-type]  # a factor; peft says int
            lora_dropout=settings.dropout,
            target_modules=targets,
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in net.modules()),
            task_type="CAUSAL_LM",
        )
        torch.manual_seed(config.run.seed)
        try:
            net.add_adapter(self._config)
        except ValueError as error:  # a layer that peft has no adapter for, such as Mamba's out_proj
            kind, reason = net.config.model_type, one_line(error)
            raise UserError(
                f"adapter.targets: {settings.targets} does not fit a {kind} model ({reason}); name other layers"
            ) from None
        # Its name on the hub if it was fetched from there, else its folder.
        self._config.base_model_name_or_path = (read_json(Path(found) / FETCHED) or {}).get("model") or found
        for value in trained(net).values():
            value.data = value.data.float()
        net.train()  # from_pretrained leaves it in eval mode, without dropout
        _hasten(net)

    def save(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        """Write peft's folder. Called from a thread, with copies of the adapter's tensors."""
        from safetensors.torch import save_file

        self._config.save_pretrained(str(folder))
        tensors = {_published_name(name): value.contiguous() for name, value in weights.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        write_json(folder / BASE, self._base)
        self._net.generation_config.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote. Raises UserError for an adapter of another model, or with other tensors or shapes."""
        from safetensors.torch import load_file

        base = read_json(folder / BASE) or {}
        if base.get("fingerprint") != self._base["fingerprint"]:
            raise UserError(
                f"model.name: {self._base['model']} has other weights than the model that {folder.parent} was trained "
                f"on ({base.get('model', 'not known')}); name that one, or use another run.directory"
            )
        own = {_published_name(key): value for key, value in trained(self._net).items()}
        found = load_file(folder / WEIGHTS)
        for name in sorted(found.keys() | own.keys()):
            shapes = [tuple(each[name].shape) if name in each else "missing" for each in (found, own)]
            if shapes[0] != shapes[1]:
                raise UserError(
                    f"{folder.parent} holds another adapter: {name} is {shapes[0]} there and {shapes[1]} here; use "
                    "its adapter.rank and adapter.targets, or another run.directory"
                )
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(found[name])


def is_folder(path: str | Path) -> bool:
    return (Path(path) / CONFIG).is_file()


def bases(folder: Path) -> list[str]:
    """Where the base model of a saved adapter may be: where training found it, and what peft's file names."""
    places = [(read_json(folder / name) or {}).get(key) for name, key in ((BASE, "model"), (CONFIG, NAMED))]
    return list(dict.fromkeys(place for place in places if place and isinstance(place, str)))


def described(folder: Path) -> str:
    """The public name of a saved adapter's base model."""
    return (read_json(folder / CONFIG) or {}).get(NAMED) or "an unknown model"


def copy(folder: Path, output: Path, dtype: torch.dtype) -> None:
    """Copy a saved adapter, with its tensors cast to `dtype`."""
    from safetensors.torch import load_file, save_file

    _settings(folder)
    for name in (CONFIG, BASE, GENERATION):
        if (folder / name).is_file():
            files.copy(folder / name, output / name)
    tensors = {name: value.to(dtype) for name, value in load_file(folder / WEIGHTS).items()}
    save_file(tensors, output / WEIGHTS, metadata={"format": "pt"})


def merge(net: Any, folder: Path) -> Any:
    """Merge a saved adapter into the weights of `net`. Raises UserError if it does not belong to this model."""
    from peft import get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers.generation.configuration_utils import GenerationConfig

    settings, base = _settings(folder), read_json(folder / BASE)
    if base is not None and base.get("fingerprint") != fingerprint(net):
        raise UserError(
            f"{folder}: an adapter of {base.get('model')}, but the model found has other weights; name the right one "
            "with --base"
        )
    try:
        with warnings.catch_warnings(action="ignore"):  # peft's advice to untie, which follows
            # Not peft's from_pretrained: without safetensors it opens adapter_model.bin, a pickle.
            wrapped: Any = get_peft_model(net, settings)
            left = set_peft_model_state_dict(wrapped, load_file(folder / WEIGHTS))
            if lost := [*left.unexpected_keys, *_missing(wrapped, left.missing_keys)]:
                raise ValueError(f"{len(lost)} tensors have no counterpart, such as {lost[0]}")
            whole = _merged(wrapped.eval(), settings)
        if (folder / GENERATION).is_file():
            whole.generation_config = GenerationConfig.from_pretrained(folder)
        return whole
    except Exception as error:  # the libraries below raise a dozen kinds
        raise UserError(f"{folder}: no adapter of {type(net).__name__} ({one_line(error)})") from None


OWN = ("lora_", "modules_to_save", "trainable_tokens_delta")
"""Parts of the names of the tensors that peft adds to a model."""
PROBED, NOISE = 16, 1e-4
"""Tokens on which a merged model is compared with its adapter, and the largest relative difference of a token's logits
in fp32: rounding makes 1e-6, a merge that is wrong 0.01 and more."""


def _missing(wrapped: Any, names: list[str]) -> list[str]:
    """The tensors that peft added and its file lacks; those of tied ends are there under one of their names."""
    places = {name: value.data_ptr() for name, value in wrapped.state_dict().items()}
    there = {place for name, place in places.items() if name not in names}
    return [name for name in names if any(part in name for part in OWN) and places[name] not in there]


@torch.no_grad()
def _merged(wrapped: Any, settings: Any) -> Any:
    """Merge the adapter of a peft model. Raises ValueError if the result computes other logits.

    An adapter beside one end of a tied pair (embedding and head) belongs to that end alone: the pair is untied first,
    and tied again where both ends are still equal.
    """
    net = wrapped.get_base_model()
    rows = net.get_input_embeddings().weight.shape[0]
    chosen = settings.trainable_token_indices or []
    chosen = [one for part in chosen.values() for one in part] if isinstance(chosen, dict) else chosen
    tokens = [*chosen[: PROBED // 2], *range(0, rows, max(1, rows // PROBED))][:PROBED]
    probe = torch.tensor([tokens], device=net.device)
    expected = wrapped(input_ids=probe)[0][0]  # logits, but for a model of another kind
    pairs = dict(getattr(net, "all_tied_weights_keys", {}))
    held = set[int]()
    for part in wrapped.modules():
        for name, value in list(part._parameters.items()):
            if value is not None and id(value) in held:
                setattr(part, name, nn.Parameter(value.clone(), value.requires_grad))
            held.add(id(value))
    whole = wrapped.merge_and_unload()
    if not all(torch.equal(whole.get_parameter(one), whole.get_parameter(other)) for one, other in pairs.items()):
        for config in (whole.config, whole.config.get_text_config()):
            config.tie_word_embeddings = False
    elif pairs:
        whole.config.tie_word_embeddings = True  # peft may have taken it away
    whole.tie_weights()
    whole.all_tied_weights_keys = whole.get_expanded_tied_weights_keys(all_submodels=True)
    found = whole(input_ids=probe)[0][0]
    apart = ((found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-6)).median()
    if not apart <= NOISE:
        raise ValueError(f"merged, its logits differ by {float(apart):.2g} of their size; use it with peft, unmerged")
    return whole


USED = {"peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "fan_in_fan_out", "bias"}
USED |= {"use_rslora", "use_dora", "modules_to_save", "layers_to_transform", "layers_pattern", "rank_pattern"}
USED |= {"alpha_pattern", "trainable_token_indices", "target_parameters", "lora_bias", "ensure_weight_tying"}
ABOUT = {"task_type", "base_model_name_or_path", "revision", "inference_mode", "peft_version", "init_lora_weights"}
ABOUT |= {"auto_mapping"}
"""Keys of peft's file (peft/tuners/lora/config.py, 0.21) that merging a LoRA needs, and that do not matter to it.
Others change the base model, import modules or open pickles by name."""


def _settings(folder: Path) -> Any:
    """The settings of a saved adapter. Raises UserError for a kind of adapter that is not read."""
    from peft import LoraConfig

    found, plain = read_json(folder / CONFIG) or {}, vars(LoraConfig())
    if found.get("peft_type") != "LORA":
        raise UserError(f"{folder}: is an adapter of type {shown(found.get('peft_type'))}; only LORA is read")
    init = found.get("init_lora_weights", True)
    other = [key for key, value in found.items() if key not in USED | ABOUT and value and value != plain.get(key)]
    other += [] if init in (True, False, None, "gaussian", "orthogonal") else [f"init_lora_weights={typed(init)}"]
    if other:
        raise UserError(f"{folder}: {', '.join(sorted(other))} of its {CONFIG} is not read; give a plain LoRA")
    try:
        return LoraConfig(**{key: value for key, value in found.items() if key in USED - {"peft_type"}})
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder}: its {CONFIG} is no LoRA's ({one_line(error)}); fetch it again") from None


class _Adapted(torch.autograd.Function):
    """x W^T + bias + scale (x A^T) B^T of a frozen W, [tokens, in] -> [tokens, out].

    peft adds, scales and casts tensors as large as x and the result in separate passes, forward and backward. Here the
    products accumulate into them (addmm_), and only the small matrices are scaled (docs/performance.md has figures).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        low = (x @ down.t()).mul_(scale)
        ctx.save_for_backward(x, weight, down, up, low)
        ctx.scale = scale
        return nn.functional.linear(x, weight, bias).addmm_(low, up.t())

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, down, up, low = ctx.saved_tensors
        [outside] = outer
        inside = (outside @ up).mul_(ctx.scale)
        back = (outside @ weight).addmm_(inside, down) if ctx.needs_input_grad[0] else None
        return back, None, None, inside.t() @ x, outside.t() @ low, None


def _hasten(net: nn.Module) -> None:
    """Route the linear layers that have an adapter through _Adapted, where its conditions hold."""
    from peft.tuners.lora import Linear

    for part in net.modules():
        if isinstance(part, Linear) and isinstance(part.get_base_layer(), nn.Linear):
            part.forward = functools.partial(_forward, part, part.forward)


def _forward(layer: Any, plain: Any, x: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
    base, device = layer.get_base_layer(), x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    dropped = layer.training and isinstance(layer.lora_dropout["default"], nn.Dropout)
    if given or options or layer.merged or layer.disable_adapters or dropped or base.weight.dtype != dtype:
        return plain(x, *given, **options)
    down, up = (part["default"].weight.to(dtype) for part in (layer.lora_A, layer.lora_B))
    with torch.autocast(device, enabled=False):
        found = _Adapted.apply(x.to(dtype).flatten(0, -2), base.weight, base.bias, down, up, layer.scaling["default"])
    return found.unflatten(0, x.shape[:-1])


def trainables(net: nn.Module) -> dict[str, torch.Tensor]:
    """The weights that a checkpoint holds: all of them, or the adapter alone."""
    return trained(net) if is_adapted(net) else net.state_dict()  # pyrefly: ignore[bad-return]


def is_adapted(net: nn.Module) -> bool:
    return bool(getattr(net, "_hf_peft_config_loaded", False))


def hold_frozen(net: Any, dtype: torch.dtype) -> None:
    """Cast the frozen model of an adapter to the type of the products: half the memory, and no casts in each pass."""
    if not is_adapted(net):
        return
    for value in net.parameters():
        if not value.requires_grad and value.is_floating_point():
            value.data = value.data.to(dtype)
    if dtype == torch.float16:  # the residual stream may exceed 65,504: fp32, as under autocast with fp32 weights
        net.get_input_embeddings().register_forward_hook(lambda _, given, found: found.float())


def fingerprint(net: nn.Module) -> str:
    """Hash of the names, shapes and some values of all weights: equal for every copy of a model, in any files, read in
    the stored type or in fp32; different for a model that was trained further."""
    digest = hashlib.sha256()
    for name, value in sorted(net.named_parameters()):
        flat = value.detach().reshape(-1)
        digest.update(f"{name} {tuple(value.shape)}\n".encode())
        digest.update(flat[:: max(1, len(flat) // SAMPLES)][:SAMPLES].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name."""
    return {name: value for name, value in net.named_parameters() if value.requires_grad}


def _published_name(name: str) -> str:
    """The name of a tensor in peft's files."""
    return PREFIX + name.replace(".default.", ".")


def is_text_alone(net: Any) -> bool:
    """Whether a model is a text decoder and its head only, without parts such as a vision encoder."""
    return net.config.get_text_config() is net.config


def _targets(net: Any, wanted: str) -> list[str]:
    """The last parts of the names of the layers that get an adapter; never the head, whose product head.py computes.

    Whole names for a model with more than a decoder: its other parts have layers of the same last names.
    """
    from transformers.pytorch_utils import Conv1D

    def is_meant(name: str, part: str) -> bool:
        return name == part or name.endswith(f".{part}")

    alone = is_text_alone(net)
    inside = {*(net if alone else net.get_decoder()).modules()} - {net.get_output_embeddings()}
    layers = [name for name, part in net.named_modules() if isinstance(part, nn.Linear | Conv1D) and part in inside]
    there = sorted({name.rpartition(".")[2] for name in layers})
    if wanted == ALL_LINEAR:
        return there if alone else layers
    asked = [part.strip() for part in wanted.split(",") if part.strip()]
    unknown = [part for part in asked if not any(is_meant(name, part) for name in layers)]
    if unknown or not asked:
        raise UserError(
            f"adapter.targets: {', '.join(unknown) or shown(wanted)} names no layer of this model; it has "
            f"{', '.join(there)}; give some of these, or {ALL_LINEAR}"
        )
    return asked if alone else [name for name in layers if any(is_meant(name, part) for part in asked)]
