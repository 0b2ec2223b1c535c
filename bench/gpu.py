"""Tests and benchmarks for a machine with a GPU, ten minutes in all: `make gpu`, `python -m bench.gpu`.

They need neither a network nor .venv nor a checkout that can be written to: `make gpu PY=python3` uses a Python that
has torch. The stages come in the order in which a failure says most: what the device is, tests, speed. `--stage NAME`
runs one alone. A stage writes its page in bench/results/ as figures arrive, else in a folder that the summary names,
stops at its limit and keeps them. The terminal shows its main lines, a log all of them. `--device cpu --tiny` rehearses
every stage on a CPU with a tiny model and writes its pages outside the repository.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import IO

from bench import page
from bench.trainer import setup
from bench.verdicts import Verdicts
from trainer.elastic import processor

ROOT = Path(__file__).parents[1]
LIMITS = {"device": 1.0, "tests": 7.0, "speed": 6.0, "exchange": 8.0, "recipe": 9.0}
"""Minutes of each stage at most, in order; the last two only if asked for. On one H100 the tests took 4.8 on 2026-11-26
and more than 5 the day after, since when it has half a minute more to do; a mode of speed 0.5 to 1."""
ASKED = ("exchange", "recipe")
MINUTES, REHEARSAL_MINUTES = 10.0, 60.0
"""Of all stages together. Two cores compile the tests' models in more than 4 minutes."""
GRACE_SECONDS = 15
"""A stage with a limit of its own stops so many seconds before it is killed."""
WIDTH = 150
REQUIRED = {"torch": "torch", "transformers": "transformers", "numpy": "numpy", "yaml": "PyYAML"}
REQUIRED |= {"pydantic": "pydantic", "safetensors": "safetensors", "tokenizers": "tokenizers", "pytest": "pytest"}
"""Module -> package: those of the trainer's requirements that the training of a language model imports, and pytest."""
OPTIONAL = {
    "accelerate": "the peer Trainer of stage speed",
    "peft": "the test of an adapter",
    "deepspeed": "DeepSpeed's tests (a wheel built with DS_BUILD_OPS=0 has 2 MB)",
}
OLDEST = (2, 11)


@dataclass
class Stage:
    name: str
    command: list[str]
    shown: Callable[[str], str] = str.rstrip
    """What the terminal shows of a line of its output: all of it, a letter that says how far it is, or nothing."""
    verdict: str = ""


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "--stage",
        default="",
        metavar="NAME[,NAME]",
        help="only these; default: all but exchange, which needs several GPUs, and recipe, which needs its data",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="rehearse with a tiny model")
    parser.add_argument("--minutes", type=float, help="limit of all stages; default: 10, on a processor 60")
    options = parser.parse_args(arguments)
    options.minutes = options.minutes or (MINUTES if options.device == "cuda" else REHEARSAL_MINUTES)
    problem = lacking(options.device, options.tiny)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    wanted = [name for name in options.stage.split(",") if name] or [name for name in LIMITS if name not in ASKED]
    unknown = [name for name in wanted if name not in LIMITS]
    if unknown:
        print(f"error: --stage {unknown[0]}: not a stage; there are {', '.join(LIMITS)}", file=sys.stderr)
        return 2
    print(page.describe("torch", "transformers"), flush=True)
    absent = [f"{name} ({use})" for name, use in OPTIONAL.items() if find_spec(name) is None]
    if absent:
        print(f"not installed, so left out: {'; '.join(absent)}; install their wheels to have them", flush=True)
    done: list[Stage] = []
    with tempfile.NamedTemporaryFile("a", prefix="trainyard-gpu-", suffix=".log", delete=False) as log:
        for name in wanted:
            left = 60 * options.minutes - (time.monotonic() - began)
            limit = min(left, 60 * LIMITS[name] * options.minutes / MINUTES)
            stage = Stage(name, command(name, options, limit))
            done.append(stage)
            if name != "device" and done[0].name == "device" and not done[0].verdict.startswith("done"):
                stage.verdict = "left out, because stage device failed"
                continue
            tests = None
            if name == "tests":
                machine = page.describe("torch", "transformers", "pytest") + setup.accelerator(options.device)
                tests = Verdicts(page.results(options.tiny) / f"tests_{options.device}.md", machine)
                stage.shown = tests.read
            run(stage, limit, log)
            if tests:
                tests.end(stage.verdict)
    print(f"\nSummary ({'rehearsal; ' if options.tiny else ''}pages in {page.results(options.tiny)}, log: {log.name})")
    for stage in done:
        print(f"{stage.name}: {stage.verdict}")
    return 0 if all(stage.verdict.startswith("done") for stage in done) else 1


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


def command(name: str, options: argparse.Namespace, limit: float) -> list[str]:
    """Return a stage's command. `limit`: seconds until it is killed."""
    device = ["--device", options.device]
    if name == "device":
        words = ["bench.device", *device]
    elif name == "tests":
        words = ["pytest", "tests/gpu", "--confcutdir=tests/gpu", "-m", "gpu", "-v", "-ra", "--tb=short", "--no-header"]
        words += ["-p", "no:cacheprovider", f"--gpu-device={options.device}"]
    else:
        words = [f"bench.trainer.{name}", *device, *(["--tiny"] if options.tiny else [])]
        words += ["--minutes", f"{(limit - GRACE_SECONDS) / 60:.2f}"] if name == "speed" else []
    return [sys.executable, "-m", *words]


def surroundings() -> dict[str, str]:
    """Return the environment of the stages, which share what they compile in a folder of this user alone."""
    processor.own_compile_cache()
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    environment = (
        {"TRITON_CACHE_DIR": str(cache / "triton")} | os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    )
    environment["COLUMNS"] = str(WIDTH)  # pytest cuts reasons off at it
    torch = find_spec("torch")
    if torch is not None and torch.origin and not Path(cache_from_source(torch.origin)).exists():
        # Without .pyc files, each of a dozen processes would compile torch's modules again, for 15 s.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(cache / "python")
    return environment


def run(stage: Stage, limit: float, log: IO[str]) -> None:
    """Run a stage, show what it has to be shown, and kill it with all its processes at its limit, in seconds."""
    environment = surroundings()
    print(f"\n{stage.name}, {limit / 60:.1f} minutes at most ", end="", flush=True)
    log.write(f"\n{stage.name}: {' '.join(stage.command)}\n")
    log.flush()
    began = time.monotonic()
    process = subprocess.Popen(
        stage.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    ended = threading.Event()

    def end() -> None:
        ended.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, end)
    timer.start()
    said = False
    try:
        for line in process.stdout or ():
            log.write(line)
            log.flush()
            if text := stage.shown(line):
                said = True
                print(text if len(text) == 1 else f"\n  {text[:WIDTH]}", end="", flush=True)
        process.wait()
    finally:
        timer.cancel()
        with contextlib.suppress(ProcessLookupError):  # child processes that it left running
            os.killpg(process.pid, signal.SIGKILL)
    how = "ended at its limit" if ended.is_set() else "done" if not process.returncode else "failed"
    stage.verdict = f"{how} after {time.monotonic() - began:.0f} s"
    if how == "failed" and not said:
        stage.verdict += f": {Path(log.name).read_text('utf-8').splitlines()[-1][:WIDTH]}"
    print(f"\n  {stage.verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
