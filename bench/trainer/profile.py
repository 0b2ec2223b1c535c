"""Where a step's time on the device goes: `python -m bench.trainer.profile --device cuda`.

Runs a short training with metrics.profile set and stores its trace (for chrome://tracing or Perfetto) beside the page.
The page lists the kernels that take most time, and how long the device was idle. On a CPU, with `--tiny`, it lists
operators instead of kernels.
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
from bench.trainer import setup
from trainer.train import profiler

ROWS = 30
FIRST, LAST = 6, 8
"""The traced steps. By then everything is compiled and all memory is allocated."""
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def main() -> int:
    parser = setup.parser("profile", __doc__, device="cuda")
    parser.add_argument("--preset", default="small", help="size of the model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as scratch:
        trace = train(options, Path(scratch))
        kept = page.results(options.tiny) / f"profile_{options.device}.trace.json.gz"
        kept.parent.mkdir(exist_ok=True)
        shutil.copyfile(trace, kept)
        events = read(trace)
    text = page.write(
        page.results(options.tiny) / f"profile_{options.device}.md",
        "# Where a step's time goes",
        f"{setup.command('profile', options)}. GPT-2 "
        f"{'tiny' if options.tiny else options.preset}, bf16, steps {FIRST} to {LAST} of a training.",
        page.describe("torch", "transformers") + setup.accelerator(options.device),
        table(events),
    )
    print(text)
    print(f"== the trace is {kept} ({kept.stat().st_size / 1e6:.1f} MB; commit the page alone)")
    return 0


def train(options: argparse.Namespace, scratch: Path) -> Path:
    """Train and return the trace. Raises CalledProcessError if the training fails."""
    run = scratch / "run"
    tiny = options.tiny
    values = {
        "model.preset": "tiny" if tiny else options.preset,
        "data.directory": setup.dataset(scratch / "data"),
        "run.directory": run,
        "steps": LAST + 1,
        "sequence_length": 64 if tiny else 1024,
        "tokens_per_step": 256 if tiny else 2**17,
        "micro_batch": 2 if tiny else 32,
        "precision": "bf16",
        "compile": str(options.device == "cuda").lower(),
        "metrics.every": 100,
        "metrics.profile": f"{FIRST}:{LAST}",
    }
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {})
    subprocess.run(setup.train(values), check=True, env=environment, stdout=sys.stderr)
    [trace] = (run / profiler.FOLDER).glob("*.json.gz")
    return trace


def read(path: Path) -> list[dict[str, Any]]:
    """Read the trace's events that have a duration."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    return [event for event in document["traceEvents"] if event.get("ph") == "X"]


def table(events: list[dict[str, Any]]) -> list[str]:
    """List kernels by their share of the time from the start of the first kernel to the end of the last."""
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
    most = sorted(total.items(), key=lambda item: -item[1])[:ROWS]
    rows = [(_short(name), count[name], f"{time / 1e3:.2f}", f"{100 * time / span:.1f} %") for name, time in most]
    print(f"== device busy {100 * busy / span:.1f} % of the time")
    return [
        f"{span / 1e3:.1f} ms from the first {what.split()[0]} to the end of the last, {100 * busy / span:.1f} % of it "
        f"busy, {100 * (1 - busy / span):.1f} % with nothing to do.",
        "",
        *page.table((what, "times", "ms", "of the time"), rows),
    ]


def _short(name: str) -> str:
    return name.replace("|", "/").replace("\n", " ")[:110]


if __name__ == "__main__":
    sys.exit(main())
