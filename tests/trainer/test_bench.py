"""What the benches of the trainer write."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import gpu, page
from bench.trainer import prepare, scaling, setup, speed, speed_table

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
    shown |= {"precision": "bf16", "compiled": True, "micro_batch": 32, "allocator": "kept", "machine": H200}
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


def test_a_mode_that_fails_fails_the_bench_and_keeps_its_old_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise subprocess.CalledProcessError(1, "ours", "", "")

    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    monkeypatch.setattr(setup, "dataset", str)
    monkeypatch.setattr(speed, "measure", fail)
    (tmp_path / "speed_cpu.json").write_text("{}")
    assert speed.main(["--only", "ours bf16 compiled 1x kept"]) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["speed_cpu.json"]


def test_make_bench_runs_what_the_documentation_says() -> None:
    told = set(re.findall(r"^\| `python -m bench\.(\S+)`", (ROOT / "docs/performance.md").read_text(), re.MULTILINE))
    [run] = re.findall(r"for each in (.*); do", (ROOT / "Makefile").read_text())
    assert told <= set(run.split())


def test_flops_are_counted_as_the_trainer_counts_them() -> None:
    from trainer.models import networks

    net = networks.build("micro", 50257, 50256, seed=1)
    assert speed_table.flops_per_token("micro", length=64) == networks.flops_per_token(net, 64)


def test_a_stage_is_ended_at_its_limit_and_keeps_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 0)
    stage = gpu.Stage("slow", ["sh", "-c", "echo == half of it; sleep 60 & wait"])  # sh: it starts within the limit
    gpu.run(stage, 3.0, None)
    assert (stage.verdict, stage.lines) == ("ended at its limit", ["half of it"])
    assert stage.seconds < 30


def test_the_page_of_the_tests_has_what_was_said_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "results", lambda tiny: tmp_path)
    watch = gpu.tests_page(argparse.Namespace(device="cpu", tiny=True))
    watch("collected 3 items\n")
    watch("tests/gpu/test_model.py::test_it[bf16] PASSED                  [ 33%]\n")
    watch("tests/gpu/test_steps.py::test_that SKIPPED (needs a GPU)        [ 66%]\n")
    text = (tmp_path / "tests_cpu.md").read_text("utf-8")
    assert "1 passed, 0 failed, 2 in all" in text
    assert "| test_steps.py: test_that | skipped (needs a GPU) |" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU runs it")
def test_without_a_gpu_make_gpu_says_what_to_do_in_one_line() -> None:
    found = subprocess.run(["make", "gpu", "STAGE=speed"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode != 0
    told = [line for line in found.stderr.splitlines() if not line.startswith("make")]
    assert len(told) == 1
    assert "finds no CUDA device" in told[0]
    assert "ARGS='--device cpu --tiny'" in told[0]


def test_make_gpu_takes_the_python_that_it_is_given() -> None:
    """A machine with a GPU may have no network for .venv."""
    command = ["make", "--no-print-directory", "-n", "gpu", "PY=python9", "STAGE=speed"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.startswith('python9 -m bench.gpu --stage "speed"')


def test_what_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name in ("yaml", "tokenizers") else True)
    assert "has no PyYAML, tokenizers; choose another Python" in gpu.lacking("cuda", tiny=False)


def test_a_stage_runs_to_its_end_as_a_rehearsal(tmp_path: Path) -> None:
    """The stage speed: run here before a GPU runs it."""
    command = [sys.executable, "-m", "bench.gpu", "--stage", "speed", "--device", "cpu", "--tiny"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "speed: done after" in found.stdout
    page_ = (tmp_path / "trainyard-rehearsal" / "speed_cpu.md").read_text("utf-8")
    rows = ("ours | compiled", "ours | eager", "nanoGPT | eager", "loop | eager")
    assert all(f"| tiny | 2 | {row} |" in page_ for row in rows)


@pytest.mark.parametrize(("seconds", "verdict"), [(6.0, "2.00 times"), (3.0, "4.00 times")])
def test_prepares_page_judges_what_was_measured(
    seconds: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "results", lambda: tmp_path)
    monkeypatch.setattr(page, "describe", lambda *_: "a machine")
    middle = {"tokens": 1e6, "ours": 1.0 + seconds, "start": 1.0, "map": 8.0, "copy": 4.0, "tiktoken": 5.0}
    prepare.write(middle | {"tokenizers": 9.0, "new": 5.0, "known": 3.0}, ["text"], None)
    text = (tmp_path / "prepare.md").read_text("utf-8")
    assert f"ours is {verdict} as fast as nanoGPT's way; goal 3: {'reached' if seconds < 4 else 'missed'}." in text
    assert "tiktoken alone, with nothing around it, is 2.40 times as fast" in text


def test_a_worker_that_ends_is_not_told_as_a_slow_one(tmp_path: Path) -> None:
    worker = subprocess.Popen[bytes](["sh", "-c", "exit 3"])
    worker.wait()
    network: Any = SimpleNamespace(machines={"w0": ""})
    with pytest.raises(SystemExit, match="a worker ended with code 3 before 4 steps"):
        scaling.measure(tmp_path, network, [worker])
