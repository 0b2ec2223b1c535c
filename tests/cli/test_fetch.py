"""Downloads of a run: which files are chosen, how a download resumes, what a hostile volume cannot do."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import __main__, fetch
from cli.target import Target
from cli.transfer import TransferError, get
from tests.cli.volume import Seen, Wire, noise, plant, told, tree

MB = 1 << 20
RUN = "/data/runs/small"


@pytest.fixture
def run(volume_folder: Path) -> Path:
    """A run folder with two complete checkpoints, one that is being written, and a copy of somebody's own."""
    folder = volume_folder / "runs" / "small"
    for step in (100, 200):
        save(folder, step)
    unfinished = folder / "checkpoints" / ".step-00000300.17"
    unfinished.mkdir()
    (unfinished / "manifest.json").write_text("{}")
    shutil.copytree(folder / "checkpoints" / "step-00000100", folder / "checkpoints" / "step-100-good")
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events").write_bytes(b"events")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "DONE").write_text("{}")
    return folder


def save(run: Path, step: int) -> None:
    checkpoint = run / "checkpoints" / f"step-{step:08d}"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "model" / "model.safetensors").write_bytes(random.Random(step).randbytes(8 * MB))
    (checkpoint / "model" / f"shard-{step}").write_text(f"of {step}")
    (checkpoint / "optimizer.safetensors").write_bytes(b"0" * 1000)
    (checkpoint / "config.yaml").write_text("run: {}\n")
    (checkpoint / "manifest.json").write_text(json.dumps({"step": step}))


def receive(wire: Wire, run: Path, target: Path, everything: bool = False) -> Seen:
    seen = Seen()
    chosen, _ = fetch.wanted(wire.volume.find(str(run)).files, str(run), everything)
    fetch.bring(wire.volume, str(run), chosen, target, seen)
    return seen


OF_THE_NEWEST = {"model/model.safetensors", "model/shard-200", "config.yaml", "manifest.json"}


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
    client = subprocess.Popen([sys.executable, "-c", program], cwd=Path.cwd(), start_new_session=True)
    end = time.monotonic() + 60
    while (there := max((p.stat().st_size for p in here.rglob("large.bin*")), default=0)) < 4 * MB:
        assert time.monotonic() < end
    os.killpg(client.pid, signal.SIGKILL) if group else client.kill()
    client.wait()
    assert not (here / "large.bin").exists()
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


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(8 << 40)


ODD = {
    "link to a file": (lambda p, v: p.symlink_to(v / "secret"), "link"),
    "link to a folder": (lambda p, v: p.symlink_to(v), "link"),
    "link to nothing": (lambda p, v: p.symlink_to("/nowhere"), "link"),
    "FIFO": (lambda p, v: os.mkfifo(p), "FIFO"),
    "socket": (lambda p, v: os.mknod(p, 0o140644), "socket"),
    "sparse file": (lambda p, v: sparse(p), r"8,796\.1 GB of holes"),
}


@pytest.mark.parametrize("name", ["odd", "tensorboard/odd", "checkpoints/step-00000200/model/odd", "report"])
@pytest.mark.parametrize("kind", ODD)
def test_links_and_odd_files_are_left_out_and_told(
    kind: str, name: str, tmp_path: Path, run: Path, command: Any
) -> None:
    """One of them stopped the fetch, blocked it for ever, or had terabytes of nothing read and sent."""
    elsewhere = tmp_path / "elsewhere"
    noise(elsewhere / "secret", 10)
    ODD[kind][0](run / name, elsewhere)
    code, said, _ = command("--to", str(tmp_path / "here"))
    assert code == 0
    assert f"left out: '{name}' (" in said
    assert tree(tmp_path / "here").keys() == {
        *OF_THE_NEWEST,
        *("metrics.jsonl", "DONE", "tensorboard/events", ".fetched.json", "report/index.html"),
    }


@pytest.mark.parametrize("kind", ["link", "fifo", "gone"])
def test_what_is_swapped_after_the_listing_is_told_and_not_followed(kind: str, tmp_path: Path, run: Path) -> None:
    secret = noise(tmp_path / "secret", 10)
    (run / "DONE").unlink() if kind == "gone" else plant(run / "DONE", secret, kind)
    refused = told(lambda: get(Wire(tmp_path / "w").volume, str(run), {"DONE": 2}, tmp_path / "here", Seen()))
    assert "DONE" in refused
    assert "run the same command again" in refused
    assert "DONE" not in tree(tmp_path / "here")


HOSTILE = """
import json, os, sys
if sys.argv[1] == "list":
    print(json.dumps({"path": NAME, "size": 1, "allocated": 512}))
    print(json.dumps({"complete": True}))
else:
    os.chdir(sys.argv[2])
    names = sys.argv.index("rsync", 4)
    os.execvp("python3", ["python3", "-c", EVIL, *sys.argv[names:]])
"""


@pytest.mark.parametrize("name", ["/root/.bashrc", "../../escaped", "model/../../escaped", ".fetched.json", "a/.b", ""])
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Anybody who may change pods can answer in the program's place."""
    lie = tmp_path / "program.py"
    lie.write_text(HOSTILE.replace("NAME", repr(name)))
    with pytest.raises(TransferError, match="leads out of the folder"):
        Wire(tmp_path / "wire", program=lie).volume.find(RUN)
    lie.write_text(HOSTILE.replace("NAME", "'a..b/c'"))
    assert Wire(tmp_path / "wire", program=lie).volume.find(RUN).files == {"a..b/c": 1}


@pytest.mark.parametrize("options", ["-l", "-lD", "-rl", "-rlD --no-relative", "-L", "-K -l", "-H -l"])
def test_an_rsync_that_sends_other_things_than_were_asked_for_writes_nothing_else(
    options: str, tmp_path: Path, run: Path
) -> None:
    """The other end runs rsync with options of its own: it offers links, and files that nobody named."""
    (run / "model").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").mkdir()
    lie = tmp_path / "program.py"
    lie.write_text(
        "import os, sys\nos.chdir(sys.argv[2])\n"
        f"os.execvp('rsync', [*sys.argv[4:], *{options.split()!r}] if '-s' not in sys.argv[4:] else "
        f"[*sys.argv[4:6], *{options.split()!r}, *sys.argv[6:]])\n"
    )
    wanted = {"DONE": 2, "model/secret": 4}
    told(lambda: get(Wire(tmp_path / "wire", program=lie).volume, str(run), wanted, tmp_path / "here", Seen()))
    assert tree(tmp_path / "victim") == {}
    assert not any(path.is_symlink() for path in (tmp_path / "here").rglob("*"))
    assert {name for name in tree(tmp_path / "here") if not name.startswith(".")} <= {"DONE"}


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


@pytest.fixture
def command(
    tmp_path: Path, volume_folder: Path, run: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Any:
    """`trainyard fetch` with the volume here: its exit code, output and error."""

    @contextmanager
    def transfer(*_: Any) -> Iterator[Any]:
        yield wire.volume, None, Seen()

    def report(pod: Any, run: str) -> None:
        noise(tmp_path / "scratch" / "report" / "index.html", 10)

    def target_of(stack: str) -> Target:
        return Target(f"context-{stack}", "n", "train", None, {}, str(run))

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = __main__.main(["fetch", *arguments])
        return code, *capsys.readouterr()

    monkeypatch.setattr(fetch, "SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setattr(fetch, "run_folder", lambda name: str(volume_folder / "runs" / name))
    monkeypatch.setattr(fetch, "make_report", report)
    monkeypatch.setattr(fetch, "target_of", target_of)
    monkeypatch.setattr(fetch, "transfer", transfer)
    monkeypatch.chdir(tmp_path)
    return call


def test_a_folder_of_another_run_is_refused_before_anything_is_changed(
    tmp_path: Path, run: Path, command: Any, wire: Wire
) -> None:
    shutil.copytree(run, run.parent / "other")
    assert command()[0] == 0
    before, asked = tree(tmp_path / "runs" / "small"), wire.connections
    for arguments in (
        ("--run", "other", "--to", "runs/small"),
        ("other-stack", "--to", "runs/small"),
        ("other-stack",),
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
