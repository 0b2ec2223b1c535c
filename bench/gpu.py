"""Tests and benchmarks for a machine with a GPU, ten minutes in all: `make gpu`, `python -m bench.gpu`.

They need neither a network nor .venv nor a checkout that can be written to: `make gpu PY=python3` uses a Python that
has torch. `--stage NAME` runs one stage alone. A stage that measures writes its page as figures arrive, and keeps them
when its limit ends it. `--device cpu --tiny` rehearses every stage on a CPU with a tiny model and writes its pages
outside the repository.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from bench import page
from bench.trainer import setup
from trainer.elastic import processor

ROOT = Path(__file__).parents[1]
LIMITS = {"tests": 7.0, "speed": 6.0, "recipe": 9.0}
"""Minutes of each stage at most, in order; the last only if asked for. On one H100 the tests took 4.8 on 2026-11-26 and
more than 5 the day after, since when it has half a minute more to do; a mode of speed 0.5 to 1."""
ASKED = ("recipe",)
MINUTES = {"cuda": 10.0, "cpu": 60.0}
"""Of all stages together. Two cores compile the tests' models in more than 4 minutes."""
REQUIRED = {"torch": "torch", "transformers": "transformers", "numpy": "numpy", "yaml": "PyYAML"}
REQUIRED |= {"pydantic": "pydantic", "safetensors": "safetensors", "tokenizers": "tokenizers", "pytest": "pytest"}
"""Module -> package: those of the trainer's requirements that the training of a language model imports, and pytest."""
OPTIONAL = {
    "accelerate": "the peer Trainer of stage speed",
    "peft": "the test of an adapter",
    "deepspeed": "DeepSpeed's tests (a wheel built with DS_BUILD_OPS=0 has 2 MB)",
}
OLDEST = (2, 11)


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    only = "only this one; default: all but recipe, which needs its data"
    parser.add_argument("--stage", default="", choices=("", *LIMITS), metavar="|".join(LIMITS), help=only)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="rehearse with a tiny model")
    options = parser.parse_args(arguments)
    if problem := lacking(options.device, options.tiny):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(page.describe("torch", "transformers", "pytest") + setup.accelerator(options.device), flush=True)
    absent = [f"{name} ({use})" for name, use in OPTIONAL.items() if find_spec(name) is None]
    if absent:
        print(f"not installed, so left out: {'; '.join(absent)}; install their wheels to have them", flush=True)
    minutes, said = MINUTES[options.device], list[str]()
    for name in [options.stage] if options.stage else [name for name in LIMITS if name not in ASKED]:
        left = 60 * minutes - (time.monotonic() - began)
        limit = min(left, 60 * LIMITS[name] * minutes / MINUTES["cuda"])
        print(f"\n{name}, {limit / 60:.1f} minutes at most", flush=True)
        said.append(f"{name}: {run(command(name, options), limit)}")
    print(f"\nPages are in {page.results(options.tiny)}", *said, sep="\n")
    return int(any(": done" not in each for each in said))


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


def command(name: str, options: argparse.Namespace) -> list[str]:
    """Return a stage's command."""
    if name == "tests":
        words = ["pytest", "tests/gpu", "--confcutdir=tests/gpu", "-m", "gpu", "-v", "-ra", "--tb=short", "--no-header"]
        words += ["-p", "no:cacheprovider", f"--gpu-device={options.device}"]
    else:
        words = [f"bench.trainer.{name}", "--device", options.device, *(["--tiny"] if options.tiny else [])]
    return [sys.executable, "-m", *words]


def surroundings() -> dict[str, str]:
    """Return the environment of the stages, which share what they compile in a folder of this user alone."""
    processor.own_compile_cache()
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    environment = (
        {"TRITON_CACHE_DIR": str(cache / "triton")} | os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    )
    torch = find_spec("torch")
    if torch is not None and torch.origin and not Path(cache_from_source(torch.origin)).exists():
        # Without .pyc files, each of a dozen processes would compile torch's modules again, for 15 s.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(cache / "python")
    return environment


def run(command: list[str], limit: float) -> str:
    """Run a stage, kill it with all its processes at its limit, in seconds, and return how it ended."""
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=surroundings(), start_new_session=True)
    try:
        how = "failed" if process.wait(limit) else "done"
    except subprocess.TimeoutExpired:
        how = "ended at its limit"
    finally:
        with contextlib.suppress(ProcessLookupError):  # child processes that it left running, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"{how} after {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
