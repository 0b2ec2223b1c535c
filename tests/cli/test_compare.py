"""`trainyard compare` and `fetch --best`: which run is first, and in what they differ."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cli import compare, runs
from cli.target import Target
from tests.cli.volume import a_job


def a_run(
    root: Path, name: str, loss: float | None, tokenizer: str = "t", state: str = "done", **settings: Any
) -> None:
    folder = root / "runs" / name
    checkpoint = folder / "checkpoints" / "step-00000100"
    checkpoint.mkdir(parents=True)
    told = {"step": 100, "steps": 100, "state": state, "updated": time.time() - settings.get("age", 0)}
    told |= {} if loss is None else {"validation_loss": loss, "bits_per_byte": loss / (2 if tokenizer == "t" else 8)}
    (folder / "status.json").write_text(json.dumps(told))
    if state == "done":
        (folder / "DONE").write_text(json.dumps(told))
    rate, seed = settings.get("rate", 0.001), settings.get("seed", 1)
    text = f"optimizer: {{learning_rate: {rate}}}\nrun: {{directory: /data/runs/{name}, seed: {seed}}}\n"
    (checkpoint / "config.yaml").write_text(f"{text}data: {{directory: {settings.get('data', '/data/d')}}}\n")
    (checkpoint / "manifest.json").write_text(json.dumps({"step": 100, "sha256": {"model/tokenizer.json": tokenizer}}))


@pytest.fixture
def targets(volume_folder: Path) -> list[Target]:
    return [
        Target("c", "n", f"train-{name}", None, {}, f"{volume_folder}/runs/{name}-1a", training=name)
        for name in ("first", "second", "third")
    ]


@pytest.fixture
def jobs(volume_folder: Path) -> list[Any]:
    return [a_job(f"run.directory={volume_folder}/runs/third-1a", stopped="2026")]


@pytest.fixture
def call(call: Any) -> Any:
    """A command: its exit code, the lines of its output, and error."""

    def call_(*arguments: str) -> tuple[int, list[str], str]:
        code, said, error = call(*arguments)
        return code, said.splitlines(), error

    return call_


def test_the_trainings_are_ranked_by_validation_loss_with_what_differs(call: Any, volume_folder: Path) -> None:
    a_run(volume_folder, "first-1a", 3.5, rate=0.0003)
    a_run(volume_folder, "second-1a", 3.25, rate=0.001, state="training")
    a_run(volume_folder, "third-1a", None, rate=0.003, state="terminated", age=1000)
    a_run(volume_folder, "older", 1.0)
    code, said, _ = call("compare")
    assert code == 0
    assert [line.split() for line in said[1:4]] == [
        ["1", "second", "3.2500", "100", "training", "learning_rate", "0.001"],
        ["2", "first", "3.5000", "100", "done", "learning_rate", "0.0003"],
        ["third", "100", "stopped", "learning_rate", "0.003"],
    ]
    assert said[4:] == []
    assert [line.split()[1] for line in call("compare", "--all")[1][1:4]] == ["older", "second", "first"]
    assert [line.split()[1] for line in call("compare", "--run", "older", "--run", "first-1a")[1][1:3]] == [
        "older",
        "first",
    ]
    assert (
        call("compare", "--run", "older", "--all")[2]
        == "error: --run and --all name different runs; give one of them\n"
    )
    assert call("compare", "--run", "gone")[2] == "error: --run gone: no such run; `trainyard runs` lists them all\n"


def test_runs_of_different_tokenizers_are_ranked_by_bits_per_byte(call: Any, volume_folder: Path) -> None:
    a_run(volume_folder, "first-1a", 2.0, data="/data/datasets/small")
    a_run(volume_folder, "second-1a", 4.0, tokenizer="large", data="/data/datasets/large")
    _, said, _ = call("compare")
    assert [line.split()[1:3] for line in said[1:3]] == [["second", "0.5000"], ["first", "1.0000"]]
    assert said[3:] == [
        "By bits per byte: their tokenizers differ, so their losses do not compare.",
        "Their data sets differ, and with them the text that they are validated on.",
        "Left out: third: third-1a is not on the volume (it has not begun).",
    ]


def test_two_keys_of_one_last_word_are_told_whole() -> None:
    one, other = (runs.Run(name, "done", {}, 0, None, settings=s) for name, s in (("a", {}), ("b", {})))
    one.settings.update({"evaluation.every": 1, "metrics.every": 1, "run.seed": 1, "run.directory": "/a"})
    other.settings.update({"evaluation.every": 2, "metrics.every": 2, "run.seed": 2, "run.directory": "/b"})
    shown = list(compare._table(compare.rank([one, other]), {}).columns[-1].cells)
    assert str(shown[0]) == "evaluation.every 1, metrics.every 1, seed 1"


def test_json_and_a_page_with_the_curves(call: Any, volume_folder: Path, tmp_path: Path) -> None:
    a_run(volume_folder, "first-1a", 3.5)
    a_run(volume_folder, "second-1a", 3.25, seed=2)
    code, said, _ = call("compare", "--json", "--html", "page")
    found = json.loads("\n".join(said))
    assert code == 0
    assert [(each["rank"], each["training"], each["run"]) for each in found] == [
        (1, "second", "second-1a"),
        (2, "first", "first-1a"),
    ]
    assert found[0]["settings"]["run.seed"] == 2
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"first-1a", "second-1a"}
    assert call("compare", "--html", "page")[1][-1] == "curves: page/index.html"


def test_the_winner_is_fetched(call: Any, volume_folder: Path, tmp_path: Path) -> None:
    a_run(volume_folder, "first-1a", 3.5)
    assert call("fetch", "--best", "--run", "first-1a")[0] == 2
    a_run(volume_folder, "second-1a", 3.25, state="training")
    a_run(volume_folder, "older", 1.0)
    code, said, problem = call("fetch", "--best")
    assert code == 0, problem
    assert said[0] == "--best: Left out: third: third-1a is not on the volume (removed, or its training never began)."
    assert " is in runs/second-1a (" in said[1]
    assert (tmp_path / "runs" / "second-1a" / "status.json").exists()


def test_without_a_validated_training_there_is_no_winner(call: Any, volume_folder: Path) -> None:
    assert "no run has begun yet" in call("compare")[2]
    assert "no run has begun yet" in call("fetch", "--best")[2]
    a_run(volume_folder, "first-1a", None, state="training")
    assert "--best: no training has a validation loss yet" in call("fetch", "--best")[2]
    assert "One run compares with nothing; --all takes every run on the volume." in call("compare")[1]


def test_runs_without_a_checkpoint_differ_in_all_that_they_differ_in(call: Any, volume_folder: Path) -> None:
    for name, every in (("first-1a", 5), ("second-1a", 6), ("third-1a", None)):
        folder = volume_folder / "runs" / name
        folder.mkdir(parents=True)
        (folder / "status.json").write_text(json.dumps({"state": "starting", "step": 0, "updated": time.time()}))
        if every:
            (folder / "config.yaml").write_text(f"steps: 100\nevaluation: {{every: {every}}}\nrun: {{seed: {every}}}\n")
    said = call("compare")[1]
    assert [line.split("starting")[-1].strip() for line in said[1:4]] == ["every 5, seed 5", "every 6, seed 6", ""]
    assert "Settings not known yet: third-1a." in said


@pytest.mark.parametrize(
    ("steps", "ranked", "told"),
    [
        ({"first": 100, "second": 100, "third": 100}, ["1 second", "2 third", "3 first"], None),
        ({"first": 100, "second": 50, "third": 100}, ["1 third", "2 first", "second"], "second-1a (step 50)"),
        (
            {"first": 20, "second": 50, "third": 1000},
            ["1 third", "second", "first"],
            "second-1a (step 50), first-1a (step 20)",
        ),
    ],
)
def test_only_losses_of_one_step_are_ranked(
    call: Any, volume_folder: Path, steps: dict[str, int], ranked: list[str], told: str | None
) -> None:
    for (name, step), loss in zip(steps.items(), (3.5, 3.0, 3.25), strict=True):
        a_run(volume_folder, f"{name}-1a", loss, state="training")
        status = volume_folder / "runs" / f"{name}-1a" / "status.json"
        status.write_text(json.dumps(json.loads(status.read_text()) | {"step": step + 7, "validation_step": step}))
    said = call("compare")[1]
    assert [line.partition(" 3.")[0].split() for line in said[1:4]] == [each.split() for each in ranked]
    marks = [line for line in said if line.startswith("Ranked at step")]
    latest = f"{max(steps.values()):,}"
    assert marks == ([f"Ranked at step {latest}; not ranked, with a loss of another step: {told}."] if told else [])
    assert [each["rank"] for each in json.loads("\n".join(call("compare", "--json")[1]))] == [
        int(each[0]) if each[0].isdigit() else None for each in ranked
    ]
