"""Tests marked gpu run where there is a CUDA device, and are skipped with the reason elsewhere.

`--gpu-device=cpu` rehearses them on a CPU, except those that use the fixture `on_cuda`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# torch.use_deterministic_algorithms needs it, and cuBLAS reads it at its first call.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from bench.trainer import setup
from trainer.elastic import processor

processor.own_compile_cache()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearse on a processor")


def chosen(config: pytest.Config) -> str:
    """The device of --gpu-device; pytest knows the option only if its command line names these tests."""
    return str(config.getoption("gpu_device", default="cuda"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if chosen(config) == "cpu" or torch.cuda.is_available():
        return
    reason = f"needs a GPU: torch {torch.__version__} finds no CUDA device"
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return torch.device("cuda", 0) if chosen(pytestconfig) == "cuda" else torch.device("cpu")


@pytest.fixture
def on_cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("nothing of it can be rehearsed on a processor")
    return device


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Use kernels that add in the same order each time; fused attention's backward pass does not by default."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return setup.dataset(tmp_path_factory.mktemp("dataset"), vocabulary=600, characters=60_000)
