"""What strangers can put beside the fetcher's own notes, on the hub and on the volume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.test_fetch import NEEDED, WEIGHTS, Hub, hub, run, there
from trainer import fetch
from trainer.contract import FETCHED

__all__ = ["hub"]

OUTSIDE = "../../runs/mine/checkpoints/step-00000300/manifest.json"
NOTES: dict[str, Any] = {
    "deletes": {"asked": "other", "model": "other", "files": dict.fromkeys([OUTSIDE, "ABSOLUTE", "..", "a\0b", ""], 1)},
    "complete": {"asked": "org/tiny", "model": "org/tiny", "revision": "b" * 40, "files": {}},
    "no weights": {"asked": "org/tiny", "model": "org/tiny", "revision": "b" * 40, "files": {"config.json": 23}},
    "a number": {"asked": "org/tiny", "model": "org/tiny", "revision": 5, "files": 7},
    "a list": {"asked": "org/tiny", "model": "org/tiny", "revision": ["x"], "files": [OUTSIDE, {}]},
    "no object": [1],
}


@pytest.mark.parametrize("planted", ["by the hub", "on the volume"])
@pytest.mark.parametrize("kind", NOTES)
def test_notes_that_others_wrote_delete_nothing_and_complete_nothing(
    kind: str, planted: str, hub: Hub, tmp_path: Path
) -> None:
    output = tmp_path / "data" / "models" / "m"
    precious = (output / OUTSIDE).resolve()
    output.mkdir(parents=True)
    for path in (precious, tmp_path / "absolute"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    text = json.dumps(NOTES[kind]).replace("ABSOLUTE", str(tmp_path / "absolute"))
    names = (FETCHED, fetch.BEGUN, "manifest.json")
    if planted == "by the hub":
        hub.files = hub.files | dict.fromkeys(names, text.encode())
    else:
        for name in names[:2]:
            (output / name).write_text(text)
    hub.damage = 100
    assert run(output) == 2
    hub.damage = 0
    assert run(output) == 0
    assert there(output) == {*NEEDED, FETCHED}
    assert json.loads((output / FETCHED).read_text())["files"].keys() == NEEDED.keys()
    assert [path.read_text() for path in (precious, tmp_path / "absolute")] == ["precious"] * 2


@pytest.mark.parametrize(
    "names",
    [
        ["pytorch_model.bin"],
        ["modeling.py"],
        [*WEIGHTS, "pytorch_model.bin"],
        ["onnx/a.safetensors"],
        ["../a.safetensors"],
        ["/a.safetensors"],
        ["a\0.safetensors"],
        [5],
        [None],
        [],
    ],
    ids=repr,
)
def test_an_index_names_safetensors_beside_it_or_is_refused_before_they_come(
    names: list[Any], hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight_map = {f"layer.{number}": name for number, name in enumerate(names)}
    hub.files = hub.files | {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}
    assert run(tmp_path / "m") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--model org/tiny: its model.safetensors.index.json names ")
    assert "run the same command again" not in line
    assert not [path for path, _ in hub.asked if path.endswith((".safetensors", ".bin", ".py"))]


def test_an_adapter_is_refused_since_transformers_would_take_the_model_that_it_names(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files = hub.files | {"adapter_config.json": b'{"peft_type": "XLORA", "base_model_name_or_path": "org/evil"}'}
    assert run(tmp_path / "m") == 2
    assert capsys.readouterr().err.startswith("--model org/tiny: is an adapter, or brings one;")
    assert not hub.asked


@pytest.mark.parametrize("odd", ["link", "dangling link", "FIFO", "folder"])
@pytest.mark.parametrize("name", ["config.json", ".tokenizer.model.part", FETCHED, fetch.BEGUN])
def test_odd_files_on_the_volume_are_replaced_or_told_and_never_written_through(
    name: str, odd: str, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, outside = tmp_path / "m", tmp_path / "outside"
    output.mkdir()
    outside.write_text("precious")
    {
        "link": lambda: (output / name).symlink_to(outside),
        "dangling link": lambda: (output / name).symlink_to(tmp_path / "nothing"),
        "FIFO": lambda: os.mkfifo(output / name),
        "folder": (output / name).mkdir,
    }[odd]()
    told = odd == "folder"
    assert run(output) == (2 if told else 0)
    if told:
        (line,) = capsys.readouterr().err.splitlines()
        assert str(output) in line
    else:
        assert all((output / each).read_bytes() == content for each, content in NEEDED.items())
        assert not any(path.is_symlink() for path in output.iterdir())
    assert outside.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()
