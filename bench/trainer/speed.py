"""Tokens/s of GPT-2 124M, ours and others', in one run on one machine: `python -m bench.trainer.speed`.

Ours is the whole `python -m trainer.train` on the sample text, read from its metrics; peers.py runs the others. Each
mode is a process of its own. A step is 4096 tokens (2^19 on an accelerator), as four micro-batches of one window or one
of four. A figure is the median of the steps after the first. `--only` measures some modes; bench/results/ keeps the
figures of all, and the table shows them.

On a shared machine compare CPU seconds, not wall seconds. On an accelerator, modes not yet measured on this machine run
first, so the next run completes one that was ended. `--tiny` rehearses each program with a model that takes no minute,
on a page of its own. A mode that fails keeps its old figure, and is told on the terminal.
"""

import dataclasses
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import page
from bench.trainer import setup
from bench.trainer.peers import BIASED
from trainer.config.memory import of_preset
from trainer.config.settings import Config
from trainer.config.speed import flops_per_token, peak_of

PEERS = ("loop", "nanoGPT", BIASED, "Trainer")
MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=68719476736"
"""What processor.keep_memory does in a worker, for all programs alike."""
COLUMNS = ("model", "precision", "windows", "program", "mode", "tokens/s", "s/step", "of steps", "CPU s/step")
COLUMNS += ("MFU", "GB", "wait, ms", "first step, s", "day")
ABOUT = (
    "Whole optimizer steps of 4,096 tokens, on an accelerator of 524,288, in windows of 1024 of so many a pass: the "
    "median of the steps after the first; beside it their number, the fastest and the slowest. ours: `python -m "
    "trainer.train`. loop: a plain loop over transformers' model. nanoGPT: its model in that loop, which has no "
    "biases; with biases: as GPT-2 has them. Trainer: transformers' Trainer. Freed memory stays with each process, as "
    "the launcher sets it. MFU counts the FLOPs of the products (PaLM, appendix B) in relation to the device's data "
    "sheet (trainer/config/peaks.yaml). wait: host milliseconds of a step in which batches were fetched, beside or "
    "before the device's work. Compare within one day: figures of shared machines move by tens of per cent from hour "
    "to hour."
)


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


def modes(accelerator: bool, tiny: bool) -> list[Mode]:
    """List all modes in order, on an accelerator from the one that says most: ours and its best peer, a larger
    micro-batch, the other peers, a larger model, eager mode."""
    if tiny:  # nothing is compiled: that takes a processor half a minute each time
        small = [Mode(each, "bf16", False, 2, preset="tiny") for each in ("ours", *PEERS)]
        return [*small, dataclasses.replace(small[0], preset="modern-micro")]
    if accelerator:
        ours, loop, nano, biased, trainer = (Mode(each, "bf16", True, 32) for each in ("ours", *PEERS))
        modern = dataclasses.replace(ours, preset="modern-small")
        larger = [dataclasses.replace(each, preset="medium") for each in (ours, nano)]
        wide, eager = dataclasses.replace(ours, micro_batch=64), dataclasses.replace(ours, compiled=False)
        return [ours, nano, biased, modern, wide, loop, trainer, *larger, eager]
    return [
        Mode(program, precision, compiled, micro_batch)
        for precision in ("bf16", "fp32")
        for micro_batch in (1, 4)
        for program in ("ours", "loop", "Trainer")
        for compiled in (True, False)
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = setup.parser("speed", __doc__)
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="modes whose name has all words, such as 'ours bf16'"
    )
    options = parser.parse_args(arguments)
    known = modes(options.device == "cuda", options.tiny)
    words = options.only.replace(",", " ").split()
    chosen = [mode for mode in known if all(word in mode.name for word in words)]
    if not chosen:
        parser.error("--only: no mode has these words; the modes:\n" + "\n".join(mode.name for mode in known))
    if find_spec("accelerate") is None:  # bench.gpu says so
        chosen = [mode for mode in chosen if mode.program != "Trainer"]
    file = page.results(options.tiny) / f"speed_{options.device}.json"
    figures: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    machine, failed = page.describe("torch", "transformers") + setup.accelerator(options.device), False
    if options.device == "cuda" and not words:
        chosen.sort(key=lambda mode: figures.get(mode.name, {}).get("machine") == machine)
    with tempfile.TemporaryDirectory(prefix="bench-speed-") as scratch:
        folder = Path(scratch) / "data"
        data = setup.dataset(folder, characters=60_000) if options.tiny else setup.dataset(folder)
        for mode in chosen:
            try:
                found = measure(mode, options.device, options.tiny, data, Path(scratch))
            except subprocess.CalledProcessError as error:
                print(f"{error.stdout[-1500:]}\n{error.stderr[-3000:]}\n{mode.name}: failed", flush=True)
                failed = True
                continue
            figures[mode.name] = found | dataclasses.asdict(mode) | {"machine": machine}
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
            page.write(file.with_suffix(".md"), *parts(figures, setup.command("speed", options)))
            print(f"{mode.name}: {found['tokens_per_second']:.0f} tokens/s, {found['cpu']:.1f} CPU s/step", flush=True)
    return int(failed)


def measure(mode: Mode, device: str, tiny: bool, data: str, scratch: Path) -> dict[str, Any]:
    """Measure a mode. Raises CalledProcessError where its process fails."""
    cpu = device == "cpu"
    settings = {
        "length": 16 if tiny else 1024,
        "tokens_per_step": 64 if tiny else 4096 if cpu else 2**19,
        "steps": 2 if tiny else 8 if not cpu else 3 if mode.precision == "fp32" else 4,
        "device": device,
        "data": data,
        "scratch": str(scratch / "trainer"),
    } | dataclasses.asdict(mode)
    environment = os.environ | {"GLIBC_TUNABLES": MALLOC} | ({"CUDA_VISIBLE_DEVICES": ""} if cpu else {})
    began = time.monotonic()
    if mode.program == "ours":
        result = ours(settings, environment, scratch / mode.name.replace(", ", "-"))
    else:
        command = [sys.executable, "-m", "bench.trainer.peers", json.dumps(settings)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        result = json.loads(done.stdout.strip().splitlines()[-1])
    first, *steps = result["seconds"]
    result |= {"first_step": round(first, 2), "steps": steps}
    result |= {key: statistics.median(result[key][1:]) for key in ("seconds", "cpu", "waits")}
    result["tokens_per_second"] = settings["tokens_per_step"] / result["seconds"]
    result["whole_run"] = round(time.monotonic() - began, 1)
    return result


def ours(settings: dict[str, Any], environment: dict[str, str], run: Path) -> dict[str, Any]:
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
    printed = setup.train(values, environment)
    clock = [0.0, *(seconds for line, seconds in printed if re.match(r"step=\d+ .*\bloss=", line))]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "step_seconds" in line]
    return {
        "seconds": [line["step_seconds"] for line in steps],
        "cpu": [after - before for before, after in itertools.pairwise(clock)],
        "losses": [line["loss"] for line in steps],
        "waits": [line["data_seconds"] for line in steps],
        "memory": max(line["memory_bytes"] for line in steps),
    }


def parts(figures: dict[str, Any], command: str) -> list[str | list[str]]:
    order = sorted(figures.values(), key=lambda f: (f["preset"], f["precision"], f["micro_batch"], f["seconds"]))
    machines = sorted({figure["machine"] for figure in order})
    rows = (
        [
            *(figure[key] for key in ("preset", "precision", "micro_batch", "program")),
            _how(figure),
            f"{figure['tokens_per_second']:,.0f}",
            f"{figure['seconds']:.2f}",
            f"{len(figure['steps'])}: {min(figure['steps']):.2f} to {max(figure['steps']):.2f}",
            f"{figure['cpu']:.2f}",
            _mfu(figure),
            f"{figure['memory'] / 1e9:.1f}" if "memory" in figure else None,
            f"{1e3 * figure['waits']:.1f}" if "waits" in figure else None,
            figure["first_step"],
            figure["machine"][:10],
        ]
        for figure in order
    )
    ratios = (row for machine in machines for row in compared([f for f in order if f["machine"] == machine]))
    return [
        "# Training speed of GPT-2, ours and others'",
        f"{command}. {ABOUT}",
        [f"- {machine}" for machine in machines],
        page.table(COLUMNS, rows),
        page.table(("time of a token on one day, best peer / ours", "wall", "CPU"), ratios),
    ]


def compared(figures: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield the ratio of the best peer's time of a token and ours, by the clock and in CPU seconds, for each model and
    precision. A model's steps have as many tokens for all."""
    for preset, precision in dict.fromkeys((figure["preset"], figure["precision"]) for figure in figures):
        alike = [each for each in figures if (each["preset"], each["precision"]) == (preset, precision)]
        own, peers = ([f for f in alike if (f["program"] == "ours") is mine] for mine in (True, False))
        if own and peers:
            best, peer = (min(each, key=lambda figure: figure["seconds"]) for each in (own, peers))
            wall, cpu = (f"{peer[clock] / best[clock]:.2f}" for clock in ("seconds", "cpu"))
            yield f"{preset}, {precision}: {peer['program']} {_how(peer)}", wall, cpu


def _how(figure: dict[str, Any]) -> str:
    return "compiled" if figure["compiled"] else "eager"


def _mfu(figure: dict[str, Any]) -> str | None:
    """None without an accelerator, or with one of which no data sheet is known."""
    device = figure["machine"].rpartition("; ")[2].partition(", CUDA")
    peak = peak_of(device[0]) if device[1] else None
    flops = flops_per_token(of_preset(figure["preset"]), Config())  # forward and backward, in a window of 1024
    return f"{figure['tokens_per_second'] * flops / peak:.3f}" if peak else None


if __name__ == "__main__":
    sys.exit(main())
