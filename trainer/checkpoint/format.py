"""Checkpoints that survive a kill at any write, and fit any number of workers and any engine.

checkpoints/step-00000100/
    model/                  a Hugging Face folder: config.json, model.safetensors, tokenizer.json, ...
    optimizer.safetensors   the optimizer's tensors, named PARAMETER/STATE, such as transformer.wte.weight/exp_avg
    config.yaml             the resolved configuration
    manifest.json           step, figures and small state of the run, size and sha256 of every other file and of itself;
                            written last

The files are written to a hidden folder, which is fsynced and renamed, so a folder named step-* is complete unless the
storage damaged it. The checksums detect that, and the previous checkpoint is used. No file holds code (pickle).

saver.py decides when to write a checkpoint and which older ones to delete.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config.values import shown
from trainer.contract import MANIFEST, checkpoint_name, checkpoint_step
from trainer.errors import UserError, forbidden, one_line
from trainer.files import (
    Unfit,
    fsync,
    is_plain_name,
    list_names,
    read_json,
    sha256,
    write_atomic,
)
from trainer.log import warn

if TYPE_CHECKING:
    import torch
    from torch import nn

OPTIMIZER = "optimizer.safetensors"
CONFIGURATION = "config.yaml"
INDEX = "model.safetensors.index.json"

#: Writes a Hugging Face folder (weights, config, tokenizer) from the given copies of the weights, by their names in
#: the model's state dict. Runs in the writing thread: it must not touch the model that trains.
ModelWriter = Callable[["dict[str, torch.Tensor]", Path], None]


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after a step, by names that depend on neither the engine nor the number of workers."""

    weights: "dict[str, torch.Tensor]"
    """The model's state dict: fp32, full tensors. Tied tensors may be there under each of their names."""
    optimizer: "dict[str, dict[str, torch.Tensor]]"
    """By parameter name, then by state: {"transformer.wte.weight": {"exp_avg": ..., "exp_avg_sq": ..., "step": ...}}.
    Full tensors, in whatever type the optimizer keeps them."""
    state: dict[str, Any] = field(default_factory=dict)
    """Further state that a resume needs, as JSON: the loss scaler's state, counters of the schedule, ..."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures that the run keeps, such as initial_validation_loss."""
    owned: bool = False
    """Whether these tensors are already in host memory and will not change."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    figures: dict[str, Any]
    state: dict[str, Any]


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / checkpoint_name(step)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def write_checkpoint(run: Path, step: int, snapshot: Snapshot, write_model: ModelWriter, configuration: str) -> Path:
    """Write the checkpoint of `step` and return its folder. Called by rank 0 only.

    Raises OSError when the storage is full, read-only or gone; older checkpoints are untouched then.
    """
    from safetensors import SafetensorError

    target = checkpoint_folder(run, step)
    if verify_checkpoint(target) is not None:
        return target
    clean(run)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        _write_files(temporary, step, snapshot, write_model, configuration)
        if os.path.lexists(target):  # damaged: move it away, since a rename cannot replace a non-empty folder
            target.rename(target.with_name(f".{target.name}.damaged.{os.getpid()}"))
        temporary.rename(target)
        fsync(target.parent)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except (SafetensorError, RuntimeError) as error:  # how safetensors reports a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(errno.EIO, one_line(error)) from error
    clean(run)
    return target


def _write_files(path: Path, step: int, snapshot: Snapshot, write_model: ModelWriter, configuration: str) -> None:
    from safetensors.torch import save_file

    (path / "model").mkdir()
    write_model(snapshot.weights, path / "model")
    tensors = {f"{name}/{key}": value for name, part in snapshot.optimizer.items() for key, value in part.items()}
    save_file(tensors, path / OPTIMIZER)
    (path / CONFIGURATION).write_text(configuration, encoding="utf-8")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        fsync(file)
    write_manifest(path, files, step, snapshot.figures, snapshot.state)
    fsync(path / "model")


def write_manifest(path: Path, files: list[Path], step: int, figures: dict[str, Any], state: dict[str, Any]) -> None:
    """Write the manifest of these files in the folder `path`."""
    content = {
        "step": step,
        "figures": figures,
        "state": state,
        "bytes": {str(file.relative_to(path)): file.stat().st_size for file in files},
        "sha256": {str(file.relative_to(path)): sha256(file, path) for file in files},
    }
    write_atomic(path / MANIFEST, _sealed(content))


def _sealed(content: dict[str, Any]) -> str:
    """The text of a manifest: the content, and the digest of it."""
    whole = {**content, "digest": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def is_writing(run: Path, pid: int) -> bool:
    """Whether this process has begun a checkpoint and not completed it."""
    return any((run / "checkpoints").glob(f".step-{'[0-9]' * 8}.{pid}"))


def clean(run: Path) -> None:
    """Delete what a killed process left half-written."""
    for path in (run / "checkpoints").glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoint folders, oldest first; leaves out folders that somebody named like step-500-good.

    Raises PermissionError if they cannot be listed: a run that seems to have none would begin again.
    """
    paths = [run / "checkpoints" / name for name in list_names(run / "checkpoints", "step-*")]
    return [path for path in paths if checkpoint_step(path.name) is not None and path.is_dir()]


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint whose checksums hold; each damaged one that it skips is named on stderr."""
    for path in reversed(list_checkpoints(run)):
        problems: list[str] = []
        found = verify_checkpoint(path, problems=problems)
        if found is not None:
            return found
        say_damaged(path, problems)
    return None


def say_damaged(path: Path, problems: list[str]) -> None:
    warn("checkpoint_damaged", sys.stderr, path=path, action="skipped", reason=repr("; ".join(problems)))


def run_of(folder: Path) -> Path:
    """The run directory of the model/ that `trainyard fetch` made in it; any other folder itself."""
    return folder.parent if folder.name == "model" and fetched_model(folder.parent) else folder


def fetched_model(run: Path) -> bool:
    """Whether a run directory is a copy with the model of one checkpoint, without what a training resumes from."""
    return (run / MANIFEST).is_file() and (run / "model").is_dir() and not (run / OPTIMIZER).exists()


def verify_checkpoint(
    path: Path, share: tuple[int, int] = (0, 1), problems: list[str] | None = None
) -> Checkpoint | None:
    """The checkpoint in `path` if it is whole: its manifest, and every file that is named there. Else None, and what is
    wrong in `problems`.

    share (i, n): read only the i-th of n parts of the files, which are dealt out largest first. A run that was fetched
    has no optimizer state, and needs none. Raises UserError for a file that is there and cannot be read.
    """
    absent = {OPTIMIZER} if path.parent.name != "checkpoints" and fetched_model(path) else set()
    try:
        manifest = _manifest(path)
        sizes, digests = manifest["bytes"], manifest["sha256"]
        for name in sorted(digests.keys() - absent, key=lambda name: (-sizes[name], name))[share[0] :: share[1]]:
            if sha256(path / name) != digests[name]:
                raise Unfit(name, "does not match its checksum in the manifest")
        return Checkpoint(path, manifest["step"], manifest["figures"], manifest["state"])
    except PermissionError as error:
        raise forbidden(error) from None
    except OSError as error:
        if problems is not None:
            problems.append(f"{error.filename}: {error.strerror}")
        return None


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of the folder. Raises OSError if it is not byte for byte what was written for this step."""
    file = path / MANIFEST
    text = file.read_bytes()
    try:
        found = json.loads(text)
        sealed = text == _sealed({key: value for key, value in found.items() if key != "digest"}).encode()
    except (ValueError, AttributeError):
        found, sealed = {}, False
    if not sealed:
        raise Unfit(file, "does not match its own checksum")
    if checkpoint_step(path.name) not in (None, found["step"]):  # None: a person's copy, under another name
        raise Unfit(file, f"is of step {found['step']}")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder: one, as transformers prefers, or those that its index names.

    Raises UserError as `indexed`.
    """
    one, index = folder / "model.safetensors", read_json(folder / INDEX)
    return [one] if one.is_file() or index is None else [folder / name for name in indexed(index, folder)]


def indexed(index: dict[str, Any], owner: object) -> list[str]:
    """The files that an index names. Raises UserError for any but safetensors beside it: transformers would unpickle
    them."""
    places = index.get("weight_map")
    names = list(places.values()) if isinstance(places, dict) else []
    for name in names or [""]:
        if not is_plain_name(name) or not name.endswith(".safetensors"):
            raise UserError(
                f"{owner}: its {INDEX} names {shown(name)[:100]} as weights; give a model whose index names "
                "safetensors files beside it"
            )
    return sorted(set(names))


def load_weights(path: Path, model: "nn.Module") -> None:
    """Copy the saved weights into `model`, tensor by tensor. Raises UserError when they belong to another model."""
    import torch
    from safetensors import safe_open

    own = model.state_dict()
    with ExitStack() as stack, torch.no_grad():
        files = [stack.enter_context(safe_open(file, "pt")) for file in weight_files(path / "model")]
        places = {name: file for file in files for name in file.keys()}  # noqa: SIM118, no dictionary
        tied: Any = getattr(model, "all_tied_weights_keys", {})  # each tied pair is saved under one of its names
        saved_as = places.keys() | {twice for pair in tied.items() for twice in pair if places.keys() & set(pair)}
        for name in sorted(places.keys() | own.keys()):
            here = tuple(own[name].shape) if name in own else None
            there = tuple(places[name].get_slice(name).get_shape()) if name in places else None
            if here != there and not (there is None and name in saved_as):
                raise UserError(
                    f"{path} is the checkpoint of another model: {name} is {there} there and {here} here; "
                    "use another run.directory or the model.preset it was made with"
                )
        for name, file in places.items():
            own[name].copy_(file.get_tensor(name))
    model.tie_weights()  # pyrefly: ignore[not-callable]


def load_optimizer(path: Path, device: "torch.device | str" = "cpu") -> "dict[str, dict[str, torch.Tensor]]":
    """The optimizer's tensors by parameter name, then by state: Snapshot.optimizer as it was saved."""
    from safetensors.torch import load_file

    result: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in load_file(path / OPTIMIZER, device=str(device)).items():
        parameter, _, key = name.rpartition("/")
        result.setdefault(parameter, {})[key] = value
    return result
