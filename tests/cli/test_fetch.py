"""Downloads of a run: which files are chosen, how a download resumes, and files that change meanwhile."""

from __future__ import annotations

import json
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import CommandError, fetch
from cli.transfer import Pair, TransferError, Volume, get
from cli.volume_server import PIECE, hashes, partial
from tests.cli.volume import Seen, Wire, server

RUN = "/data/runs/small"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with two complete checkpoints, one that is being written, and a copy of somebody's own."""
    folder = tmp_path / "volume" / "runs" / "small"
    for step in (100, 200):
        checkpoint = folder / "checkpoints" / f"step-{step:08d}"
        (checkpoint / "model").mkdir(parents=True)
        (checkpoint / "model" / "model.safetensors").write_bytes(random.Random(step).randbytes(3 * PIECE + step))
        (checkpoint / "optimizer.safetensors").write_bytes(b"0" * 1000)
        (checkpoint / "config.yaml").write_text("run: {}\n")
        (checkpoint / "manifest.json").write_text("{}")
    unfinished = folder / "checkpoints" / ".step-00000300.17"
    unfinished.mkdir()
    (unfinished / "manifest.json").write_text("{}")
    shutil.copytree(folder / "checkpoints" / "step-00000100", folder / "checkpoints" / "step-100-good")
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events").write_bytes(b"events")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "DONE").write_text("{}")
    return folder


@pytest.fixture
def wire(run: Path) -> Iterator[Wire]:
    with server(run.parent.parent) as (port, _):
        yield Wire(port)


def receive(wire: Wire, run: Path, target: Path, everything: bool = False) -> Seen:
    seen = Seen()
    get(wire.volume, fetch.wanted(wire.volume.files(str(run)), str(run), target, everything), seen)
    assert seen.done == seen.size
    return seen


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_newest_complete_model_the_metrics_and_the_curves_come(tmp_path: Path, run: Path, wire: Wire) -> None:
    target = tmp_path / "here"
    receive(wire, run, target)
    assert names(target) == {"model/model.safetensors", "config.yaml", "metrics.jsonl", "DONE", "tensorboard/events"}
    newest = run / "checkpoints" / "step-00000200" / "model" / "model.safetensors"
    assert (target / "model" / "model.safetensors").read_bytes() == newest.read_bytes()
    before = wire.received
    receive(wire, run, target)
    assert wire.received - before < 10_000


def test_all_of_a_run_can_come_to_train_on_elsewhere(tmp_path: Path, run: Path, wire: Wire) -> None:
    receive(wire, run, tmp_path / "here", everything=True)
    complete = {name for name in names(run) if ".step" not in name}
    assert names(tmp_path / "here") == complete
    assert "checkpoints/step-00000100/optimizer.safetensors" in complete


def test_an_interrupted_fetch_gets_only_what_is_missing(tmp_path: Path, run: Path, wire: Wire) -> None:
    target = tmp_path / "here"
    model = (run / "checkpoints" / "step-00000200" / "model" / "model.safetensors").read_bytes()
    half = partial(target / "model" / "model.safetensors")
    half.parent.mkdir(parents=True)
    half.write_bytes(model[:PIECE] + b"damaged" + model[PIECE + 7 : 2 * PIECE + 100])
    receive(wire, run, target)
    assert (target / "model" / "model.safetensors").read_bytes() == model
    assert not half.exists()
    assert 2 * PIECE < wire.received < 2.2 * PIECE


def test_connections_that_break_are_made_again(tmp_path: Path, run: Path) -> None:
    with server(run.parent.parent) as (port, _):
        wire = Wire(port, break_after=PIECE * 3 // 2)
        receive(wire, run, tmp_path / "here", everything=True)
    assert wire.connections > 4
    assert hashes(tmp_path / "here" / "checkpoints" / "step-00000100" / "model" / "model.safetensors", 1 << 30)


def test_small_files_come_whole_as_they_are_when_they_are_fetched(tmp_path: Path, run: Path, wire: Wire) -> None:
    pairs = fetch.wanted(wire.volume.files(str(run)), str(run), tmp_path / "here", False)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 2}\n')
    (run / "DONE").write_text("{}")  # its length differs from the listing, as status.json's does after each log step
    get(wire.volume, pairs, Seen())
    assert (tmp_path / "here" / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (tmp_path / "here" / "DONE").read_text() == "{}"


def test_a_checkpoint_that_goes_meanwhile_is_told_by_name(tmp_path: Path, run: Path, wire: Wire) -> None:
    pair = Pair(tmp_path / "here" / "model.safetensors", str(run / "gone.safetensors"), 10)
    with pytest.raises(TransferError, match=r"gone\.safetensors: No such file"):
        get(wire.volume, [pair], Seen())
    assert names(tmp_path / "here") == set()


@pytest.mark.parametrize("name", ["/root/.bashrc", "../../escaped", "model/../../escaped"])
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who may change pods can answer in the server's place."""
    volume = Volume(lambda: socket.socket())
    monkeypatch.setattr(volume, "ask", lambda *_, **__: json.dumps({"files": [{"path": name, "size": 1}]}))
    with pytest.raises(TransferError, match="leads out of the folder"):
        volume.files(RUN)
    monkeypatch.setattr(volume, "ask", lambda *_, **__: json.dumps({"files": [{"path": "a..b/c", "size": 1}]}))
    assert volume.files(RUN) == {"a..b/c": 1}


def test_a_run_without_files_is_told(tmp_path: Path, wire: Wire) -> None:
    found = wire.volume.files(str(tmp_path / "volume" / "runs" / "other"))
    with pytest.raises(CommandError, match=r"the run has no files yet; .* --run"):
        fetch.wanted(found, RUN, tmp_path, False)


def test_before_the_first_checkpoint_there_are_metrics() -> None:
    found = {"metrics.jsonl": 10, "checkpoints/step-00000001/config.yaml": 5}
    assert [pair.remote for pair in fetch.wanted(found, RUN, Path("x"), False)] == [f"{RUN}/metrics.jsonl"]


@pytest.mark.parametrize(
    ("base", "opened"),
    [
        (None, "transformers.AutoModelForCausalLM.from_pretrained"),
        ("org/chat", "an adapter of org/chat: peft.AutoPeftModelForCausalLM.from_pretrained"),
        (
            "/data/models/mine",
            "an adapter of /data/models/mine on the volume: peft.PeftModel.from_pretrained, with that",
        ),
    ],
)
def test_who_fetches_is_told_what_opens_it(base: str | None, opened: str, tmp_path: Path) -> None:
    if base:
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    assert fetch.how_to_load(tmp_path).startswith(opened)
