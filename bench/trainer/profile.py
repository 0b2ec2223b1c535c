"""What a step's time on the device goes into: `python -m bench.trainer.profile --device cuda`.

A short training with metrics.profile set; its trace (for chrome://tracing or Perfetto) is put beside the page, and read
for a table of the kernels that take most, and of how long the device had nothing to do. On a processor, with `--tiny`,
the operators stand for the kernels.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench import page
from bench.machine import describe, results
from bench.trainer import text
from bench.trainer.speed import accelerator
from trainer.train import profiler

ROWS = 30
FIRST, LAST = 6, 8
"""Steps that are traced: by then everything is compiled and all memory is there."""
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.profile", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="rehearse with a tiny model")
    parser.add_argument("--preset", default="small", help="size of the model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as scratch:
        trace = train(options, Path(scratch))
        kept = results(options.tiny) / f"profile_{options.device}.trace.json.gz"
        kept.parent.mkdir(exist_ok=True)
        shutil.copyfile(trace, kept)
        events = read(trace)
    lines = [
        "# Where a step's time goes",
        "",
        f"Written by `python -m bench.trainer.profile --device {options.device}`. GPT-2 "
        f"{'tiny' if options.tiny else options.preset}, bf16, steps {FIRST} to {LAST} of a training.",
        "",
        describe("torch", "transformers") + accelerator(options.device),
        "",
        *table(events),
    ]
    page.write(results(options.tiny) / f"profile_{options.device}.md", "\n".join(lines))
    print("\n".join(lines))
    print(f"== the trace is {kept} ({kept.stat().st_size / 1e6:.1f} MB; commit the page alone)")
    return 0


def train(options: argparse.Namespace, scratch: Path) -> Path:
    """Train, and return the trace. Raises CalledProcessError when the training fails."""
    run = scratch / "run"
    tiny = options.tiny
    values = {
        "model.preset": "tiny" if tiny else options.preset,
        "data.directory": text.dataset(scratch / "data"),
        "run.directory": run,
        "train.steps": LAST + 1,
        "train.sequence_length": 64 if tiny else 1024,
        "train.tokens_per_step": 256 if tiny else 2**17,
        "train.micro_batch": 2 if tiny else 32,
        "train.precision": "bf16",
        "train.compile": str(options.device == "cuda").lower(),
        "evaluation.every": 0,
        "evaluation.batches": 1,
        "evaluation.sample_tokens": 0,
        "checkpoint.every_steps": 0,
        "checkpoint.every_minutes": 0,
        "metrics.every": 100,
        "metrics.tensorboard": False,
        "metrics.profile": f"{FIRST}:{LAST}",
    }
    command = [sys.executable, "-m", "trainer.train", *(f"{key}={value}" for key, value in values.items())]
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {})
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    [trace] = (run / profiler.FOLDER).glob("*.json.gz")
    return trace


def read(path: Path) -> list[dict[str, Any]]:
    """The trace's events that have a duration."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    return [event for event in document["traceEvents"] if event.get("ph") == "X"]


def table(events: list[dict[str, Any]]) -> list[str]:
    """Kernels by the time they take, of the time from the first one's start to the last one's end."""
    kernels = [event for event in events if event.get("cat") in KERNELS]
    what = "kernel" if kernels else "operator (nested ones count twice)"
    kernels = kernels or [event for event in events if event.get("cat") == "cpu_op"]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in kernels)
    begin, end = spans[0][0], max(last for _, last in spans)
    busy, reached = 0.0, begin
    for first, last in spans:
        busy += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    total, count = defaultdict[str, float](float), defaultdict[str, int](int)
    for event in kernels:
        total[event["name"]] += event["dur"]
        count[event["name"]] += 1
    span = end - begin
    lines = [
        f"{span / 1e3:.1f} ms from the first {what.split()[0]} to the end of the last, {100 * busy / span:.1f} % of it "
        f"busy, {100 * (1 - busy / span):.1f} % with nothing to do.",
        "",
        f"| {what} | times | ms | of the time |",
        "|---|---|---|---|",
    ]
    for name, duration in sorted(total.items(), key=lambda item: -item[1])[:ROWS]:
        short = name.replace("|", "/").replace("\n", " ")[:110]
        lines.append(f"| {short} | {count[name]} | {duration / 1e3:.2f} | {100 * duration / span:.1f} % |")
    print(f"== device busy {100 * busy / span:.1f} % of the time")
    return lines


if __name__ == "__main__":
    sys.exit(main())
