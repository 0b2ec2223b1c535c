"""Tests and benchmarks for a machine with a GPU, in stages of at most 8 minutes: `make gpu`, `python -m bench.gpu`.

They need neither a network nor .venv: `make gpu PY=python3` uses a Python that has torch. `--stage NAME` runs one stage
alone. A stage writes its page in bench/results/ as figures arrive, stops at its limit and keeps them, and prints its
main lines, which the summary repeats. `--device cpu --tiny` rehearses every stage on a CPU with a tiny model and writes
its pages outside the repository.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from bench import page
from bench.trainer import setup

ROOT = Path(__file__).parents[1]
MINUTES = 8.0
GRACE_SECONDS = 15
"""Seconds after a stage's own limit until it is killed."""
REQUIRED = {"torch": "torch", "transformers": "transformers", "numpy": "numpy", "yaml": "PyYAML"}
REQUIRED |= {"safetensors": "safetensors", "tokenizers": "tokenizers", "pytest": "pytest"}
"""Module -> package: those of the trainer's requirements that the training of a language model imports, and pytest."""
OPTIONAL = {
    "accelerate": "the peer Trainer of stage speed",
    "deepspeed": "DeepSpeed's tests (a wheel built with DS_BUILD_OPS=0 has 2 MB)",
}
OLDEST = (2, 11)


@dataclass
class Stage:
    name: str
    command: list[str]
    verdict: str = ""
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    """Output lines for the summary: those that begin with "== ", and pytest's last one."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--stage", default="", metavar="NAME[,NAME]", help="only these; default: all, one by one")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="rehearse with a tiny model")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="limit of a stage")
    options = parser.parse_args(arguments)
    problem = lacking(options.device, options.tiny)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    known = stages(options.device, options.tiny, options.minutes)
    wanted = [name for name in options.stage.split(",") if name] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"error: --stage {unknown[0]}: not a stage; there are {', '.join(known)}", file=sys.stderr)
        return 2
    print(page.describe("torch", "transformers"), flush=True)
    absent = [f"{name} ({use})" for name, use in OPTIONAL.items() if find_spec(name) is None]
    if absent:
        print(f"not installed, so left out: {'; '.join(absent)}; install their wheels to have them", flush=True)
    done = []
    for name in wanted:
        print(f"\n{name}: {' '.join(known[name].command)}", flush=True)
        run(known[name], 60 * options.minutes, tests_page(options) if name == "tests" else None)
        done.append(known[name])
    print(f"\nSummary ({'rehearsal; ' if options.tiny else ''}pages in {page.results(options.tiny)})")
    for stage in done:
        print(f"{stage.name}: {stage.verdict} after {stage.seconds:.0f} s")
        for line in stage.lines:
            print(f"  {line}")
    return 0 if all(stage.verdict == "done" for stage in done) else 1


def lacking(device: str, tiny: bool) -> str:
    """Say in one line why the stages cannot run here; empty if they can."""
    missing = [package for module, package in REQUIRED.items() if find_spec(module) is None]
    if missing:
        return (
            f"{sys.executable} has no {', '.join(missing)}; choose another Python (make gpu PY=python3), or bring "
            f"these as wheels: pip download --no-deps {' '.join(missing)} where there is a network"
        )
    version = metadata.version("torch")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return f"torch {version} is too old; bring {'.'.join(map(str, OLDEST))} or newer"
    if device == "cpu":
        return "" if tiny else "--device cpu takes hours with the real models; add --tiny to rehearse the stages"
    import torch

    if torch.cuda.is_available():
        return ""
    return (
        f"torch {version} finds no CUDA device (nvidia-smi tells whether there is a driver); to rehearse the stages on "
        "this processor: make gpu ARGS='--device cpu --tiny'"
    )


def stages(device: str, tiny: bool, minutes: float) -> dict[str, Stage]:
    common = ["--device", device, *(["--tiny"] if tiny else [])]
    tests = ["pytest", "tests/gpu", "--confcutdir=tests/gpu", "-m", "gpu", "-v", "-ra", "--tb=short"]
    tests += ["--no-header", "-p", "no:cacheprovider", *(["--gpu-device=cpu"] if device == "cpu" else [])]
    commands = {"tests": tests, "speed": ["bench.trainer.speed", *common, "--minutes", str(minutes)]}
    return {name: Stage(name, [sys.executable, "-m", *command]) for name, command in commands.items()}


def run(stage: Stage, limit: float, watch: Callable[[str], None] | None) -> None:
    """Run a stage, show its output, and kill it with all its processes GRACE_SECONDS after its limit."""
    cache = Path(tempfile.gettempdir()) / "trainyard-compiled"  # stages share their compiled kernels
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
    environment = environment | os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        stage.command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ended = threading.Event()

    def end() -> None:
        ended.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit + GRACE_SECONDS, end)
    timer.start()
    try:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if re.match(r"== |=+ .*\b(passed|failed|skipped|error)\b", line):
                stage.lines.append(line.strip("= \n"))
            if watch is not None:
                watch(line)
        process.wait()
    finally:
        timer.cancel()
        with contextlib.suppress(ProcessLookupError):  # child processes that it left running
            os.killpg(process.pid, signal.SIGKILL)
    stage.seconds = time.monotonic() - began
    stage.verdict = "ended at its limit" if ended.is_set() else "done" if not process.returncode else "failed"


def tests_page(options: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that takes the tests' output line by line and keeps a page of their verdicts so far."""
    verdicts: dict[str, str] = {}
    machine = page.describe("torch", "transformers", "pytest") + setup.accelerator(options.device)
    file = page.results(options.tiny) / f"tests_{options.device}.md"

    def watch(line: str) -> None:
        found = re.match(r"tests/gpu/(\S+?)::(.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b ?(.*?)\s*(\[ *\d+%\])?$", line)
        if found is None:
            return
        verdicts[f"{found[1]}: {found[2]}"] = f"{found[3].lower()} {found[4]}".strip()
        count = {kind: sum(text.startswith(kind) for text in verdicts.values()) for kind in ("passed", "failed")}
        count = f"{count['passed']} passed, {count['failed']} failed, {len(verdicts)} in all."
        table = page.table(("test", "verdict"), verdicts.items())
        page.write(file, "# Tests on a GPU", "Written by `make gpu STAGE=tests`.", machine, count, table)

    return watch


if __name__ == "__main__":
    sys.exit(main())
