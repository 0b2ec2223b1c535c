"""What the benches of the trainer write."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu, page
from bench.trainer import prepare, recipe, recipe_table, setup, speed
from tests.trainer import toy

ROOT = Path(__file__).parents[2]


def test_a_bench_replaces_its_own_part_of_a_page_only(tmp_path: Path) -> None:
    path = tmp_path / "results" / "a.md"
    page.write(path, "# First")
    assert path.read_text("utf-8") == "# First\n"
    path.write_text(f"# First\n\n{page.NOTES}\n\nThe machine was busy.\n", "utf-8")
    for _ in range(2):
        page.write(path, "# Second")
        assert path.read_text("utf-8") == f"# Second\n\n{page.NOTES}\n\nThe machine was busy.\n"


def figure(program: str, seconds: float, **more: Any) -> dict[str, Any]:
    shown = {"program": program, "tokens_per_second": 2**19 / seconds, "seconds": seconds, "cpu": 1.0}
    shown |= {"preset": "small", "precision": "bf16", "compiled": True, "micro_batch": 32}
    return shown | {"steps": [1.0, 1.5], "first_step": 9.0, "machine": H200} | more


H200 = "2026-11-22; AMD EPYC, 16 cores; torch 2.11.0; transformers 5.17.0; NVIDIA H200, CUDA 13.0"


def test_a_mode_that_fails_fails_the_bench_and_keeps_its_old_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        said = "step=1 loss=2\nTraceback (most recent call last):\ntorch.OutOfMemoryError: 2 GiB\nsome warning"
        raise subprocess.CalledProcessError(1, "ours", said, "")

    old = {"ours, bf16, compiled, 1x1024": figure("ours", 2.0, micro_batch=1)}
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(setup, "dataset", str)
    monkeypatch.setattr(speed, "measure", fail)
    (tmp_path / "speed_cpu.json").write_text(json.dumps(old))
    assert speed.main(["--only", "ours bf16 compiled 1x"]) == 1
    assert json.loads((tmp_path / "speed_cpu.json").read_text()) == old
    said = capsys.readouterr().out
    assert "torch.OutOfMemoryError: 2 GiB" in said
    assert said.endswith(f"{next(iter(old))}: failed\n")


def test_ours_is_compared_with_the_best_peer_of_the_same_machine_and_day() -> None:
    told = [figure("ours", 2.0), figure("ours", 2.5, compiled=False), figure("loop", 2.4), figure("nanoGPT", 1.0)]
    told[3]["machine"] = "another day"
    *_, rows, ratios = speed.parts({str(number): each for number, each in enumerate(told)}, "")
    assert "| small | bf16 | 32 | ours | compiled | 262,144 | 2.00 | 2: 1.00 to 1.50 | 1.00 | 0.226 |" in rows[3]
    assert ratios[2:] == ["| small, bf16: loop compiled | 1.20 | 1.00 |"]


def test_make_bench_runs_what_the_documentation_says() -> None:
    told = set(re.findall(r"^\| `python -m bench\.(\S+)`", (ROOT / "docs/performance.md").read_text(), re.MULTILINE))
    [run] = re.findall(r"for each in (.*); do", (ROOT / "Makefile").read_text())
    assert told <= set(run.split())


def test_a_stage_is_ended_at_its_limit_with_all_its_processes(tmp_path: Path) -> None:
    assert gpu.run([sys.executable, "-c", "raise SystemExit(3)"], 60).startswith("failed after")
    locked = f"exec 9> {tmp_path}/lock; flock 9; sleep 600 & wait"
    assert gpu.run(["sh", "-c", locked], 1.0).startswith("ended at its limit")
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for whoever has it


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU runs it")
def test_without_a_gpu_make_gpu_says_what_to_do_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--stage", "speed"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "finds no CUDA device" in line
    assert "ARGS='--device cpu --tiny'" in line


def test_make_gpu_takes_the_python_that_it_is_given() -> None:
    """A machine with a GPU may have no network for .venv."""
    command = ["make", "--no-print-directory", "-n", "gpu", "PY=python9", "STAGE=speed"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.startswith('python9 -m bench.gpu --stage "speed"')


def test_what_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name in ("yaml", "tokenizers") else True)
    assert "has no PyYAML, tokenizers; choose another Python" in gpu.lacking("cuda", tiny=False)


def rehearse_peers(mode: dict[str, Any]) -> list[dict[str, Any]]:
    """What each peer prints of its steps."""
    from bench.trainer import peers

    with contextlib.redirect_stdout(io.StringIO()) as said:
        for program in speed.PEERS:
            peers.main([json.dumps(mode | {"program": program})])
    return [json.loads(line) for line in said.getvalue().splitlines() if line.startswith('{"seconds"')]


def test_speed_is_rehearsed_before_a_gpu_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, as `make gpu` starts it, and its peers, in one process."""
    options = argparse.Namespace(device="cpu", tiny=True)
    python, m, module, *arguments = gpu.command("speed", options)
    assert [python, m, module] == [sys.executable, "-m", "bench.trainer.speed"]
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    assert speed.main([*arguments, "--only", "ours modern"]) == 0
    assert "| modern-micro | bf16 | 2 | ours | eager |" in (tmp_path / "speed_cpu.md").read_text("utf-8")
    mode = {"device": "cpu", "preset": "tiny", "precision": "bf16", "compiled": False, "scratch": str(tmp_path / "run")}
    mode |= {"length": 16, "micro_batch": 2, "tokens_per_step": 64, "steps": 2}
    mode["data"] = setup.dataset(tmp_path / "data", characters=60_000)
    figures = toy.apart(rehearse_peers, mode)
    assert [len(each["seconds"]) for each in figures] == [2, 2, 2, 2]
    guess = math.log(50_257)  # an untrained model's
    fewer = guess * 15 / 16  # the Trainer leaves one of 16 tokens out of the sum, not of the mean
    assert [each["losses"][0] for each in figures] == pytest.approx([guess, guess, guess, fewer], abs=0.2)


def test_pages_of_a_read_only_checkout_go_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page.results() == ROOT / "bench" / "results"
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert page.results() == tmp_path / "trainyard-results"


def test_prepares_page_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "results", lambda: tmp_path)
    monkeypatch.setattr(page, "describe", lambda *_: "a machine")
    middle = {"tokens": 1e6, "ours": 3.0, "start": 1.0, "map": 8.0, "copy": 4.0, "tiktoken": 5.0}
    middle |= {"wall": 1.5, "cores": 1.9, "memory": 3e8, "large": 1e9, "apart": 1.7}
    pairs = {
        f"{kind} {way}": took for kind in ("Qwen2", "SentencePiece") for way, took in (("ours", 2), ("tokenizers", 9))
    }
    prepare.write(middle | pairs, ["text"])
    text = (tmp_path / "prepare.md").read_text("utf-8")
    rows = ("start left out as theirs is | 6.0x", "start to end, one core | 4.0x", "from CPU seconds | 1.90x")
    for row in (*rows, "- by the clock | 1.50x", "share nothing but the machine | 1.70x"):
        assert row in text


def test_a_run_of_a_recipe_is_made_once_however_often_the_bench_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [recipe.Trial("3M", "8192", "gpt2", 1.0, rate, 1337) for rate in (3e-3, 6e-3)]
    made: list[recipe.Trial] = []
    monkeypatch.setattr(recipe, "train", lambda trial, folder: made.append(trial) or result(trial.rate, 100))
    file = tmp_path / "recipe.json"
    for wanted in (trials[:1], trials):
        recipe.run(wanted, recipe.made(file), tmp_path, file, math.inf)
    assert sorted(made) == trials
    assert recipe.made(file) == {trial: result(trial.rate, 100) for trial in trials}


def test_each_rehearsal_of_the_recipes_makes_both_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(recipe, "train", lambda trial, folder: made.append(trial.recipe) or result(2.0, 100))
    monkeypatch.setattr(recipe, "prepare", lambda folder, vocabulary: None)
    monkeypatch.setattr(setup, "dataset", lambda folder, characters: None)
    for _ in range(2):
        assert recipe.main([str(tmp_path), "--tiny"]) == 0
    assert made == ["gpt2", "modern"] * 2


def test_the_page_of_recipes_reads_tokens_to_one_loss_off_the_ends(tmp_path: Path) -> None:
    """gpt2 ends at 2.0 and takes 100 s; modern ends at 2.1 with 0.4 of the tokens and at 1.9 with 0.6."""
    runs = {}
    for size in ("3M", "30M"):
        trial = recipe.Trial(size, "8192", "gpt2", 1.0, 3e-3, 1337)
        runs[trial], runs[replace(trial, rate=6e-3)] = result(1.99, 100), result(2.5, 100)
        runs[replace(trial, seed=1338)] = result(2.01, 100)
        for part, bits in ((0.4, 2.1), (0.6, 1.9)):
            runs[replace(trial, recipe="modern", part=part)] = result(bits, 120 * part)
        runs[replace(trial, recipe="modern", part=0.4, otherwise="AdamW for all")] = result(2.3, 40)
    written = recipe_table.write(runs, tmp_path / "recipe.md", "Written by a test")
    part = math.sqrt(0.4 * 0.6)
    assert (
        f"| 3M | 8192 | 2.5 M | 2.000 | 0.4: 2.100, 0.6: 1.900 | {part:.2f}x | {1.2 * part:.2f}x | 1.20x |" in written
    )
    assert f"The line through 2 sizes predicts {part:.2f}x of the tokens at 124M." in written
    assert "| the recipe | 0.003 | 2.100 |\n" in written
    assert "| AdamW for all | 0.003 | 2.300 |\n" in written


def result(bits: float, seconds: float) -> recipe.Result:
    return recipe.Result(bits, seconds, tokens_per_second=1e4, mfu=None, machine=H200)
