"""What the benches of the trainer write."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import device, gpu, page
from bench.trainer import prepare, recipe, recipe_table, setup, speed, speed_table
from bench.verdicts import Verdicts
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


def figure(program: str, rate: float, preset: str = "small", **more: Any) -> dict[str, Any]:
    shown = {
        "program": program,
        "preset": preset,
        "tokens_per_second": rate,
        "seconds": 1.0,
        "cpu": 1.0,
        "steps": [1.0, 1.0],
    }
    shown |= {"precision": "bf16", "compiled": True, "micro_batch": 32, "machine": H200}
    return shown | more


H200 = "2026-11-22; AMD EPYC, 16 cores; torch 2.11.0; transformers 5.17.0; NVIDIA H200, CUDA 13.0"


def test_goals_are_judged_within_one_run_by_the_data_sheet() -> None:
    told = [figure("ours", 560_000), figure("loop", 520_000)]
    told += [figure("ours", 190_000, "medium"), figure("nanoGPT", 900_000) | {"machine": "another day"}]
    lines = speed_table.goals({str(number): each for number, each in enumerate(told)}, H200)
    assert "small: 560,000 tokens/s, MFU 0.484" in lines[0]
    assert lines[0].endswith("MFU 0.45 reached, 540,000 tokens/s reached")
    [between] = speed_table.goals({"0": figure("ours", 530_000)}, H200)
    assert between.endswith("MFU 0.45 reached, 540,000 tokens/s missed")
    assert "1.08 times the best peer (loop, 520,000); goal 1.1: missed" in lines[1]
    assert "medium: 190,000 tokens/s" in lines[2]
    assert lines[2].endswith("missed")
    assert "| 32 | ours | compiled | 560,000 | 1.000 | 2: 1.00 to 1.00 | 0.484 |" in "\n".join(
        speed_table.parts({"a": told[0]}, "", accelerator=True)[3]
    )


def test_a_step_is_compared_with_those_of_its_own_machine_and_day() -> None:
    figures = {name: figure(name, 100, steps=[1.0, 1.5]) for name in ("ours", "loop")}
    for each, seconds in (("ours", 2.0), ("loop", 3.0)):
        figures[f"{each} later"] = figures[each] | {"seconds": seconds, "machine": "2026-11-23; another"}
    *_, rows, verdicts = speed_table.parts(figures, "")
    assert rows[2].endswith("| 1.00 | 2: 1.00 to 1.50 | 1.00 |  | 2026-11-22 |")
    assert [line.split("|")[2].strip() for line in verdicts[2:]] == ["1.00", "1.50"]


def test_a_day_of_peers_alone_has_no_heading_of_its_own() -> None:
    told = {"ours": figure("ours", 560_000), "peer": figure("nanoGPT", 500_000, machine=H200.replace("-22", "-23"))}
    text = "\n".join(map(str, speed_table.parts(told, "", accelerator=True)))
    assert "NVIDIA H200, 2026-11-22:" in text
    assert "NVIDIA H200, 2026-11-23:" not in text


def test_a_mode_that_fails_fails_the_bench_keeps_its_old_figure_and_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        said = "step=1 loss=2\nTraceback (most recent call last):\ntorch.OutOfMemoryError: 2 GiB\nsome warning"
        raise subprocess.CalledProcessError(1, "ours", said, "")

    old = {"ours, bf16, compiled, 1x1024": figure("ours", 123_456, micro_batch=1)}
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(setup, "dataset", str)
    monkeypatch.setattr(speed, "measure", fail)
    (tmp_path / "speed_cpu.json").write_text(json.dumps(old))
    assert speed.main(["--only", "ours bf16 compiled 1x"]) == 1
    assert json.loads((tmp_path / "speed_cpu.json").read_text()) == old
    text, line = (tmp_path / "speed_cpu.md").read_text(), f"{next(iter(old))}: failed: torch.OutOfMemoryError: 2 GiB"
    assert "| 123,456 |" in text
    assert text.endswith(f"\n- {line}\n")
    assert capsys.readouterr().out == f"{line}\n"


def test_a_mode_without_time_is_on_the_page_and_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(setup, "dataset", lambda *_, **__: "")
    assert speed.main(["--tiny", "--only", "nanoGPT", "--minutes", "0.1"]) == 0
    assert "- nanoGPT, bf16, eager, 2x1024, tiny: no time left" in (tmp_path / "speed_cpu.md").read_text()


def test_a_mode_that_hangs_leaves_time_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(mode: speed.Mode, *others: Any) -> None:
        limits.append(others[-1] - time.monotonic())
        raise subprocess.TimeoutExpired(mode.name, 0)

    limits: list[float] = []
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(setup, "dataset", lambda *_, **__: "")
    monkeypatch.setattr(speed, "measure", hang)
    assert speed.main(["--tiny", "--minutes", "6"]) == 1
    assert max(limits) <= speed.MODE_SECONDS
    assert (tmp_path / "speed_cpu.md").read_text().count(": failed: not done after 120 s") == len(limits) == 6


def test_make_bench_runs_what_the_documentation_says() -> None:
    told = set(re.findall(r"^\| `python -m bench\.(\S+)`", (ROOT / "docs/performance.md").read_text(), re.MULTILINE))
    [run] = re.findall(r"for each in (.*); do", (ROOT / "Makefile").read_text())
    assert told <= set(run.split())


def stage_of_tests(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, **files: str) -> tuple[str, str]:
    """Run pytest as the stage tests does, over these files instead of its own: the page and the log."""
    for name, text in files.items():
        (folder / "tests/gpu" / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (folder / "tests/gpu" / f"{name}.py").write_text(text)
    monkeypatch.setattr(gpu, "ROOT", folder)
    tests = Verdicts(folder / "tests.md", "A machine.")
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-v", "-ra", "--tb=short", "-p", "no:cacheprovider"]
    stage = gpu.Stage("tests", command, tests.read)
    with (folder / "log").open("a") as log:
        gpu.run(stage, seconds, log)
    tests.end(stage.verdict)
    return (folder / "tests.md").read_text("utf-8"), (folder / "log").read_text("utf-8")


TESTS = """
import pytest
@pytest.mark.parametrize("name", ["a | b"])
def test_that(name): assert not name, "7 is too large"
def test_it(): pass
def test_no(): pytest.skip("needs two GPUs")
"""


def test_the_page_of_the_tests_says_what_failed_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, log = stage_of_tests(tmp_path, monkeypatch, 60, test_one=TESTS)
    assert "1 passed, 1 failed, 0 error, 1 skipped; 3 of 3 tests. The stage failed after" in text
    assert "| test_one.py: test_that[a \\| b] | failed: AssertionError: 7 is too large |" in text
    assert "| test_one.py: test_no | skipped (needs two GPUs) |" in text
    assert "E   AssertionError: 7 is too large" in log
    shown = capsys.readouterr().out
    assert (
        " F.s\n  FAILED tests/gpu/test_one.py::test_that[a | b] - AssertionError: 7 is too large\n  1 failed" in shown
    )
    assert "Traceback" not in shown


STOPPED = r"""
echo collected 2 items; echo 'tests/gpu/test_one.py::test_it PASSED [ 50%]'
printf 'tests/gpu/test_one.py::test_slow '; sleep 60 & wait
"""
"""What pytest prints, at once: it takes seconds to start."""


def test_a_file_of_tests_that_cannot_be_imported_is_an_error_of_the_page(tmp_path: Path) -> None:
    tests = Verdicts(tmp_path / "tests.md", "A machine.")
    said = [
        tests.read(line)
        for line in ("collected 3 items / 1 error", "ERROR tests/gpu/test_two.py", "== 1 error in 1s ==")
    ]
    assert said == ["", "ERROR tests/gpu/test_two.py", "1 error in 1s"]
    text = (tmp_path / "tests.md").read_text("utf-8")
    assert "0 passed, 0 failed, 1 error, 0 skipped; 1 of 3 tests." in text
    assert "| test_two.py | error: see the log |" in text


def test_a_stage_is_ended_at_its_limit_and_its_page_says_in_which_test(tmp_path: Path) -> None:
    tests = Verdicts(tmp_path / "tests.md", "A machine.")
    stage = gpu.Stage("tests", ["sh", "-c", STOPPED], tests.read)
    with (tmp_path / "log").open("a") as log:
        gpu.run(stage, 3.0, log)
    tests.end(stage.verdict)
    assert re.fullmatch(r"ended at its limit after \d s", stage.verdict)
    text = (tmp_path / "tests.md").read_text("utf-8")
    assert f"1 passed, 0 failed, 0 error, 0 skipped; 2 of 2 tests. The stage {stage.verdict}." in text
    assert "| test_one.py: test_slow | not done |" in text


def test_a_stage_that_does_not_start_says_why(tmp_path: Path) -> None:
    stage = gpu.Stage("speed", ["sh", "-c", "echo no such thing >&2; exit 1"])
    with (tmp_path / "log").open("a") as log:
        gpu.run(stage, 60, log)
    assert stage.verdict == "failed after 0 s: no such thing"


def test_without_a_device_that_works_nothing_else_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(gpu, "command", lambda *_: ["sh", "-c", "echo failed: no kernel image; exit 1"])
    assert gpu.main(["--device", "cpu", "--tiny"]) == 1
    *_, first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("device: failed after")
    assert [second, third] == [f"{name}: left out, because stage device failed" for name in ("tests", "speed")]


def test_all_stages_together_end_in_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[str, float] = {}

    def slow(stage: gpu.Stage, limit: float, _: object) -> None:
        limits[stage.name], stage.verdict = limit, "done"
        clock[0] += limit

    clock = [0.0]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(gpu, "run", slow)
    assert gpu.main(["--device", "cpu", "--tiny", "--minutes", str(gpu.MINUTES)]) == 0
    assert limits == {"device": 60, "tests": 420, "speed": 120}


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
        for program in ("loop", "nanoGPT", peers.BIASED, "Trainer"):
            peers.main([json.dumps(mode | {"program": program})])
    return [json.loads(line) for line in said.getvalue().splitlines() if line.startswith('{"seconds"')]


def test_the_stages_are_rehearsed_before_a_gpu_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stage device; stage speed with ours, as `make gpu` starts it; and its peers, in one process."""
    assert device.product("cpu").startswith("products in bf16 are right")
    options = argparse.Namespace(device="cpu", tiny=True)
    python, m, module, *arguments = gpu.command("speed", options, 600)
    assert [python, m, module] == [sys.executable, "-m", "bench.trainer.speed"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert speed.main([*arguments, "--only", "ours"]) == 0
    page_ = (tmp_path / "trainyard-rehearsal" / "speed_cpu.md").read_text("utf-8")
    assert "| tiny | 2 | ours | eager |" in page_
    assert "| modern-micro | 2 | ours | eager |" in page_
    assert "tiny: " in capsys.readouterr().out
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
    middle |= {"wall": 1.5, "cores": 1.9, "memory": 3e8, "large": 1e9}
    pairs = {
        f"{kind} {way}": took for kind in ("Qwen2", "SentencePiece") for way, took in (("ours", 2), ("tokenizers", 9))
    }
    prepare.write(middle | pairs, ["text"], None, [("encode", 0.5), ("all others", 1.0)])
    text = (tmp_path / "prepare.md").read_text("utf-8")
    rows = ("start left out as theirs is | 6.0x", "start to end, one core | 4.0x", "from CPU seconds | 1.90x")
    for row in (*rows, "- by the clock | 1.50x", "| encode | 0.50 |"):
        assert row in text


def test_the_page_of_recipes_reads_tokens_to_one_loss_off_the_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gpt2 ends at 2.0 and takes 100 s; modern ends at 2.1 with 0.4 of the tokens and at 1.9 with 0.6."""
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    runs = {}
    for size in ("3M", "30M"):
        trial = recipe.Trial(size, "8192", "gpt2", 1.0, 3e-3, 1337)
        runs[trial], runs[replace(trial, rate=6e-3)] = result(1.99, 100), result(2.5, 100)
        runs[replace(trial, seed=1338)] = result(2.01, 100)
        for part, bits in ((0.4, 2.1), (0.6, 1.9)):
            runs[replace(trial, recipe="modern", part=part)] = result(bits, 120 * part)
        runs[replace(trial, recipe="modern", part=0.4, otherwise="AdamW for all")] = result(2.3, 40)
    written = recipe_table.write(runs, "Written by a test", "cpu", False)
    part = math.sqrt(0.4 * 0.6)
    assert (
        f"| 3M | 8192 | 2.5 M | 2.000 | 0.4: 2.100, 0.6: 1.900 | {part:.2f}x | {1.2 * part:.2f}x | 1.20x |" in written
    )
    assert f"The line through 2 sizes predicts {part:.2f}x of the tokens at 124M." in written
    assert "| the recipe | 0.003 | 2.100 |\n" in written
    assert "| AdamW for all | 0.003 | 2.300 |\n" in written


def result(bits: float, seconds: float) -> recipe.Result:
    return recipe.Result(bits, seconds, tokens_per_second=1e4, mfu=None)
