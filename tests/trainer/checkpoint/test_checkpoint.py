"""Checkpoints survive a kill at any write and damage; a manifest is believed byte for byte or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer import toy
from tests.trainer.checkpoint.saving import Training, killed_while_saving, trained
from tests.trainer.conftest import Disk, newest
from trainer.checkpoint.format import (
    Checkpoint,
    clean,
    list_checkpoints,
    load_optimizer,
    load_weights,
    newest_checkpoint,
    verify_checkpoint,
)
from trainer.checkpoint.saver import Saver
from trainer.config.settings import Checkpoint as Settings
from trainer.data.tokenizer import save_tokenizer
from trainer.errors import UserError


def save(run: Path, step: int, seed: int = 1, keep: int = 9) -> Path:
    training = trained(seed)
    saver = Saver(run, Settings(keep=keep), training.write_model, "train: {}\n")
    path = saver.save(step, training.snapshot(validation_loss=5.0))
    saver.wait()
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def assert_resumable(run: Path, when: str) -> Checkpoint:
    """Step 10 of seed 1 or step 20 of seed 2 can be read in full, weights and optimizer of the same one."""
    found = newest_checkpoint(run)
    assert found is not None, f"nothing to resume from after a kill {when}"
    expected = trained({10: 1, 20: 2}[found.step])
    weights, own = load_file(found.path / "model" / "model.safetensors"), expected.net.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in weights.items()), when
    moments = load_optimizer(found.path)
    assert all(
        torch.equal(moments[name]["exp_avg"], part["exp_avg"]) for name, part in expected.snapshot().optimizer.items()
    )
    return found


def kill_at_any_write(run: Path) -> None:
    save(run, 10)
    at = 1
    while killed_while_saving(run, at=at):
        if assert_resumable(run, f"at write {at}").step == 20:
            # The rename was done; begin again from the old checkpoint for the writes after it.
            for path in list_checkpoints(run):
                path.rename(path.with_name("." + path.name))
            clean(run)
            save(run, 10)
        at += 1
    assert at > 18, "the test must meet the writes it means to interrupt"
    save(run, 30, keep=1)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000030"], "nothing half-written may stay"


def kill_in_the_middle_of_a_file(run: Path) -> None:
    """The weights have 170 kB here, the optimizer's state twice as much."""
    save(run, 10)
    for largest in (1, 200_000):
        assert killed_while_saving(run, largest=largest)
        assert assert_resumable(run, f"after {largest} bytes of a file").step == 10
    save(run, 20, seed=2)
    assert assert_resumable(run, "and another save").step == 20


@pytest.mark.parametrize("kills", [kill_at_any_write, kill_in_the_middle_of_a_file])
def test_a_kill_leaves_a_checkpoint_to_resume_from(kills: Callable[[Path], None], run: Path) -> None:
    """In a process of its own, which forks: other tests may have left threads in this one."""
    toy.apart(kills, run)


def test_a_power_cut_finds_no_folder_of_that_name_without_all_that_is_in_it(
    run: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill the kernel still writes what is not on the disk yet; a power cut loses it."""
    rename = os.rename
    renamed: list[Path] = []
    lost: list[str] = []

    def renames(source: Path, target: Path) -> None:
        renamed.append(target)
        lost.extend(disk.lost([source, *source.rglob("*")]))
        disk.pushed.clear()
        rename(source, target)

    monkeypatch.setattr(os, "rename", renames)
    assert renamed == [save(run, 10)]
    assert not lost
    assert not disk.lost([run / "checkpoints"]), "the name itself"


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("model/model.safetensors", "flip"),
        ("optimizer.safetensors", "cut"),
        ("optimizer.safetensors", "delete"),
        ("manifest.json", "cut"),
    ],
)
def test_a_damaged_newest_is_skipped_with_a_warning(
    run: Path, file: str, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(run, 10)
    path = save(run, 20) / file
    content = path.read_bytes()
    if harm == "delete":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if harm == "cut" else content[:-9] + b"damage!!!")
    assert newest(run).step == 10
    error = capsys.readouterr().err
    assert "event=checkpoint_damaged" in error
    assert "step-00000020" in error
    save(run, 20)  # a resumed run saves the same step again
    assert newest(run).step == 20


def test_what_was_saved_comes_back_bit_by_bit_whatever_training_does_meanwhile(run: Path) -> None:
    training = Training(3).step()
    weights = {name: value.clone() for name, value in training.net.state_dict().items()}
    optimizer = {
        name: {key: value.clone() for key, value in part.items()}
        for name, part in training.snapshot().optimizer.items()
    }
    trained = threading.Event()

    def write_model(weights: dict[str, torch.Tensor], folder: Path) -> None:
        assert trained.wait(30)
        training.write_model(weights, folder)

    saver = Saver(run, Settings(), write_model, "")
    saver.save(5, training.snapshot(initial_validation_loss=6.2))
    training.step().step()  # while the thread writes
    trained.set()
    saver.wait()
    found = newest(run)
    assert (found.step, found.figures, found.state) == (5, {"initial_validation_loss": 6.2}, {"scaler": {"scale": 8.0}})
    other = Training(4)
    load_weights(found.path, other.net)
    assert all(torch.equal(value, weights[name]) for name, value in other.net.state_dict().items())
    assert other.net.lm_head.weight.data_ptr() == other.net.transformer.wte.weight.data_ptr(), "the head stays tied"
    loaded = load_optimizer(found.path)
    assert loaded.keys() == optimizer.keys()
    for name, part in optimizer.items():
        assert part.keys() == loaded[name].keys() >= {"exp_avg", "exp_avg_sq", "step"}
        assert all(
            torch.equal(value, loaded[name][key]) and value.shape == loaded[name][key].shape
            for key, value in part.items()
        )
    assert not torch.equal(training.net.state_dict()["transformer.wte.weight"], weights["transformer.wte.weight"])


def test_no_file_of_a_checkpoint_holds_code(run: Path) -> None:
    """Pickles run what they hold: a checkpoint that someone hands over must be safe to open."""
    names = {path.name for path in save(run, 5).rglob("*") if path.is_file()}
    ours = {"optimizer.safetensors", "config.yaml", "manifest.json"}
    assert names == ours | {"config.json", "generation_config.json", "model.safetensors"}


def test_transformers_opens_the_model_folder_offline_and_gives_the_same_logits(run: Path, tokenizer: Path) -> None:
    training = Training(5).step()

    def write_model(weights: dict[str, torch.Tensor], folder: Path) -> None:
        training.write_model(weights, folder)
        save_tokenizer(tokenizer / "tokenizer.json", folder, positions=64)

    saver = Saver(run, Settings(), write_model, "")
    path = saver.save(5, training.snapshot())
    saver.wait()
    stock: nn.Module = AutoModelForCausalLM.from_pretrained(path / "model")
    tokens = torch.randint(0, 500, (2, 40))
    with torch.no_grad():
        assert torch.equal(stock(tokens).logits, training.net.eval()(tokens).logits)
    text = "The Rays of  Light,\n differ <|endoftext|> in Colour."
    words: Any = AutoTokenizer.from_pretrained(path / "model")
    assert words.decode(words(text)["input_ids"]) == text
    assert words.eos_token == "<|endoftext|>"
    assert words.model_max_length == 64


def test_a_checkpoint_of_another_model_is_told(run: Path) -> None:
    path = save(run, 10)
    with pytest.raises(UserError, match=r"another model: .*\(500, 32\).*\(501, 32\)"):
        load_weights(path, Training(1, vocabulary=501).net)
    file = path / "model" / "model.safetensors"
    weights = load_file(file)
    del weights["transformer.h.1.ln_1.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"ln_1\.weight is None there"):
        load_weights(path, Training(1).net)


@pytest.fixture
def latest(run: Path) -> Path:
    """The folder of step 7 in a run that has step 6, too."""
    save(run, 6)
    return save(run, 7)


def test_no_bit_of_a_manifest_can_flip(latest: Path) -> None:
    """Two bits of every third byte of a real one; a flip that changes no value (`e` to `E`) is refused as well."""
    before = verify_checkpoint(latest)
    file = latest / "manifest.json"
    content = file.read_bytes()
    accepted: list[tuple[int, int]] = []
    for place in range(0, len(content), 3):
        for bit in {place % 8, 5}:
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            if verify_checkpoint(latest) is not None:
                accepted.append((place, bit))
    assert len(content) > 400
    assert accepted == []
    file.write_bytes(content)
    assert (
        verify_checkpoint(latest)
        == before
        == Checkpoint(latest, 7, {"validation_loss": 5.0}, {"scaler": {"scale": 8.0}})
    )


@pytest.mark.parametrize("content", [b"", b"[]", b"\x00" * 999])
def test_what_is_no_manifest_falls_back(content: bytes, latest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (latest / "manifest.json").write_bytes(content)
    assert newest(latest.parents[1]).step == 6
    assert f"event=checkpoint_damaged path={latest} action=skipped reason=" in capsys.readouterr().err


def test_a_checkpoint_under_another_name_keeps_its_step(latest: Path) -> None:
    copy = latest.rename(latest.with_name("step-7-good"))
    assert verify_checkpoint(copy) == Checkpoint(copy, 7, {"validation_loss": 5.0}, {"scaler": {"scale": 8.0}})
    wrong = copy.rename(copy.with_name("step-00000008"))
    assert verify_checkpoint(wrong) is None
