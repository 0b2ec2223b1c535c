"""Downloads of a run: which files are chosen, how a download resumes, what a hostile volume cannot do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import fetch
from cli.transfer import TransferError, get
from tests.cli.volume import MB, OF_THE_NEWEST, Seen, Wire, hold, noise, save, told, tree

RUN = "/data/runs/small"


def receive(wire: Wire, run: Path, target: Path, everything: bool = False) -> Seen:
    seen = Seen()
    chosen, _ = fetch.select(wire.volume.find(str(run)).files, str(run), everything)
    fetch.bring(wire.volume, str(run), chosen, target, seen)
    return seen


def test_the_newest_complete_model_the_metrics_and_the_curves_come(tmp_path: Path, run: Path, wire: Wire) -> None:
    target = tmp_path / "here"
    receive(wire, run, target)
    assert tree(target).keys() == OF_THE_NEWEST | {"metrics.jsonl", "DONE", "tensorboard/events"}
    newest = run / "checkpoints" / "step-00000200" / "model" / "model.safetensors"
    assert (target / "model" / "model.safetensors").read_bytes() == newest.read_bytes()
    before = wire.received
    receive(wire, run, target)
    assert wire.received - before < 10_000


def test_all_of_a_run_can_come_to_train_on_elsewhere(tmp_path: Path, run: Path, wire: Wire) -> None:
    receive(wire, run, tmp_path / "here", everything=True)
    complete = {name for name in tree(run) if ".step" not in name}
    assert tree(tmp_path / "here").keys() == complete
    assert "checkpoints/step-00000100/optimizer.safetensors" in complete


def test_names_of_all_kinds_come_as_they_are(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    for number, name in enumerate(("-dash", "a b", "ü", "new\nline", "[x]*?", "#c", "a:b/c", "caf\udce9", "\x1b]52;c")):
        noise(volume_folder / "runs" / "[r]*" / name, number)
    receive(wire, volume_folder / "runs" / "[r]*", tmp_path / "he re:")
    assert tree(tmp_path / "he re:") == tree(volume_folder / "runs" / "[r]*")


@pytest.mark.parametrize("kill", [False, True], ids=["connection", "pod"])
def test_connections_that_break_are_made_again_and_nothing_comes_twice(kill: bool, tmp_path: Path, run: Path) -> None:
    wire = Wire(tmp_path / "wire", break_after=3 * MB, kill=kill)
    receive(wire, run, tmp_path / "here", everything=True)
    assert wire.connections > 7
    assert wire.received < 26 * MB
    assert tree(tmp_path / "here") == {name: content for name, content in tree(run).items() if ".step" not in name}


@pytest.mark.parametrize("group", [False, True], ids=["the command", "all of its processes"])
def test_a_killed_fetch_goes_on_where_it_stopped(group: bool, tmp_path: Path, run: Path) -> None:
    large, here = noise(run / "large.bin", 60 * MB), tmp_path / "here"
    program = f"""
from pathlib import Path
from cli.transfer import get
from tests.cli.volume import Seen, Wire
volume = Wire(Path({str(tmp_path / "first")!r})).volume
get(volume, {str(run)!r}, {{"large.bin": {60 * MB}}}, Path({str(here)!r}), Seen())
"""
    held = hold(tmp_path / "first")
    client = subprocess.Popen([sys.executable, "-c", program], cwd=Path.cwd(), start_new_session=True)
    end = time.monotonic() + 60
    while (there := max((p.stat().st_size for p in here.rglob("large.bin*")), default=0)) < 4 * MB:
        assert time.monotonic() < end
    os.killpg(client.pid, signal.SIGKILL) if group else client.kill()
    client.wait()
    assert not (here / "large.bin").exists()
    held.unlink()
    wire = Wire(tmp_path / "second")
    get(wire.volume, str(run), {"large.bin": 60 * MB}, here, Seen())
    assert wire.received < 61 * MB - there
    assert tree(here) == {"large.bin": large.read_bytes()}


def test_an_older_model_stays_whole_until_the_newer_one_is(
    tmp_path: Path, run: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "here"
    receive(wire, run, target)
    old = {name: content for name, content in tree(target).items() if name in OF_THE_NEWEST}
    save(run, 300)
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    with monkeypatch.context() as patch:
        patch.setattr("cli.transfer.PATIENCE_SECONDS", 0)
        assert told(lambda: receive(Wire(tmp_path / "broken", break_after=5 * MB), run, target))
    assert old.items() <= tree(target).items()
    again = Wire(tmp_path / "again")
    receive(again, run, target)
    assert again.received < 6 * MB
    assert tree(target).keys() == {"model/shard-300"} | OF_THE_NEWEST - {"model/shard-200"} | {
        *("metrics.jsonl", "DONE", "tensorboard/events")
    }
    assert json.loads((target / "manifest.json").read_text()) == {"step": 300}


def test_files_that_grow_come_as_they_are_when_they_are_fetched(tmp_path: Path, run: Path, wire: Wire) -> None:
    found = wire.volume.find(str(run)).files
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 2}\n')
    (run / "DONE").write_text("{}  ")  # its length differs from the listing, as status.json's does after each log step
    get(wire.volume, str(run), {name: found[name] for name in ("metrics.jsonl", "DONE")}, tmp_path / "here", Seen())
    assert (tmp_path / "here" / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (tmp_path / "here" / "DONE").read_text() == "{}  "


def test_a_checkpoint_that_goes_meanwhile_is_told_by_name(tmp_path: Path, run: Path, wire: Wire) -> None:
    with pytest.raises(TransferError, match=r'gone\.safetensors" failed: No such file'):
        get(wire.volume, str(run), {"gone.safetensors": 10}, tmp_path / "here", Seen())
    assert not any(name.endswith("safetensors") for name in tree(tmp_path / "here"))


def test_a_fetch_that_does_not_fit_on_the_disk_is_refused_before_it_begins(
    tmp_path: Path, run: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.transfer.shutil.disk_usage", lambda _: SimpleNamespace(free=MB))
    assert ": 0.0 GB are to come, 0.0 GB are free" in told(lambda: receive(wire, run, tmp_path / "here", True))
    assert tree(tmp_path / "here") == {}


def test_two_fetches_into_one_folder_at_once_both_end_well(tmp_path: Path, run: Path) -> None:
    wires = [Wire(tmp_path / f"wire{number}") for number in range(2)]
    failed: list[str] = []
    both = [
        threading.Thread(target=lambda w=wire: failed.append(told(lambda: receive(w, run, tmp_path / "here", True))))
        for wire in wires
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert failed == ["", ""]
    assert tree(tmp_path / "here") == {name: content for name, content in tree(run).items() if ".step" not in name}


def test_a_folder_of_another_run_is_refused_before_anything_is_changed(
    tmp_path: Path, run: Path, command: Any, wire: Wire
) -> None:
    shutil.copytree(run, run.parent / "other")
    assert command()[0] == 0
    before, asked = tree(tmp_path / "runs" / "small"), wire.connections
    for arguments in (
        ("--run", "other", "--to", "runs/small"),
        ("--stack", "other-stack", "--to", "runs/small"),
        ("--stack", "other-stack"),
    ):
        code, _, said = command(*arguments)
        assert code == 2
        assert f"--to runs/small: holds the run {run} of n in context-local; give a folder that is new, empty" in said
    assert (tree(tmp_path / "runs" / "small"), wire.connections) == (before, asked)
    assert command("--run", "other", "--to", "runs/another")[0] == 0
    assert command("--run", "small", "--all")[0] == 0, "the same run"


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("file", "--to file: file is a file; give a folder that is new, empty or of this run"),
        ("file/below", "--to file/below: file is a file; give a folder"),
        ("full", "--to full: holds other files; give a folder that is new, empty or of "),
        (".", "--to .: holds other files; give a folder"),
        ("fifo", "--to fifo: fifo is a file; give a folder"),
    ],
)
def test_a_wrong_target_is_refused_at_once(to: str, problem: str, tmp_path: Path, command: Any, wire: Wire) -> None:
    noise(tmp_path / "full" / "README.md", 10)
    noise(tmp_path / "file", 10)
    os.mkfifo(tmp_path / "fifo")
    code, said, error = command("--to", to)
    assert (code, said) == (2, "")
    assert error.startswith(f"error: {problem}")
    assert error.count("\n") == 1
    assert (wire.connections, (tmp_path / "file").stat().st_size) == (0, 10)


@pytest.mark.parametrize("name", ["../x", "/data/runs/x", "a/b", "..", "", "x/"])
def test_a_wrong_name_of_a_run_is_refused_at_once(name: str, command: Any, wire: Wire) -> None:
    code, _, error = command("--run", name)
    assert code == 2
    assert f"--run {name}: give the name of a run, a folder in " in error
    assert wire.connections == 0


def test_before_the_first_checkpoint_it_says_that_there_is_no_model_and_how_to_get_it(
    tmp_path: Path, run: Path, command: Any
) -> None:
    for folder in (run / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    for more in ((), ("--all",)):
        code, said, _ = command("--to", "he re", *more)
        assert code == 0
        assert "no model yet: " in said
        assert "the same command: trainyard fetch --stack local --to 'he re'" in said
        assert "  model:" not in said
    save(run, 400)
    assert "  model:  he re/model  (transformers" in command("--to", "he re")[1]
    shutil.rmtree(run)
    assert "the run has no files yet; see `trainyard status`, or name another run with --run" in command()[2]


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
