"""Export a trained model as a folder: `python -m trainer.export --run DIR --output FOLDER`.

transformers' from_pretrained opens it without this project: weights, config, tokenizer, and a model card with the run's
figures. An adapter (LoRA) is written as a peft folder, or with --merge as a whole model.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from trainer.config.paths import folder
from trainer.errors import UserError, usage
from trainer.export import model_card
from trainer.files import DESCRIPTION, copy
from trainer.models import adapters, loading

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WEIGHTS = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    *adapters.FILES,
)


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.export", description="Write a model as a Hugging Face folder."
    )
    loading.add_options(parser)
    parser.add_argument("--output", required=True, type=folder, metavar="FOLDER", help="where to write; must not exist")
    parser.add_argument("--dtype", choices=TYPES, default="fp32", help="type of the weights")
    parser.add_argument(
        "--safetensors-only", action="store_true", help="weights and config only: no tokenizer, no card"
    )
    parser.add_argument("--merge", action="store_true", help="an adapter: add it to its model, and write that")
    parser.add_argument("--force", action="store_true", help="replace --output if it is there")
    options = parser.parse_args(arguments)
    source = loading.from_options(options)
    try:
        export(source, options.output, options.dtype, options.safetensors_only, options.force, options.merge)
    except OSError as error:
        raise UserError(
            f"--output {options.output}: cannot be written ({error.strerror}); nothing was changed"
        ) from None
    print(f"wrote {options.output}" + (f" from step {source.step}" if source.step is not None else ""))
    return 0


def export(
    source: loading.Source,
    output: Path,
    dtype: str = "fp32",
    bare: bool = False,
    force: bool = False,
    merge: bool = False,
) -> None:
    """Write the folder completely or not at all. Raises UserError, and OSError when the storage refuses."""
    if output.exists() and not force and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"--output {output}: is there already; give another folder, or --force to replace it")
    adapter = adapters.is_folder(source.model)
    if merge and not adapter:
        raise UserError(f"--merge: {source.model} is a whole model already; leave it out")
    net = None if adapter and not merge else _as(loading.load(source), dtype)
    temporary, old = (output.with_name(f".{output.name}.{word}") for word in ("new", "old"))
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        if net is not None:
            net.save_pretrained(temporary)
        else:
            adapters.copy(Path(source.model), temporary, TYPES[dtype])
        if not bare:
            _copy_tokenizer(source, temporary)
            (temporary / "README.md").write_text(model_card.text(source, net, dtype), encoding="utf-8")
        if output.exists():
            _remove(old)  # a kill may have left it; without an output it is the only copy
            output.rename(old)
        try:
            temporary.rename(output)
        except OSError:
            if old.exists():
                old.rename(output)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _remove(old)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _as(net: Any, dtype: str) -> Any:
    if dtype == "fp16":
        largest = torch.finfo(torch.float16).max
        for name, value in net.state_dict().items():
            if value.abs().max() > largest:
                raise UserError(f"--dtype fp16: {name} holds values above {largest:.0f}; use bf16 or fp32")
    return net.to(TYPES[dtype])


def _copy_tokenizer(source: loading.Source, folder: Path) -> None:
    """Copy the tokenizer's files beside the weights; for a hub model, save what transformers makes of them."""
    if Path(source.model).is_dir():
        for file in Path(source.model).iterdir():
            if file.is_file() and file.name not in WEIGHTS and file.suffix in DESCRIPTION:
                copy(file, folder / file.name)
        return
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(source.model, trust_remote_code=False)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
