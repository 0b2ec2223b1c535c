"""Tokens/s of GPT-2 124M, ours and others', in one run on one machine: `python -m bench.trainer.speed`.

Ours is the whole `python -m trainer.train` on the sample text, read from its metrics; peers.py runs the others. Each
mode is a process of its own. A step is 4096 tokens (2^19 on an accelerator), as four micro-batches of one window or one
of four. A figure is the median of the steps after the first. `--only`
measures some modes; bench/results/ keeps the figures of all, and the table shows them.

On a shared machine compare CPU seconds of one thread (`--threads 1`), not wall seconds. On an accelerator, modes not
yet measured on this machine run first, so the next run completes one that `--minutes` ended. `--tiny` rehearses each
program with a model that takes no minute, on a page of its own. The page says which modes failed, and why; the end of
their output goes to standard error.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import page
from bench.trainer import setup, speed_table
from bench.trainer.peers import BIASED

PROGRAMS = ("ours", "loop", "Trainer")
MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=68719476736"
"""What processor.keep_memory does in a worker, for all programs alike."""
MODE_SECONDS = 120
"""Limit of a mode on an accelerator, so that one that hangs leaves time for the others; they take 30 to 60 s there."""
NO_TIME = "no time left; run it again, and it comes first"


@dataclass(frozen=True)
class Mode:
    program: str
    precision: str
    compiled: bool
    micro_batch: int
    preset: str = "small"

    @property
    def name(self) -> str:
        how = "compiled" if self.compiled else "eager"
        size = "" if self.preset == "small" else f", {self.preset}"
        return f"{self.program}, {self.precision}, {how}, {self.micro_batch}x1024{size}"


def modes() -> list[Mode]:
    """List all modes on a CPU, in order."""
    return [
        Mode(program, precision, compiled, micro_batch)
        for precision in ("bf16", "fp32")
        for micro_batch in (1, 4)
        for program in PROGRAMS
        for compiled in (True, False)
    ]


def _on_accelerator(tiny: bool) -> list[Mode]:
    """List the modes from the one that says most: ours and its best peer, larger micro-batches, the other peers, a
    larger model, eager mode."""
    if tiny:  # nothing is compiled: that takes a processor half a minute each time
        small = [Mode(each, "bf16", False, 2, preset="tiny") for each in ("ours", "nanoGPT", BIASED, "loop", "Trainer")]
        return [*small, dataclasses.replace(small[0], preset="modern-micro")]
    ours, nano, biased, loop, trainer = (
        Mode(each, "bf16", True, 32, preset="small") for each in ("ours", "nanoGPT", BIASED, "loop", "Trainer")
    )
    modern = dataclasses.replace(ours, preset="modern-small")
    larger = [dataclasses.replace(each, preset="medium") for each in (ours, nano)]
    wide, eager = dataclasses.replace(ours, micro_batch=64), dataclasses.replace(ours, compiled=False)
    return [ours, nano, biased, modern, wide, loop, trainer, *larger, eager]


def main(arguments: list[str] | None = None) -> int:
    parser = setup.parser("speed", __doc__)
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="modes whose name has all words, such as 'ours bf16'"
    )
    parser.add_argument("--steps", type=int, default=0, help="steps of each mode; default: 4, fp32 3, accelerator 8")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="stop after so many, even within a mode")
    options = parser.parse_args(arguments)
    accelerator = options.device == "cuda" or options.tiny
    known = _on_accelerator(options.tiny) if accelerator else modes()
    words = options.only.replace(",", " ").split()
    chosen = [mode for mode in known if all(word in mode.name for word in words)]
    if not chosen:
        parser.error("--only: no mode has these words; the modes:\n" + "\n".join(mode.name for mode in known))
    name = f"speed_{options.device}" + (f"_{options.threads}_threads" if options.threads else "")
    file = page.results(options.tiny) / f"{name}.json"
    if options.steps == 1:
        parser.error("--steps: 1; at least 2, because the first is not measured")
    figures: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    machine = page.describe("torch", "transformers") + setup.accelerator(options.device)
    if options.device == "cuda" and not options.only:
        chosen.sort(key=lambda mode: figures.get(mode.name, {}).get("machine") == machine)
    deadline = time.monotonic() + 60 * options.minutes
    without: dict[str, str] = {}
    if find_spec("accelerate") is None:
        without = {mode.name: "left out: it needs accelerate" for mode in chosen if mode.program == "Trainer"}
        chosen = [mode for mode in chosen if mode.name not in without]
    with tempfile.TemporaryDirectory(prefix="bench-speed-") as scratch:
        folder = Path(scratch) / "data"
        data = setup.dataset(folder, characters=60_000) if options.tiny else setup.dataset(folder)
        for mode in chosen:
            until = min(deadline, time.monotonic() + MODE_SECONDS) if accelerator else deadline
            try:
                found = measure(mode, options, data, Path(scratch), until) | dataclasses.asdict(mode)
            except subprocess.TimeoutExpired:
                said = without[mode.name] = NO_TIME if until == deadline else f"failed: not done after {MODE_SECONDS} s"
            except subprocess.CalledProcessError as error:
                print(f"{mode.name}: failed\n{error.stdout[-1500:]}\n{error.stderr[-3000:]}", file=sys.stderr)
                said = without[mode.name] = f"failed: {reason(error)}"
            else:
                figures[mode.name] = found | {"machine": machine}
                file.parent.mkdir(exist_ok=True)
                file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
                said = f"{found['tokens_per_second']:.0f} tokens/s, {found['cpu']:.1f} CPU s/step"
            print(f"{mode.name}: {said}", flush=True)
            parts = speed_table.parts(figures, setup.command("speed", options), accelerator)
            page.write(file.with_suffix(".md"), *parts, *speed_table.lacking(without, machine))
    for line in speed_table.goals(figures, machine) if accelerator else ():
        print(line)
    return int(any(why.startswith("failed") for why in without.values()))


def reason(error: subprocess.CalledProcessError) -> str:
    """Return the last line of a process's output that names an error, else its last line."""
    lines = [line.strip() for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|error)\b", line)]
    return (named or lines or [f"exit code {error.returncode}"])[-1][:200]


def measure(mode: Mode, options: argparse.Namespace, data: str, scratch: Path, deadline: float) -> dict[str, Any]:
    """Measure a mode.

    Raises:
        CalledProcessError: the mode's process failed. TimeoutExpired: it was ended at the deadline, or not begun.
    """
    if deadline - time.monotonic() < 10:
        raise subprocess.TimeoutExpired(mode.name, 0)
    cpu = options.device == "cpu"
    settings = {
        "length": 16 if options.tiny else 1024,
        "tokens_per_step": 64 if options.tiny else 4096 if cpu else 2**19,
        "steps": options.steps or (2 if options.tiny else 8 if not cpu else 3 if mode.precision == "fp32" else 4),
        "device": options.device,
        "data": data,
        "scratch": str(scratch / "trainer"),
    } | dataclasses.asdict(mode)
    environment = os.environ | {"GLIBC_TUNABLES": MALLOC}
    environment |= {} if options.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    environment |= {"OMP_NUM_THREADS": str(options.threads)} if options.threads else {}
    began = time.monotonic()
    if mode.program == "ours":
        result = ours(settings, environment, scratch / mode.name.replace(", ", "-"), deadline)
    else:
        command = [sys.executable, "-m", "bench.trainer.peers", json.dumps(settings)]
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=deadline - began
        )
        result = json.loads(done.stdout.strip().splitlines()[-1])
    first, *steps = result["seconds"]
    result |= {"first_step": round(first, 2), "steps": steps}
    result |= {key: statistics.median(result[key][1:]) for key in ("seconds", "cpu", "waits")}
    result["tokens_per_second"] = settings["tokens_per_step"] / result["seconds"]
    result["whole_run"] = round(time.monotonic() - began, 1)
    return result


def ours(settings: dict[str, Any], environment: dict[str, str], run: Path, deadline: float) -> dict[str, Any]:
    """Run a real training; return its steps from its metrics. A step's time has no evaluation and no checkpoint."""
    values = {
        "recipe": "modern" if settings["preset"].startswith("modern") else "gpt2",
        "model.preset": settings["preset"],
        "data.directory": settings["data"],
        "run.directory": run,
        "steps": settings["steps"],
        "sequence_length": settings["length"],
        "tokens_per_step": settings["tokens_per_step"],
        "micro_batch": settings["micro_batch"],
        "precision": settings["precision"],
        "compile": str(settings["compiled"]).lower(),
        "optimizer.learning_rate": 1e-4,
        "optimizer.warmup_steps": 0,
        "optimizer.schedule": "constant",
        "metrics.attention_statistics": False,
    }
    command = setup.train(values)
    clock = [0.0]
    with (
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        ended_at(process, deadline),
    ):
        said = []
        for line in process.stdout or ():
            said.append(line)
            if re.match(r"step=\d+ .*\bloss=", line):
                clock.append(setup.processor_seconds(process.pid))
    if process.returncode and time.monotonic() > deadline:
        raise subprocess.TimeoutExpired(command, 0)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, "".join(said), "")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "step_seconds" in line]
    return {
        "seconds": [line["step_seconds"] for line in steps],
        "cpu": [after - before for before, after in itertools.pairwise(clock)],
        "losses": [line["loss"] for line in steps],
        "waits": [line["data_seconds"] for line in steps],
        "memory": max(line["memory_bytes"] for line in steps),
    }


@contextlib.contextmanager
def ended_at(process: "subprocess.Popen[str]", deadline: float) -> Iterator[None]:
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    timer.start()
    yield
    timer.cancel()


if __name__ == "__main__":
    sys.exit(main())
