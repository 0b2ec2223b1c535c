"""Downloads of a run: which files come, how a download resumes, what a hostile volume cannot do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import fetch, rsync, runs
from tests.cli.volume import MB, OF_THE_NEWEST, Seen, Wire, noise, save, told, tree
from trainer import volume

OTHERS = {"metrics.jsonl", "DONE", "tensorboard/events"}


def receive(wire: Wire, run: Path, target: Path, everything: bool = False) -> tuple[str, ...]:
    """Fetch a run; what was left out."""
    seen = Seen()
    found = runs.run_of(next(volume.runs(str(run.parents[1]), run.name)), {})
    _, left_out = fetch.bring_run(wire.pod, str(run), found, target, seen, everything)
    assert seen.done == seen.size
    return left_out


def test_the_newest_complete_model_the_metrics_and_the_curves_come(tmp_path: Path, run: Path, wire: Wire) -> None:
    target = tmp_path / "here"
    receive(wire, run, target)
    assert tree(target).keys() == OF_THE_NEWEST | OTHERS
    newest = run / "checkpoints" / "step-00000200" / "model" / "model.safetensors"
    assert (target / "model" / "model.safetensors").read_bytes() == newest.read_bytes()
    before = wire.received
    receive(wire, run, target)
    assert wire.received - before < 10_000


def test_all_of_a_run_comes_to_train_on_elsewhere_over_connections_that_break(tmp_path: Path, run: Path) -> None:
    wire = Wire(tmp_path / "wire", break_after=10 * MB)
    receive(wire, run, tmp_path / "here", everything=True)
    assert wire.connections > 3
    assert wire.received < 26 * MB, "nothing twice"
    complete = {name: content for name, content in tree(run).items() if ".step" not in name}
    assert tree(tmp_path / "here") == complete
    assert "checkpoints/step-00000100/optimizer.safetensors" in complete


def test_names_of_all_kinds_come_as_they_are(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    for number, name in enumerate(("-dash", "a b", "ü", "new\nline", "[x]*?", "#c", "a:b/c", "caf\udce9", "\x1b]52;c")):
        noise(volume_folder / "runs" / "[r]*" / name, number)
    receive(wire, volume_folder / "runs" / "[r]*", tmp_path / "he re:")
    assert tree(tmp_path / "he re:") == tree(volume_folder / "runs" / "[r]*")


def test_an_older_model_stays_whole_until_the_newer_one_is(
    tmp_path: Path, run: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "here"
    receive(wire, run, target)
    old = {name: content for name, content in tree(target).items() if name in OF_THE_NEWEST}
    save(run, 300)
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    with monkeypatch.context() as patch:
        patch.setattr("cli.rsync.PATIENCE_SECONDS", -1)
        assert "connection to the volume is lost" in told(
            lambda: receive(Wire(tmp_path / "broken", break_after=5 * MB), run, target)
        )
    assert old.items() <= tree(target).items()
    again = Wire(tmp_path / "again")
    receive(again, run, target)
    assert again.received < 6 * MB
    assert tree(target).keys() == {"model/shard-300"} | OF_THE_NEWEST - {"model/shard-200"} | OTHERS
    assert json.loads((target / "manifest.json").read_text()) == {"step": 300}


def test_a_fetch_that_does_not_fit_on_the_disk_is_refused_before_it_begins(
    tmp_path: Path, run: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.rsync.shutil.disk_usage", lambda _: SimpleNamespace(free=MB))
    assert ": 0.0 GB are to come, 0.0 GB are free" in told(lambda: receive(wire, run, tmp_path / "here", True))
    assert tree(tmp_path / "here") == {}


def test_links_and_odd_files_are_left_out_and_told(tmp_path: Path, run: Path, wire: Wire) -> None:
    secret = noise(tmp_path / "elsewhere" / "secret", 10)
    os.mkfifo(run / "fifo")
    (run / "link").symlink_to(secret)
    (run / "checkpoints/step-00000200/model/folder").symlink_to(secret.parent)
    assert receive(wire, run, tmp_path / "here") == ("fifo", "link", "model/folder")
    assert tree(tmp_path / "here").keys() == OF_THE_NEWEST | OTHERS
    assert not any(path.is_symlink() for path in (tmp_path / "here").rglob("*"))


def test_an_rsync_that_sends_other_names_than_were_asked_for_writes_nothing(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who may change pods can let another rsync answer."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rsync").write_text(f'#!/bin/sh\nexec {shutil.which("rsync")} "$@" --include=/DONE\n')
    (tmp_path / "bin" / "rsync").chmod(0o755)
    wire = Wire(tmp_path / "wire", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr("cli.rsync.PATIENCE_SECONDS", -1)
    said = told(lambda: rsync.bring(wire.pod, str(run), tmp_path / "here", Seen(), "--exclude=/DONE"))
    assert "rejecting excluded file-list name" in said
    assert tree(tmp_path / "here") == {}


def test_a_folder_of_another_run_is_refused_before_anything_is_changed(
    tmp_path: Path, run: Path, call: Any, wire: Wire
) -> None:
    shutil.copytree(run, run.parent / "other")
    assert call("fetch")[0] == 0
    before, asked = tree(tmp_path / "runs" / "small"), wire.connections
    for arguments in (
        ("--run", "other", "--to", "runs/small"),
        ("--stack", "other-stack", "--to", "runs/small"),
        ("--stack", "other-stack"),
    ):
        code, _, said = call("fetch", *arguments)
        assert code == 2
        assert f"--to runs/small: holds {run} of n in context-local; give a folder that is new, empty" in said
    assert (tree(tmp_path / "runs" / "small"), wire.connections) == (before, asked)
    assert call("fetch", "--run", "other", "--to", "runs/another")[0] == 0
    assert call("fetch", "--run", "small", "--all")[0] == 0, "the same run"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--to", "file/below"], "Not a directory: 'file/below'"),
        (["--to", "full"], "--to full: holds other files; give a folder that is new, empty or of "),
        (["--run", "../x"], "--run ../x: give the name of a run, a folder in "),
        (["--run", ""], "--run : give the name of a run, a folder in "),
    ],
)
def test_a_wrong_target_or_name_is_refused_at_once(
    words: list[str], problem: str, tmp_path: Path, call: Any, wire: Wire
) -> None:
    noise(tmp_path / "full" / "README.md", 10)
    noise(tmp_path / "file", 10)
    code, said, error = call("fetch", *words)
    assert code
    assert problem in error
    assert error.count("\n") == 1
    assert (said, wire.connections, (tmp_path / "file").stat().st_size) == ("", 0, 10)


def test_before_the_first_checkpoint_it_says_that_there_is_no_model_and_how_to_get_it(
    tmp_path: Path, run: Path, call: Any
) -> None:
    for folder in (run / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    code, said, _ = call("fetch", "--to", "he re")
    assert code == 0
    assert "no model yet: " in said
    assert "the same command again fetches it, once `trainyard status --stack local` shows one" in said
    assert "  model:" not in said
    save(run, 400)
    assert "  model:  he re/model  (transformers" in call("fetch", "--to", "he re")[1]
    shutil.rmtree(run)
    assert "the run has no files yet; see `trainyard status`, or name another run with --run" in call("fetch")[2]


@pytest.mark.parametrize(
    ("base", "opened"),
    [
        (None, "transformers.AutoModelForCausalLM.from_pretrained"),
        ("org/chat", "an adapter of org/chat: peft.AutoPeftModelForCausalLM.from_pretrained"),
        ("/data/models/mine", "an adapter of /data/models/mine on the volume: peft.PeftModel.from_pretrained, with"),
    ],
)
def test_who_fetches_is_told_what_opens_it(base: str | None, opened: str, tmp_path: Path) -> None:
    if base:
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    assert fetch.how_to_load(tmp_path).startswith(opened)
