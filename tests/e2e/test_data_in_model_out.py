"""Data in, model out, on the real node: upload, train, fetch, look. One stack (conftest.py), in order."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.stack import Stack
from infra.stackfiles import ROOT
from local import paths
from tests.e2e.conftest import succeed
from tests.ports import free_port
from trainer.contract import TRAINER_ID

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = f"own-{uuid.uuid4().hex[:8]}"
PYTHON = str(ROOT / ".venv/bin/python")


@pytest.fixture(scope="module", autouse=True)
def clean_volume() -> Iterator[None]:
    yield
    for folder in paths.STORAGE.glob(f"**/{NAME}*"):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Own texts, and a large binary file beside them."""
    folder = tmp_path_factory.mktemp("texts") / NAME
    folder.mkdir()
    words = (ROOT / "trainer/sample/opticks.txt").read_text().split()
    for number in range(40):
        part = words[number * 1_500 : (number + 1) * 1_500]
        (folder / f"part {number}.txt").write_text("Own text. " + " ".join(part))
    (folder / "large.bin").write_bytes(random.Random(1).randbytes(48 << 20))
    return folder


def test_an_upload_that_is_killed_goes_on_and_nothing_half_is_seen(stack: Stack, corpus: Path) -> None:
    target = paths.STORAGE / NAME
    command = [PYTHON, "-m", "cli", "upload", "--stack", stack.name, str(corpus)]
    first = subprocess.Popen(command, env=stack.environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not any(path.stat().st_size > 8 << 20 for path in target.glob(".large.bin.*")):
        assert time.monotonic() < end
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (target / "large.bin").exists()
    again = succeed(stack, "upload", str(corpus))
    assert f"dataset.input[0]' /data/{NAME}" in again
    for path in corpus.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes()
    assert not list(target.glob(".*"))
    assert (target / "large.bin").stat().st_uid == TRAINER_ID
    running = ("get", "pods", "-l", "trainyard/volume-access", "--field-selector=status.phase=Running")
    (pod,) = stack.kubectl(*running, "-o", "name").stdout.split()
    assert NAME in succeed(stack, "run", "--", "ls", "/data").split()
    assert stack.kubectl("get", pod, "-o", "name").stdout.split() == [pod], "one pod serves all commands"


def test_it_trains_on_what_was_uploaded(stack: Stack) -> None:
    # The input is the whole folder; files that are no text are skipped.
    stack.write(dataset={"name": NAME, "input": [NAME]}, job={"name": NAME})
    stack.up()
    succeed(stack, "follow")
    index = json.loads((paths.STORAGE / "datasets" / NAME / "index.json").read_text())
    assert index["documents"] == 40


def test_the_run_comes_to_this_machine_with_model_metrics_and_report(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    os.symlink("/etc", paths.STORAGE / "runs" / NAME / "planted")  # others write on the volume
    for _ in range(2):
        fetched = succeed(stack, "fetch", "--to", str(folder))
    assert "left out: 'planted' (" in fetched
    assert not (folder / "planted").exists()
    assert str(folder / "report" / "index.html") in fetched
    volume = paths.STORAGE / "runs" / NAME
    assert (folder / "metrics.jsonl").read_bytes() == (volume / "metrics.jsonl").read_bytes()

    from transformers import GPT2LMHeadModel

    assert GPT2LMHeadModel.from_pretrained(folder / "model").config.n_layer == 2
    page = seen(f"file://{folder}/report/index.html")
    assert NAME in page
    assert "Charts" in page


def test_tensorboard_opens_with_the_run(stack: Stack) -> None:
    ready = stack.kubectl("wait", "--for=condition=Available", "deployment/tensorboard", "--timeout=200s")
    assert ready.returncode == 0, ready.stderr
    port = free_port()
    command = [PYTHON, "-m", "cli", "board", "--stack", stack.name, "--port", str(port), "--no-browser"]
    board = subprocess.Popen(
        command, env=stack.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert board.stdout
        assert f"http://localhost:{port}" in board.stdout.readline()
        end = time.monotonic() + 200
        while NAME not in str(_json(f"http://localhost:{port}/data/runs")):
            assert time.monotonic() < end
            time.sleep(1)
        tags = _json(f"http://localhost:{port}/data/plugin/scalars/tags")
        (shown,) = {run: found for run, found in tags.items() if NAME in run}.items()
        assert stack.name in shown[0]
        assert min(shown[1]).startswith("loss/"), "the page opens on the losses"
        assert "TensorBoard" in seen(f"http://localhost:{port}/")
    finally:
        board.send_signal(signal.SIGINT)
        said = board.communicate(timeout=10)[0]
    # A browser opens several connections at once; none of them may print anything.
    assert (board.returncode, said) == (0, "")


def test_a_run_can_go_to_another_place_and_train_on(stack: Stack, tmp_path: Path) -> None:
    succeed(stack, "fetch", "--all", "--to", str(tmp_path / "run"))
    (tmp_path / "run" / "DONE").unlink()
    succeed(stack, "upload", str(tmp_path / "run"), "--to", f"runs/{NAME}-moved")
    stack.write(job={"name": f"{NAME}-moved"}, training={"steps": 6})
    stack.up()
    assert "resuming from step" in succeed(stack, "follow")
    moved = [json.loads(line) for line in (paths.STORAGE / "runs" / f"{NAME}-moved" / "metrics.jsonl").open()]
    assert max(line["step"] for line in moved) == 6


def seen(address: str) -> str:
    """A page as it is served."""
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


def _json(address: str) -> dict[str, dict[str, str]]:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)
    except OSError as error:
        print(f"{address}: {error}", file=sys.stderr)
        return {}
