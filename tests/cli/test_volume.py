"""`trainyard runs`, `ls`, `du` and `rm`: the pod's program on a folder, and what a person sees of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import runs, volume
from cli.target import Target
from infra.stackfiles import ROOT
from tests.cli.volume import Wire, a_job, noise, tree
from tests.unprivileged import UNPRIVILEGED
from trainer import volume as survey

CONFIG = "model: {preset: small, name: ''}\noptimizer: {learning_rate: 0.0006}\n"


def a_run(root: Path, name: str, age: float = 0.0, **status: Any) -> Path:
    """A run with a checkpoint, whose status was written `age` seconds ago."""
    folder = root / "runs" / name
    checkpoint = folder / "checkpoints" / "step-00000100"
    noise(checkpoint / "model" / "model.safetensors", 400_000)
    (checkpoint / "config.yaml").write_text(CONFIG)
    (checkpoint / "manifest.json").write_text(json.dumps({"step": 100, "sha256": {"model/tokenizer.json": "t"}}))
    told = {"state": "training", "step": 120, "steps": 500, "loss": 3.25, "validation_loss": 3.5}
    (folder / "status.json").write_text(json.dumps({**told, "updated": time.time() - age, **status}))
    return folder


def test_all_runs_are_listed_with_the_newest_first(call: Any, volume_folder: Path, jobs: list[Any]) -> None:
    a_run(volume_folder, "trains")
    a_run(volume_folder, "interrupted", age=7200)
    a_run(volume_folder, "waits", age=3600)
    a_run(volume_folder, "failed", age=200, state="failed")
    done = a_run(volume_folder, "done", age=90000, state="done", step=500)
    (done / "DONE").write_text(json.dumps({"step": 500, "validation_loss": 2.75, "sample": "text"}))
    (volume_folder / "runs" / "begun").mkdir()
    (volume_folder / "runs" / ".removed-x").mkdir()
    (volume_folder / "runs" / "link").symlink_to(done)
    jobs.append(a_job(f"run.directory={volume_folder}/runs/waits"))
    code, said, _ = call("runs")
    rows = [line.split() for line in said.splitlines()]
    assert code == 0
    assert [row[0] for row in rows] == ["run", "trains", "failed", "waits", "interrupted", "done", "begun"]
    assert rows[1][:8] == ["trains", "small", "training", "120", "3.250", "3.500", "413.7", "kB"]
    assert rows[1][9:] == ["s"]
    assert [row[2] for row in rows[1:6]] == ["training", "failed", "waiting", "interrupted", "done"]
    assert rows[5][3:6] == ["500", "3.250", "2.750"]
    assert rows[5][-2:] == ["1", "d"]


def test_runs_as_json_have_their_settings(call: Any, volume_folder: Path) -> None:
    a_run(volume_folder, "one")
    code, said, _ = call("runs", "--json")
    (found,) = json.loads(said)
    assert code == 0
    assert (found["run"], found["state"], found["step"], found["checkpoint"]) == ("one", "training", 120, 100)
    assert found["settings"]["optimizer.learning_rate"] == 0.0006
    assert found["updated"].endswith("+00:00")


def test_without_a_run_it_says_so(call: Any) -> None:
    assert call("runs")[1].startswith("no run yet; ")
    assert call("runs", "--json")[1] == "[]\n"


def test_a_folder_is_listed_and_the_largest_is_first_in_du(call: Any, volume_folder: Path) -> None:
    noise(volume_folder / "b" / "deep" / "text", 3_000_000)
    noise(volume_folder / "a\x1b[2J.txt", 1000)
    noise(volume_folder / ".incomplete-1" / "part", 5_000_000)
    listed = call("ls")[1].splitlines()[1:]
    assert [line.split()[-1] for line in listed] == [r"a\033[2J.txt", "b/"]
    *rows, left = call("du")[1].splitlines()
    assert [row.split()[-1].removeprefix(str(volume_folder)) for row in rows] == ["", "/.incomplete-1", "/b", "/a.txt"]
    assert rows[2].split()[:2] == ["3.0", "MB"]
    assert " of the volume's " in left
    assert call("ls", f"{volume_folder}/b/deep/text")[1].split()[-1] == f"{volume_folder}/b/deep/text"
    for command in ("ls", "du", "rm --yes"):
        code, _, said = call(*command.split(), "nothing")
        assert (code, said.count("\n")) == (1, 1)
        assert f"{volume_folder}/nothing" in said
        assert "No such file or directory" in said


@pytest.mark.parametrize(
    ("command", "path", "said"),
    [
        ("ls", "runs/../..", "runs/../..: leads out of "),
        ("du", "/datas", "/datas: leads out of "),
        ("rm", "/etc", "/etc: leads out of "),
        *(("rm", path, "holds everybody's files; name what is to go, as in runs/NAME") for path in ("", "D", "runs/")),
    ],
)
def test_a_path_that_may_not_be_meant_is_refused_before_a_pod_is_made(
    command: str, path: str, said: str, call: Any, volume_folder: Path, wire: Wire
) -> None:
    code, _, error = call(command, path.replace("D", str(volume_folder)))
    assert (code, wire.connections) == (2, 0)
    assert said in error


def test_what_is_removed_is_gone_and_nothing_else(call: Any, volume_folder: Path) -> None:
    a_run(volume_folder, "old", age=1000)
    a_run(volume_folder, "kept", age=1000)
    noise(volume_folder / "texts" / "a", 10)
    noise(volume_folder / "--ask", 10)
    kept = tree(volume_folder / "runs" / "kept")
    code, said, _ = call("rm", "--yes", "--", "runs/old", f"{volume_folder}/texts/", "texts/a", "--ask")
    assert code == 0
    assert said.endswith(
        f"removed {volume_folder}/runs/old, {volume_folder}/texts, {volume_folder}/texts/a, {volume_folder}/--ask\n"
    )
    assert {name.split("/")[1] for name in tree(volume_folder)} == {"kept"}
    assert tree(volume_folder / "runs" / "kept") == kept
    assert list((volume_folder / "runs").iterdir()) == [volume_folder / "runs" / "kept"]


def test_it_asks_and_where_nobody_can_be_asked_nothing_goes(
    call: Any, volume_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(volume_folder, "old", age=1000)
    before = tree(volume_folder)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    code, said, error = call("rm", "runs/old")
    assert code == 2
    assert re.fullmatch(rf" *4\d\d\.\d kB  \S+ \S+  {volume_folder}/runs/old\n", said), said
    assert error.endswith("There is no terminal to ask; nothing was removed. To do it: --yes\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(volume.typer, "confirm", lambda question: False)
    assert call("rm", "runs/old")[2] == "error: nothing was removed\n"
    assert tree(volume_folder) == before
    monkeypatch.setattr(volume.typer, "confirm", lambda question: True)
    assert call("rm", "runs/old")[0] == 0


@pytest.mark.parametrize(
    ("path", "state", "age"), [("runs/new", "training", 5), ("runs/new/checkpoints", "compiling", 500)]
)
def test_a_run_that_trains_is_never_removed(path: str, state: str, age: int, call: Any, volume_folder: Path) -> None:
    """Also by a training of another namespace, of which this stack knows no Job."""
    a_run(volume_folder, "new", age=age, state=state)
    a_run(volume_folder, "old", age=1000)
    before = tree(volume_folder)
    code, _, said = call("rm", "runs/old", path, "--yes")
    assert code == 1
    assert f"{path}: a training writes to this run, or did so minutes ago" in said
    assert tree(volume_folder) == before, "not even the other one went"
    a_run_that_ended = volume_folder / "runs" / "new" / "DONE"
    a_run_that_ended.write_text('{"step": 500}')
    assert call("rm", path, "--yes")[0] == 0


PREPARES = ("--input", "D/texts", "--output", "D/datasets/d")


@pytest.mark.parametrize(
    ("job", "path", "used"),
    [
        (a_job("run.directory=D/runs/r", stopped="2026"), "runs/r/checkpoints", "Job trainer, stopped, uses "),
        (a_job("run.directory=D/runs/r-2"), "runs/r", ""),
        (a_job("model.name=D/mine/base"), "mine", "Job trainer uses "),
        (a_job(text="data:\n  directory: 'D/datasets/d'\n  seed: 1\n"), "datasets/d", "Job trainer uses "),
        (a_job(text="x: [1]\nfiles:\n- D/mine/ü\n"), "mine/ü", "Job trainer uses "),
        (a_job(text="run:\n  directory: D/runs/r\n", kind="Complete"), "runs/r", ""),
        (a_job(*PREPARES, component="dataset"), "texts", "Job dataset"),
        (a_job(*PREPARES, component="dataset", kind="Complete"), "datasets/d", "Job dataset"),
        (a_job(*PREPARES, component="dataset", kind="Complete"), "texts", ""),
    ],
)
def test_what_a_job_still_needs_is_never_removed(
    job: dict[str, Any], path: str, used: str, call: Any, volume_folder: Path, jobs: list[Any], wire: Wire
) -> None:
    jobs.append(json.loads(json.dumps(job).replace("D/", f"{volume_folder}/")))
    noise(volume_folder / path / "file", 10)
    before = tree(volume_folder)
    code, _, said = call("rm", path, "--yes")
    if used:
        assert (code, tree(volume_folder), wire.connections) == (1, before, 0)
        assert f"error: {path}: {used}" in said
        assert "nothing was removed" in said
    else:
        assert (code, tree(volume_folder)) == (0, {})


def test_what_an_interrupted_removal_leaves_does_not_look_like_a_run(volume_folder: Path) -> None:
    a_run(volume_folder, "old", age=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey.shutil, "rmtree", lambda _: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            survey.remove(str(volume_folder), "runs/old")
    assert [path.name for path in (volume_folder / "runs").iterdir()] == [".removed-old"]
    assert list(survey.runs(str(volume_folder))) == []
    a_run(volume_folder, "old", age=1000)
    survey.remove(str(volume_folder), "runs/old")
    assert list((volume_folder / "runs").iterdir()) == [], "nor what was left before"


def test_a_run_that_may_not_be_listed_hides_no_other_and_is_not_removed(volume_folder: Path) -> None:
    """Such as a run that another user copied there; lost+found, which a volume with ext4 has."""
    a_run(volume_folder, "good", age=1000)
    for name in ("runs/closed", "runs/partly/checkpoints", "lost+found"):
        noise(volume_folder / name / "file", 10)
        (volume_folder / name).chmod(0)

    def survey(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*UNPRIVILEGED, *words], capture_output=True, text=True, cwd=ROOT)

    try:
        told = json.loads(survey(sys.executable, "-m", "trainer.volume", "runs", str(volume_folder)).stdout)
        states = {run.name: run.state for run in (runs.run_of(each, {}) for each in told)}
        assert states == {"closed": "unreadable", "good": "interrupted", "partly": "unreadable"}
        pod: Any = SimpleNamespace(
            run=lambda *words, **_: ((done := survey(*words)).returncode, done.stdout + done.stderr)
        )
        assert len(volume._sizes(pod, str(volume_folder), depth=1)) == 3
        refused = survey(sys.executable, "-m", "trainer.volume", "remove", str(volume_folder), "runs/closed")
        assert refused.stderr.endswith(
            f"/runs/closed/status.json: user {os.getuid()} may not read or write it; change its owner or its mode\n"
        )
    finally:
        for path in volume_folder.glob("runs/*/checkpoints"):
            path.chmod(0o755)


def test_an_adapters_base_counts_as_weights(volume_folder: Path) -> None:
    folder = a_run(volume_folder, "tuned")
    model = folder / "checkpoints" / "step-00000100" / "model"
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    noise(volume_folder / "models" / "org" / "base" / "model.safetensors", 50_000)
    (found,) = survey.runs(str(volume_folder), "tuned")
    assert found["weights"] == (model / "model.safetensors").stat().st_size + 50_000


@pytest.mark.parametrize(
    ("path", "warned"),
    [("runs/b-1", True), ("runs/b-1/checkpoints", True), ("runs/b-10", False)],
)
def test_the_run_of_a_living_stack_is_removed_with_a_warning(
    path: str, warned: bool, call: Any, volume_folder: Path, targets: list[Target]
) -> None:
    for name in ("runs/b-1/checkpoints", "runs/b-10", "texts"):
        (volume_folder / name).mkdir(parents=True, exist_ok=True)
    targets[:] = [Target("c", "n", "t", None, {}, f"{volume_folder}/runs/{name}-1", training=name) for name in "ab"]
    code, said, _ = call("rm", path, "--stack", "sweep", "--yes")
    assert code == 0
    told = (
        f"{volume_folder}/runs/b-1 is the run of training b of stack sweep: `compare`, `fetch` and `sample` will miss"
    )
    assert said.startswith(told) == warned
    assert ("is the run" in said) == warned


class Clock:
    """The time of a pod, and what begins and ends in it: second -> (processes, number of the last one begun)."""

    def __init__(self, proc: Path, happens: dict[int, tuple[set[str], int]]) -> None:
        self.seconds, self.proc, self.happens = 0.0, proc, happens

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        begun = self.seconds
        self.seconds += seconds
        for when, (there, newest) in self.happens.items():
            if begun < when <= self.seconds:
                self.become(there, newest)

    def become(self, there: set[str], newest: int) -> None:
        for each in self.proc.glob("*/comm"):
            each.unlink()
        for name in there | {"1", str(os.getpid()), "self"}:
            (self.proc / name).mkdir(exist_ok=True)
            (self.proc / name / "comm").touch()
        (self.proc / "loadavg").write_text(f"0.00 0.01 0.05 1/80 {newest}\n")


@pytest.mark.parametrize(
    ("at_first", "happens", "ends"),
    [
        ((set(), 7), {}, 300),
        (({"9"}, 9), {1002: (set(), 9)}, 1300),  # a command that came while this program still started
        ((set(), 7), {201: ({"12"}, 12), 902: (set(), 12)}, 1200),
        ((set(), 7), {201: (set(), 12), 402: (set(), 15)}, 705),  # commands that no look has seen
    ],
)
def test_the_pod_stays_while_a_command_runs_and_for_a_while_after_the_last_one(
    at_first: tuple[set[str], int],
    happens: dict[int, tuple[set[str], int]],
    ends: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(tmp_path, happens)
    clock.become(*at_first)
    monkeypatch.setattr(survey, "PROC", str(tmp_path))
    monkeypatch.setattr(survey, "time", clock)
    monkeypatch.setattr(survey.signal, "signal", lambda *_: None)
    assert survey.wait(300) == []
    assert clock.seconds == ends
