"""From process start to the first step of GPT-2 124M: `python -m bench.trainer.startup`.

Wall and CPU seconds: of the imports, then of a real training until it has joined, evaluated and made its first step:
eager, compiled with an empty kernel cache, and compiled with the previous run's.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import page
from bench.trainer import setup

ALL = "import trainer.train.loop, trainer.tasks.pretrain"
IMPORTS = {
    "python": "pass",
    "torch": "import torch",
    "transformers' GPT-2, beside torch": "import torch; from transformers.models.gpt2 import modeling_gpt2",
    "all of the trainer": ALL,
    "all of the trainer, without garbage collection": f"import gc; gc.disable(); {ALL}",
}
MARKS = {
    "process joined": r"event=round",
    "model built, first evaluation": r"step=0 .*validation_loss=",
    "first step": r"step=1 ",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.startup", description=__doc__)
    parser.add_argument("--micro-batch", type=int, default=1)
    options = parser.parse_args()
    rows: list[tuple[object, ...]] = [
        (f"import: {name}", f"{wall:.1f}", f"{cpu:.1f}") for name, (wall, cpu) in imports().items()
    ]
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as scratch:
        folder = Path(scratch)
        data = setup.dataset(folder / "data")
        for name, compiled, cache in (
            ("eager", False, "none"),
            ("compiled, empty cache", True, "kernels"),
            ("compiled, cache of the run before", True, "kernels"),
        ):
            seconds, cpu = start(data, folder / name.replace(" ", "-"), folder / cache, compiled, options.micro_batch)
            rows += [(f"{name}: {mark}", f"{second:.1f}", None) for mark, second in seconds.items()]
            rows.append((f"{name}: whole process, one step, checkpoint", None, f"{cpu:.1f}"))
            print(*rows[-4:], sep="\n", flush=True)
    page.write(
        page.results() / "startup.md",
        "# From process start to the first step, GPT-2 124M",
        f"Written by `python -m bench.trainer.startup --micro-batch {options.micro_batch}`; bf16, sequence 1024, a "
        "step and an evaluation of one micro-batch each. Wall seconds since the process began; processor seconds.",
        page.describe("torch", "transformers"),
        page.table(("", "wall s", "CPU s"), rows),
    )


def imports() -> dict[str, tuple[float, float]]:
    """Measure each import twice, without the interpreter's end, which the trainer skips; keep the faster run, which
    finds the files in the page cache."""
    found: dict[str, tuple[float, float]] = {}
    for name, code in IMPORTS.items():
        runs = []
        for _ in range(2):
            cpu, began = setup.children_seconds(), time.monotonic()
            subprocess.run([sys.executable, "-c", f"import os; {code}; os._exit(0)"], check=True)
            runs.append((time.monotonic() - began, setup.children_seconds() - cpu))
        found[name] = min(runs)
    return found


def start(data: str, run: Path, cache: Path, compiled: bool, micro_batch: int) -> tuple[dict[str, float], float]:
    """Run a training; return the wall seconds until each mark, and the CPU seconds of the whole run."""
    values = {
        "data.directory": data,
        "run.directory": run,
        "steps": 1,
        "micro_batch": micro_batch,
        "tokens_per_step": 1024 * micro_batch,
        "precision": "bf16",
        "compile": compiled,
    }
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    cpu, began = setup.children_seconds(), time.monotonic()
    seconds: dict[str, float] = {}
    with subprocess.Popen(setup.train(values), env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            for mark, pattern in MARKS.items():
                if mark not in seconds and re.match(pattern, line):
                    seconds[mark] = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"the training ended with {process.returncode}")
    return seconds, setup.children_seconds() - cpu


if __name__ == "__main__":
    main()
