"""A node whose accelerators torch cannot use is told in one line, with the setting that changes it."""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ports import free_port
from tests.trainer.processes import context
from trainer import gpu_fit
from trainer.config import drivers
from trainer.contract import DEVICE, EXIT_USAGE


def nvidia_smi(folder: Path, driver: str) -> str:
    """Make a program that lists two A100s with this driver; returns PATH with it."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    row = f"NVIDIA A100-SXM4-40GB, 40960 MiB, {driver}"
    program.write_text(f"#!/bin/sh\nprintf '{row}\\n{row}\\n'\n")
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """A node with a driver, as the check sees it; torch is for CUDA 13.2 and finds no device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.delenv(DEVICE, raising=False)

    def seen(driver: str) -> dict[str, Any]:
        monkeypatch.setenv("PATH", nvidia_smi(tmp_path, driver))
        found = gpu_fit.accelerators()
        return {"node": f"node-{driver}", **found, **gpu_fit.inspect(found)}

    return seen


@pytest.mark.parametrize(
    ("driver", "cuda", "old"),
    [
        ("579.99", "13.2", True),
        ("580.65.06", "13.2", False),
        ("524.9", "12.8", True),
        ("525.60.13", "12.8", False),
        ("470.1", "99.0", False),
        ("", "13.2", False),
    ],
)
def test_a_driver_is_held_to_the_major_version_of_cuda(driver: str, cuda: str, old: bool) -> None:
    assert drivers.too_old(driver, cuda) is old


def test_an_old_driver_is_told_in_one_line_with_the_settings(node: Callable[[str], dict[str, Any]]) -> None:
    told = node("570.133.20")["problem"]
    assert told.startswith(f"driver 570.133.20 is too old: torch {torch.__version__} is built for CUDA 13.2, which ")
    assert "needs driver 580 or newer: take nodes.gpuDriverVersion: LATEST" in told
    assert "eks.nodeRelease" in told
    assert "\n" not in told


def test_a_driver_that_is_new_enough_is_not_blamed(node: Callable[[str], dict[str, Any]]) -> None:
    told = node("580.95.05")["problem"]
    assert "finds none of the accelerators that driver 580.95.05 lists" in told
    assert "too old" not in told


def test_an_image_without_cuda_is_named(node: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is not built for CUDA" in node("580.95.05")["problem"]


def test_of_mixed_drivers_the_oldest_and_its_node_are_named(node: Callable[[str], dict[str, Any]]) -> None:
    nodes = [{"node": "fine"}, node("570.9"), node("535.261.03"), node("570.10")]
    told = gpu_fit.mismatch(nodes)
    assert told.startswith("node node-535.261.03: driver 535.261.03 is too old")
    assert told.endswith("(3 of 4 nodes cannot train)")
    assert gpu_fit.mismatch(nodes[:1]) == ""


def test_a_node_that_should_have_accelerators_and_shows_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv(DEVICE, raising=False)
    assert "problem" not in gpu_fit.inspect({"accelerators": []})
    monkeypatch.setenv(DEVICE, "cuda")
    assert "workers.runtimeClass" in gpu_fit.inspect({"accelerators": []})["problem"]


WHEEL = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((7, 5), WHEEL, True),
        ((7, 0), WHEEL, False),
        ((8, 9), WHEEL, True),
        ((11, 0), WHEEL, False),
        ((11, 0), [*WHEEL, "compute_80"], True),
        ((9, 0), ["sm_90a"], True),
        ((10, 0), ["sm_90a", "compute_90a"], False),
        ((10, 3), ["sm_100f"], True),
    ],
)
def test_torch_has_code_for_a_device(capability: tuple[int, int], built: list[str], runs: bool) -> None:
    assert gpu_fit.runs_on(capability, built) is runs


def test_a_device_without_code_is_refused_and_others_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [(8, 0), (8, 0)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: devices[device])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: WHEEL)
    found = gpu_fit.inspect({"accelerators": ["A100", "A100"], "driver": "550.1"})
    assert found["compute_capabilities"] == ["8.0", "8.0"]
    assert "problem" not in found, "torch has found them, with NVIDIA's compatibility package"
    devices[1] = (7, 0)
    assert "no code for compute capability 7.0, only for sm_75, " in gpu_fit.inspect({"accelerators": []})["problem"]


def test_the_driver_says_which_cuda_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def cuDriverGetVersion(self, version: Any) -> int:
            version._obj.value = 13020
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert gpu_fit.driver_cuda() == "13.2"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: os.stat("/nowhere"))
    assert gpu_fit.driver_cuda() == ""


def run_with_driver(path: str, name: str, arguments: list[str], output: str, errors: str) -> None:
    """A node's `python -m trainer.gpu_check` in a process that has torch loaded already."""
    os.environ.update(PATH=path, NODE_NAME=name)
    for number, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.argv[1:] = arguments
    runpy.run_module("trainer.gpu_check", run_name="__main__", alter_sys=True)


def test_both_nodes_end_in_the_same_line_and_measure_nothing(tmp_path: Path) -> None:
    """As in a cluster, but that the accelerators are listed by a stand-in and this machine's torch finds none."""
    master = f"127.0.0.1:{free_port()}"
    said = [(str(tmp_path / f"output-{rank}"), str(tmp_path / f"errors-{rank}")) for rank in (0, 1)]
    nodes = [
        context().Process(
            target=run_with_driver,
            args=(
                nvidia_smi(tmp_path / driver, driver),
                f"node-{rank}",
                ["--nodes", "2", "--megabytes", "1", "--master", master, "--node-rank", str(rank)],
                *said[rank],
            ),
        )
        for rank, driver in enumerate(("570.133.20", "535.261.03"))
    ]
    for each in nodes:
        each.start()
    for each in nodes:
        each.join(120)
    told = [Path(errors).read_text() for _, errors in said]
    assert [each.exitcode for each in nodes] == [EXIT_USAGE, EXIT_USAGE], told
    assert told[0] == told[1]
    [line] = [line for line in told[0].splitlines() if "runpy" not in line]
    assert line.startswith("gpu_check: node node-1: ")
    assert [Path(output).read_text() for output, _ in said] == ["", ""]
