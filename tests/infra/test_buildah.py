"""The progress that a build shows; the builds themselves are in tests/e2e/test_buildah.py."""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra import buildah

# Waits at each step until the test has seen the lines that it wants.
BUILD = """
echo STEP 1/3: FROM base
until [ -e first ]; do sleep 0.02; done
echo STEP 2/3: RUN install
echo "Downloaded torch"
until [ -e enough ]; do sleep 0.02; done
echo STEP 3/3: CMD run
"""


def test_a_build_says_regularly_at_which_step_it_is_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        (tmp_path / "first").touch()
        if len(told) > 2 and "Downloaded" in told[-3]:
            (tmp_path / "enough").touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(buildah, "HEARTBEAT", 0.05)
    monkeypatch.setattr(buildah, "_tell", tell)
    buildah.run_and_show(["sh", "-c", BUILD], "image: step")
    assert re.fullmatch(r"image: step 1 of 3, 0 s, 0\.0 GB copied", told[0])
    (torch,) = (number for number, line in enumerate(told) if "Downloaded torch" in line)
    assert re.fullmatch(r"image: step 2 of 3, \d s, Downloaded torch", told[torch])
    assert re.fullmatch(r"image: step 2 of 3, \d s, 0\.0 GB copied", told[torch + 1])
    # Nothing more was written since.
    assert re.fullmatch(r"image: step 2 of 3, \d s", told[torch + 2])


def test_a_checksum_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if len(told) > 1:
            (tmp_path / "enough").touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(buildah, "HEARTBEAT", 0.1)
    monkeypatch.setattr(buildah, "_tell", tell)
    monkeypatch.setattr(buildah, "_written", lambda pid: 1_240_000_000)
    push = "echo Copying blob sha256:2ff95baddb3c; until [ -e enough ]; do sleep 0.02; done"
    buildah.run_and_show(["sh", "-c", push], "image: push")
    assert told[0] == "image: push, 0 s, 1.2 GB copied"
    assert re.fullmatch(r"image: push, \d s", told[1])


def test_what_a_process_wrote_is_counted() -> None:
    before = buildah._written(os.getpid())
    with open(os.devnull, "wb", buffering=0) as file:
        file.write(b"x" * 5000)
    assert 5000 <= buildah._written(os.getpid()) - before < 100_000
    assert buildah._written(0) == 0


def test_stacks_that_come_up_at_once_build_an_image_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built, pushed, told, begun = list[str](), list[str](), list[str](), threading.Event()

    def build(target: str, *_: object) -> None:
        built.append(target)
        begun.set()
        end = time.monotonic() + 10
        while not told and time.monotonic() < end:
            time.sleep(0.01)

    def push(*_: object) -> str:
        pushed.append("sha256:0")
        return pushed[0]

    monkeypatch.setattr(buildah.shutil, "which", lambda _: "buildah")
    monkeypatch.setattr(buildah, "registry_digest", lambda *_: pushed[0] if pushed else None)
    monkeypatch.setattr(buildah, "build", build)
    monkeypatch.setattr(buildah, "push", push)
    monkeypatch.setattr(buildah, "_tell", told.append)
    image = {"target": "registry/trainer:1", "insecure": True, "context": str(tmp_path), "dockerfile": "Dockerfile"}
    image |= {"buildArgs": {}, "compression": "zstd"}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(buildah._ensure, image)
        begun.wait(10)
        second = pool.submit(buildah._ensure, image)
        assert first.result(20) == second.result(20) == "registry/trainer@sha256:0"
    assert built == ["registry/trainer:1"]
    assert told == ["image: another pulumi up builds it, 0 s"]
