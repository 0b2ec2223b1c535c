"""Checks of a node before and while it trains: CPU features, thread binding, exchange with peers, storage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.processes import ROOT
from trainer import gpu_check, launch
from trainer.contract import BIND_CORES, EXIT_FATAL
from trainer.elastic import processor
from trainer.errors import UserError

PRESENT = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile

processor\t: 1
flags\t\t: fpu
"""


def cpuinfo(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return path


def test_a_processor_with_the_flag_is_let_through(tmp_path: Path) -> None:
    processor.require_capability("amx_bf16", cpuinfo(tmp_path, PRESENT))
    processor.require_capability("", cpuinfo(tmp_path, ""))


def test_a_processor_without_it_says_what_it_has_instead(tmp_path: Path) -> None:
    path = cpuinfo(tmp_path, PRESENT.replace("amx_bf16", "").replace("8481C", "8373C"))
    with pytest.raises(UserError, match=r"8373C.* has no amx_bf16; use a machine"):
        processor.require_capability("amx_bf16", path)
    with pytest.raises(UserError, match=r"unknown processor.* has no amx_bf16"):
        processor.require_capability("amx_bf16", tmp_path / "absent")


def test_the_launcher_ends_the_job_on_such_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """42, which no Job retries: the next node of the pool is no better."""
    monkeypatch.setenv("TRAINYARD_TERMINATION_LOG", str(tmp_path / "words"))
    settings = [f"data.directory={tmp_path}", f"run.directory={tmp_path / 'run'}", "require_capability=no_such"]
    assert launch.main(["--standalone", "--", *settings]) == EXIT_FATAL
    assert "has no no_such" in capsys.readouterr().err
    assert "has no no_such" in json.loads((tmp_path / "words").read_text())["message"]
    assert not (tmp_path / "run").exists()


WORKER = """
import os
everywhere = os.sched_getaffinity(0)
import torch
os.sched_setaffinity(0, everywhere)
if os.fork():
    os.wait()
    os._exit(0)
torch.ones(400, 400) @ torch.ones(400, 400)
threads = [open(f"/proc/self/task/{t}/status").read() for t in os.listdir("/proc/self/task")]
places = [line.split()[1] for text in threads for line in text.splitlines() if line.startswith("Cpus_allowed_list")]
print(len(os.sched_getaffinity(0)), *sorted(places))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_openmp_threads_have_places_and_the_main_thread_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the launcher does it, whose workers are forks."""
    for name, value in {BIND_CORES: "1", "OMP_NUM_THREADS": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in processor.OPENMP:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it after the test
        monkeypatch.delenv(name)
    processor.bind_workers(2)
    assert not processor.OPENMP.keys() & os.environ.keys(), "two workers would share the first core"
    processor.bind_workers(1)
    done = subprocess.run([sys.executable, "-c", WORKER], cwd=ROOT, capture_output=True, text=True, check=True)
    free, *places = done.stdout.split()
    assert int(free) == len(os.sched_getaffinity(0))
    assert [place for place in places if place.isdigit()], "a thread of OpenMP's own is tied to one processor"


def test_an_address_that_is_none_is_told_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--master", "gpu-check-0:port"]) == 2
    assert capsys.readouterr().err == "--master gpu-check-0:port: write HOST:PORT, such as 10.0.0.5:29500\n"


@pytest.mark.parametrize(("measured", "warned"), [(5.1, False), (4.9, True)])
def test_the_exchange_between_nodes_is_held_to_their_network(
    measured: float, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    result: dict[str, float] = {"bus_gigabytes_per_second": measured}
    gpu_check.judge(result, 100)
    assert (result["link_gigabytes_per_second"], result["expected_bus_gigabytes_per_second"]) == (12.5, 5.0)
    assert ("warning" in result) is warned
    assert ("NCCL_DEBUG=INFO" in capsys.readouterr().err) is warned
    one_node: dict[str, float] = {"bus_gigabytes_per_second": measured}
    gpu_check.judge(one_node, None)
    assert one_node == {"bus_gigabytes_per_second": measured}


def test_a_node_that_never_meets_the_first_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "WAIT_SECONDS", 0)
    assert gpu_check.main(["--nodes", "2", "--node-rank", "1", "--master", f"127.0.0.1:{free_port()}"]) == 75
    assert "the node of rank 0 at 127.0.0.1" in capsys.readouterr().err


def test_accelerators_are_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    row = "NVIDIA A100-SXM4-40GB, 40960 MiB, 580.95.05"
    program.write_text(f"#!/bin/sh\nprintf '{row}\\n{row}\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_check.accelerators() == {
        "accelerators": ["NVIDIA A100-SXM4-40GB 40960 MiB"] * 2,
        "driver": "580.95.05",
    }
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    with pytest.raises(RuntimeError, match=r"nvidia-smi failed \(18\): Failed to initialize NVML"):
        gpu_check.accelerators()


def test_compiled_programs_are_kept_in_a_folder_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in torch's /tmp/torchinductor_NAME, which another account may have made first."""
    from torch._inductor.runtime import cache_dir_utils

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "anybody").mkdir()
    (tmp_path / "anybody").chmod(0o777)
    for home in (str(tmp_path / "home"), "/dev/null", str(tmp_path / "anybody")):
        monkeypatch.setenv("HOME", home)
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        processor.own_compile_cache()
        found = Path(cache_dir_utils.cache_dir())
        assert found.is_relative_to(tmp_path)
        assert not found.is_relative_to(tmp_path / "anybody"), "another account could replace it"
        assert found.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor")
    processor.own_compile_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/tmp/inductor", "the image's"
