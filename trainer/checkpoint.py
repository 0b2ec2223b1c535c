"""Checkpoints that survive a kill at any write, and fit any number of workers.

checkpoints/step-00000100/
    model/          a Hugging Face folder: config.json, model.safetensors, tokenizer.json
    optimizer.pt    the optimizer's and the loss scaler's state
    config.yaml     the resolved configuration
    manifest.json   step, figures of the run, and the sha256 of every other file; written last

All of it is written to a hidden folder, pushed to the disk and renamed, so a folder named step-* is complete unless
the storage itself damaged it: then its checksums tell, and the one before it is used.
"""

import errno
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.files import fsync, read_json, sha256, write_json
from trainer.metrics import say

if TYPE_CHECKING:
    import torch
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    figures: dict[str, Any]
    """What the run remembers beside its weights, such as initial_validation_loss."""


def folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def save(
    run: Path,
    step: int,
    model: "GPT2LMHeadModel",
    optimizer: dict[str, Any],
    configuration: str,
    tokenizer: Path | None,
    figures: dict[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of `step`, then delete all but the newest `keep`. Called by rank 0 only.

    Raises OSError when the storage is full or gone; older checkpoints are untouched then.
    """
    import torch
    from safetensors import SafetensorError

    target = folder(run, step)
    if verify(target) is not None:
        return target
    clean(run)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        (temporary / "model").mkdir(parents=True)
        model.save_pretrained(temporary / "model")
        if tokenizer is not None:
            shutil.copyfile(tokenizer, temporary / "model" / "tokenizer.json")
        torch.save(optimizer, temporary / "optimizer.pt")
        (temporary / "config.yaml").write_text(configuration, encoding="utf-8")
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for path in files:
            fsync(path)
        sums = {str(path.relative_to(temporary)): sha256(path) for path in files}
        write_json(temporary / MANIFEST, {"step": step, "figures": figures, "sha256": sums})
        fsync(temporary / "model")
        if target.exists():  # same step, but damaged: out of the way first, a rename cannot replace a full folder
            target.rename(target.with_name(f".{target.name}.damaged.{os.getpid()}"))
        temporary.rename(target)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except (SafetensorError, RuntimeError) as error:  # how safetensors and torch.save report a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(errno.EIO, " ".join(str(error).split())) from error
    fsync(target.parent)
    for path in listed(run)[:-keep]:
        # Renamed first: a half-deleted folder must not look like a checkpoint.
        hidden = path.with_name(f".{path.name}.old.{os.getpid()}")
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    clean(run)
    return target


def clean(run: Path) -> None:
    """Delete what a killed process left half-written."""
    for path in (run / "checkpoints").glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def listed(run: Path) -> list[Path]:
    """The checkpoint folders, oldest first."""
    return sorted(path for path in (run / "checkpoints").glob("step-*") if path.is_dir())


def newest(run: Path) -> Checkpoint | None:
    """The newest checkpoint whose checksums hold; each damaged one on the way is named on stderr."""
    for path in reversed(listed(run)):
        found = verify(path)
        if found is not None:
            return found
        say(f"event=checkpoint_damaged path={path} action=skipped", sys.stderr)
    return None


def verify(path: Path) -> Checkpoint | None:
    """The checkpoint in `path` when every file in its manifest is there with the right checksum."""
    manifest = read_json(path / MANIFEST)
    try:
        for name, digest in manifest["sha256"].items():  # pyright: ignore[reportOptionalSubscript]
            if sha256(path / name) != digest:
                return None
        return Checkpoint(path, int(manifest["step"]), manifest["figures"])  # pyright: ignore[reportOptionalSubscript]
    except (OSError, TypeError, KeyError, AttributeError):
        return None


def load_weights(path: Path, model: "GPT2LMHeadModel") -> None:
    """Put the saved weights into `model`. Raises UserError when they are those of another model."""
    from safetensors.torch import load_file

    from trainer.errors import UserError

    weights = load_file(path / "model" / "model.safetensors")
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    saved = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(saved.keys() | (own.keys() - {"lm_head.weight"})):  # the head is the embedding, saved once
        if saved.get(name) != own.get(name):
            raise UserError(
                f"{path} is the checkpoint of another model: {name} is {saved.get(name)} there and {own.get(name)} "
                "here; use another run.directory or the model.preset it was made with"
            )
    model.load_state_dict(weights, strict=False)
    model.tie_weights()


def load_optimizer(path: Path, device: "torch.device") -> dict[str, Any]:
    import torch

    return torch.load(path / "optimizer.pt", map_location=device, weights_only=True)
