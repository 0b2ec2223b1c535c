"""Where a command takes its model from: a run, one of its checkpoints, or any Hugging Face folder or name."""

import argparse
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.checkpoint.format import (
    INDEX,
    MANIFEST,
    Checkpoint,
    checkpoint_folder,
    fetched_model,
    indexed,
    list_checkpoints,
    newest_checkpoint,
    run_of,
    step_of,
    verify_checkpoint,
    weight_files,
)
from trainer.config.memory import LARGEST_CONFIG
from trainer.config.paths import folder, path_or_name
from trainer.contract import METRICS
from trainer.errors import UserError, advice, one_line
from trainer.files import list_names, read_json, require_regular
from trainer.models import adapters, capacity


@dataclass(frozen=True)
class Source:
    model: str
    """A Hugging Face folder, or a name on the hub."""
    step: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    """The run's figures at that step."""
    checkpoint: Path | None = None
    """None if the model is not one of our checkpoints."""
    run: Path | None = None
    base: str = ""
    """For an adapter: its base model, if not the one that it names."""


def add_options(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--run", type=folder, metavar="DIR", help="run directory: its newest checkpoint, or that of --step"
    )
    chosen.add_argument(
        "--model", type=path_or_name, metavar="FOLDER", help="a checkpoint folder, a Hugging Face folder, or a hub name"
    )
    parser.add_argument(
        "--base", default="", type=path_or_name, metavar="FOLDER", help="the model of an adapter, if it was moved"
    )
    parser.add_argument("--step", type=int, help="the checkpoint of this step of --run instead of the newest")


def from_options(options: argparse.Namespace) -> Source:
    """The model that the options name. Raises UserError if there is none to use."""
    if options.run is None and options.step is not None:
        raise UserError("--step belongs to --run; with --model give the checkpoint's folder")
    found = from_run(options.run, options.step) if options.run is not None else from_name(options.model, "--model")
    if options.base and not adapters.is_folder(found.model):
        raise UserError(f"--base {options.base}: belongs to an adapter; {found.model} is a whole model")
    return replace(found, base=options.base)


def from_run(run: Path, step: int | None = None, key: str = "--run") -> Source:
    """The checkpoint of `step`, or the newest one that verifies; of a fetched run the model that came.

    key: the option or setting that gave the run, for error messages.
    """
    run = run_of(run)
    if not run.is_dir():
        raise UserError(f"{key}: {run} is no folder; give the run.directory of a training")
    if not list_checkpoints(run) and fetched_model(run):
        found = _verified(run, f"{key} {run}")
        if step not in (None, found.step):
            raise UserError(
                f"--step {step}: only step {found.step} was fetched; trainyard fetch --all brings every one"
            )
        return found
    if step is None:
        found = newest_checkpoint(run)
        if found is None:
            damaged = " (those named above are damaged)" if list_checkpoints(run) else ""
            raise UserError(f"{key}: {run} holds no checkpoint that verifies{damaged}; give a run that has saved one")
        return _from_checkpoint(found)
    path = checkpoint_folder(run, step)
    if not path.is_dir():
        there = ", ".join(str(step_of(item)) for item in list_checkpoints(run)) or "none"
        raise UserError(f"--step {step}: {run} has no checkpoint of that step; there are: {there}")
    return _verified(path, f"--step {step}")


def from_name(name: str, key: str) -> Source:
    """A run (its newest checkpoint), a checkpoint, a Hugging Face folder, or a hub name (resolved by transformers).

    key: the option or setting that gave the name, for error messages. Raises UserError if there is nothing to use.
    """
    path = Path(name)
    if (path / "checkpoints").is_dir():
        return from_run(path, key=key)
    if (path / MANIFEST).is_file() and (path / "model").is_dir():
        return _verified(path, f"{key} {name}")
    if path.is_dir():
        if not list_names(path, "config.json") and not adapters.is_folder(path):
            raise UserError(f"{key}: {name} holds no config.json; give a Hugging Face folder, a run or a checkpoint")
        if not list_names(path, "*.safetensors"):
            raise UserError(
                f"{key}: {name} holds a config.json but no weights (model.safetensors); a pytorch_model.bin is a "
                "pickle, which may hold code, and is not opened: save the model again with transformers"
            )
        return Source(str(path))
    if path.exists() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise UserError(f"{key}: {name} is no folder; give a folder or a name on the hub such as gpt2")
    return Source(name)


def load(source: Source) -> Any:
    """Load the model in the class that its config.json names, on the CPU, in fp32 and eval mode; merge an adapter.

    Raises UserError if it cannot be loaded.
    """
    if not adapters.is_folder(source.model):
        return _read(source.model)
    # In its stored type, as the training read it: rounded to that, dequantised weights are others.
    return adapters.merge(_read(base_of(source), "auto"), Path(source.model)).eval()


QUIET = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
"""Of transformers' cached_file, which then gives None for what is not there."""
CONFIG = "config.json"
DEQUANTISED = ("fp8", "mxfp8", "mxfp4")
"""Quantised models that transformers reads into plain weights on any device (transformers/quantizers, 5.23): training,
merging and sampling then see the same ones."""


def read_config(model: str) -> Any:
    """The config.json of a folder or hub name. Raises UserError for files that must not or cannot be opened.

    Attention is left to transformers: eager attention costs memory, and the file may name a kernel of the hub, which
    is code.
    """
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.utils.hub import cached_file

    _check_files(model)
    file = model if Path(model).is_file() else cached_file(model, CONFIG, **QUIET)
    if file and (size := Path(file).stat().st_size) > LARGEST_CONFIG:
        raise UserError(f"{model}: its {CONFIG} has {size:,} bytes, which is no model's; at most {LARGEST_CONFIG:,}")
    config: Any = AutoConfig.from_pretrained(model, trust_remote_code=False)
    config._attn_implementation = None
    for part in (config, config.get_text_config()):
        quantised = getattr(part, "quantization_config", None)
        if quantised and quantised.get("quant_method") not in DEQUANTISED:
            kind = quantised.get("quant_method") or "bitsandbytes"  # whose old files do not say it
            raise UserError(
                f"{model}: is quantised by {kind}, which is not read here (only {', '.join(DEQUANTISED)}); give the "
                "model that it was made from"
            )
        if quantised:
            quantised["dequantize"] = True
    return config


def _check_files(model: str) -> None:
    """Raise UserError for a model of which transformers would open a pickle, or another model.

    An index may name pickles as weights, and an adapter's file another model.
    """
    from transformers.utils.hub import cached_file

    folder = Path(model)
    if folder.is_dir():
        for path in filter(Path.is_file, weight_files(folder)):  # names no other file than safetensors
            require_regular(path, folder)
    elif not folder.exists():
        if found := cached_file(model, INDEX, **QUIET):
            indexed(read_json(Path(found)) or {}, model)
        if not cached_file(model, adapters.CONFIG, **QUIET):
            return
    if adapters.is_folder(model) or not folder.exists():
        raise UserError(f"{model}: is an adapter, no whole model, or brings one; merge it, or remove {adapters.CONFIG}")


def base_of(source: Source) -> str:
    """The base model of an adapter: its folder, or its name on the hub.

    Raises UserError if it is in none of the places that the adapter names.
    """
    places = [source.base] if source.base else adapters.bases(Path(source.model))
    for model in places:
        if Path(model).is_dir():
            return from_name(model, "--base").model
    for model in places:
        if not model.startswith(("/", ".", "~")) and model.count("/") < 2:
            return model
    where = f"is not in {' or '.join(places)}" if places else "is named nowhere"
    raise UserError(
        f"{source.model}: the base model of this adapter {where}; give its folder or its name on the hub with --base"
    )


def weights(folder: Path) -> int:
    """How many numbers a folder's safetensors hold; 0 without any."""
    from safetensors import safe_open

    total = 0
    for path in filter(Path.is_file, weight_files(folder)):
        with safe_open(path, "pt") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118, no dict
    return total


def read_weights(
    key: str, name: str, model: str, kind: Any, config: Any, dtype: Any = "float32", fresh_head: bool = False
) -> Any:
    """The model with its stored weights, in this class of transformers; "auto" keeps their type.

    fresh_head: the files may lack what stands on the base model. Raises UserError, with the `key` and the `name` that
    it has there, if they lack other tensors, cannot be read, or this machine cannot hold them.
    """
    with told(key, name, model):
        capacity.require_room(key, name, weights(Path(model)), 1 if dtype == "auto" else 4)
        net, details = kind.from_pretrained(
            model, config=config, dtype=dtype, output_loading_info=True, use_safetensors=True, trust_remote_code=False
        )
    missing = [each for each in details["missing_keys"] if not (fresh_head and _in_head(net, each))]
    if missing := sorted([*missing, *map(str, details.get("mismatched_keys", ()))]):
        raise UserError(
            f"{key}: {model} lacks {len(missing)} of the model's tensors, such as {missing[0]}; the download may be "
            "incomplete: give a folder with all of them"
        )
    return net


def _in_head(net: Any, name: str) -> bool:
    """Whether a tensor of a model for questions lies outside its base model: ModernBERT has three layers there."""
    if net.base_model is net:  # T5's, which has no such part
        return name.startswith("qa_outputs.")
    return not name.startswith(f"{net.base_model_prefix}.")


@contextlib.contextmanager
def told(key: str, name: str, source: str, what: str = "") -> Iterator[None]:
    """Raise every error inside as one UserError that names the setting, and `what` the model cannot be read as."""
    try:
        yield
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith(f"{key}: ") else f"{key}: {text}") from None
    except Exception as error:  # the libraries below raise two dozen kinds
        raise UserError(f"{key}: {name} cannot be read{what} ({one_line(error)}); {advice(source)}") from None


def _read(model: str, dtype: Any = "float32") -> Any:
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with told("model", model, model):
        config = read_config(model)
        kind: Any = transformers.AutoModelForCausalLM
        if config.architectures:
            kind = getattr(transformers, config.architectures[0])
            # The file chooses the name: accept a model class, not anything else in transformers.
            if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
                raise ValueError(f"its architecture {config.architectures[0]} is no model")
    return read_weights("model", model, model, kind, config, dtype).float().eval()


def load_language_model(source: Source) -> Any:
    """As `load`. Raises UserError if the model does not continue text."""
    net = load(source)
    if not net.can_generate():
        raise UserError(f"{source.model}: a {type(net).__name__} does not continue text; give a language model")
    return net


def _verified(path: Path, option: str) -> Source:
    problems: list[str] = []
    found = verify_checkpoint(path, problems=problems)
    if found is None:
        instead = "run the same trainyard fetch again" if fetched_model(path) else "use another step"
        raise UserError(f"{option}: {path} is damaged ({'; '.join(problems)}); {instead}")
    return _from_checkpoint(found)


def _from_checkpoint(found: Checkpoint) -> Source:
    fetched = found.path if (found.path / METRICS).is_file() else None
    run = found.path.parent.parent if found.path.parent.name == "checkpoints" else fetched
    return Source(str(found.path / "model"), found.step, found.figures, found.path, run)
