"""Nothing that comes over the network or from shared storage is executed: a design decision, checked in all modules."""

from __future__ import annotations

import ast
import json
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer import toy
from tests.trainer.conftest import ROOT
from trainer.errors import UserError
from trainer.models import loading, networks
from trainer.parallel.world import World

UNPICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
MODULES = sorted(path for folder in ("trainer", "workloads") for path in (ROOT / folder).rglob("*.py"))


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """(Dotted name, keyword arguments) of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {each.arg: each.value for each in node.keywords if each.arg}


def breaches(source: str) -> list[str]:
    """The imports and calls of a module that may run code that others wrote."""
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"import {name}" for name in names if name.split(".")[0] in UNPICKLES]
    for name, keywords in calls(tree):
        given = {key: value.value for key, value in keywords.items() if isinstance(value, ast.Constant)}
        owner, _, last = name.rpartition(".")
        if last.endswith(("_object", "_object_list")) or name in ("torch.load", "eval", "exec", "yaml.load"):
            found.append(name)
        if name in ("np.load", "numpy.load") and given.get("allow_pickle") is not False:
            found.append(f"{name} without allow_pickle=False")
        if given.get("trust_remote_code") or ("trust_remote_code" in keywords and "trust_remote_code" not in given):
            found.append(f"{name} with remote code")
        any_model = last in ("from_pretrained", "from_config") and ("Auto" in owner or owner == "cls")
        if any_model and given.get("trust_remote_code") is not False:
            found.append(f"{name} without trust_remote_code=False")
        if (
            last == "from_pretrained"
            and (owner == "cls" or "Model" in owner)
            and given.get("use_safetensors") is not True
        ):
            found.append(f"{name} without use_safetensors=True")
    return found


def test_no_module_of_the_trainer_opens_what_can_hold_code() -> None:
    assert len(MODULES) > 100
    found = {str(path.relative_to(ROOT)): breaches(path.read_text()) for path in MODULES}
    assert {path: what for path, what in found.items() if what} == {}


def _weights(folder: Path) -> None:
    networks.load(str(folder), 50257, 8, None)


OPENERS: dict[str, Callable[[Path], Any]] = {
    "evaluate, sample, export": lambda folder: loading.load(loading.Source(str(folder))),
    "model.name": _weights,
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("kind", ["pickled weights", "code of its own"])
def test_a_model_that_brings_code_is_refused_in_one_line(opener: str, kind: str, tmp_path: Path) -> None:
    folder, executed = tmp_path / "model", tmp_path / "executed"
    folder.mkdir()
    config: dict[str, Any] = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 8}
    config |= {"n_head": 1, "n_positions": 8}
    if kind == "pickled weights":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(toy.Bomb(executed)))
    else:
        config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Net"}}
        (folder / "evil.py").write_text(f"open({str(executed)!r}, 'w')\nclass Config: pass\nclass Net: pass\n")
        (folder / "model.safetensors").write_bytes(b"")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as error:
        OPENERS[opener](folder)
    assert "\n" not in str(error.value)
    assert not executed.exists()


def test_an_architecture_that_is_no_model_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "architectures": ["AutoTokenizer"], "n_layer": 1, "n_embd": 8, "n_head": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="AutoTokenizer is no model"):
        loading.load(loading.Source(str(tmp_path)))


def exchanged(world: World, hostile: bytes) -> Any:
    """What the workers tell each other. Then rank 0 sends hostile bytes in place of `gather`'s JSON."""
    own = {"rank": world.rank, "text": "é" * 1000 * world.rank, "score": -math.inf, "nothing": None}
    found = world.from_first(own), world.gather(own)
    if not world.first:
        with pytest.raises(ValueError, match=r"utf|Expecting"):
            world.gather(None)
        return found
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world.size)]
    dist.all_gather(lengths, torch.tensor([len(hostile)]), group=world.control)
    parts = [torch.empty(len(hostile), dtype=torch.uint8) for _ in lengths]
    dist.all_gather(parts, torch.frombuffer(bytearray(hostile), dtype=torch.uint8), group=world.control)
    return found


def test_workers_exchange_values_of_any_length_in_order_of_rank_and_unpickle_none(tmp_path: Path) -> None:
    hostile = pickle.dumps(toy.Bomb(tmp_path / "executed"))
    for first, all_of_them in toy.drive(2, exchanged, hostile, folder=tmp_path):
        assert first == all_of_them[0]
        assert [(each["rank"], len(each["text"])) for each in all_of_them] == [(0, 0), (1, 1000)]
        assert first["score"] == -math.inf
    assert not (tmp_path / "executed").exists()
