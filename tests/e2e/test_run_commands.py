"""Commands about runs and the volume on the real node: runs, compare, export, ls, du, rm, status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faults.stack import Stack
from local import paths
from tests.e2e.conftest import succeed, tool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("trained")]


def test_the_run_is_listed_with_its_step_and_model(stack: Stack, small_run: str) -> None:
    (found,) = [each for each in json.loads(succeed(stack, "runs", "--json")) if each["run"] == small_run]
    assert (found["state"], found["step"], found["model"], found["checkpoint"]) == ("done", 4, "tiny", 4)
    assert found["bytes"] > 100_000


def test_status_is_json_for_programs(stack: Stack) -> None:
    (found,) = json.loads(succeed(stack, "status", "--json"))
    assert found["condition"] == "Complete"
    assert found["figures"]["step"] == 4
    assert found["started"] < found["ended"]


def test_a_page_shows_the_curves(stack: Stack, small_run: str, tmp_path: Path) -> None:
    said = succeed(stack, "compare", "--run", small_run, "--html", str(tmp_path / "page"))
    assert said.endswith(f"curves: {tmp_path}/page/index.html\n")
    assert small_run in (tmp_path / "page" / "index.html").read_text()


def test_the_model_is_exported_without_torch_here(stack: Stack, tmp_path: Path) -> None:
    succeed(stack, "export", "--dtype", "bf16", "--to", str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_what_nobody_uses_is_removed_and_what_is_used_is_not(stack: Stack, small_run: str) -> None:
    place = paths.STORAGE / f"{small_run}-texts"
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "text.txt").write_bytes(b"x" * 3_000_000)
    for path in (place, place / "deep", place / "deep" / "text.txt"):
        path.chmod(0o777)
    assert f"{place.name}/" in succeed(stack, "ls")
    assert " of the volume's " in succeed(stack, "du", place.name)
    refused = tool(stack, "rm", f"datasets/{small_run}", place.name, "--yes")
    assert refused.returncode == 1
    assert f"uses /data/datasets/{small_run}; nothing was removed" in refused.stderr
    assert place.exists()
    succeed(stack, "rm", place.name, "--yes")
    assert not place.exists()
