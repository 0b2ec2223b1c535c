"""What each way to exchange gradients costs between this machine's GPUs: `python -m bench.trainer.exchange`.

Each way is a real training, `python -m trainer.launch --standalone` with a worker for each GPU: GPT-2 124M in bf16, in
steps of one pass of 32 windows a worker, where an exchange shows most. DDP under both NCCL engines of torch 2.15, in
bf16 and in fp32; DeepSpeed's ZeRO-1 as the trainer sets it up, and in the two forms that overlap. A figure is the
median of the steps after the second. `--tiny` rehearses it on two processes of a CPU.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import page
from bench.trainer import setup
from bench.trainer.speed import reason
from trainer.elastic import nccl

STEPS, SECONDS = 10, 120
"""Steps of each way, and how long one may take."""


@dataclass(frozen=True)
class Way:
    name: str
    settings: dict[str, Any]
    """Of the training: what a stack has under `training`."""
    environment: dict[str, str] = field(default_factory=dict)
    zero: dict[str, bool] = field(default_factory=dict)
    """Keys of zero_optimization, for a DeepSpeed file."""


NEWER = {nccl.ENGINE: "1"}
ZERO = {"engine.name": "deepspeed", "engine.zero_stage": 1}
WAYS = (
    Way("ddp, bf16", {"communication.compression": "bf16"}),
    Way("ddp, fp32", {"communication.compression": "none"}),
    Way("ddp, bf16, ProcessGroupNCCL2", {"communication.compression": "bf16"}, NEWER),
    Way("ddp, fp32, ProcessGroupNCCL2", {"communication.compression": "none"}, NEWER),
    Way("ZeRO-1", ZERO),
    Way("ZeRO-1, overlap", ZERO, zero={"overlap_comm": True, "use_multi_rank_bucket_allreduce": False}),
    Way("ZeRO-1, overlap, all-reduce", ZERO, zero={"overlap_comm": True, "use_multi_rank_bucket_allreduce": True}),
)
"""The first is the trainer's default between accelerators."""


def main(arguments: list[str] | None = None) -> int:
    parser = setup.parser("exchange", __doc__, device="cuda")
    parser.add_argument("--only", default="", metavar="WORDS", help="ways whose name has all words, such as 'ZeRO'")
    options = parser.parse_args(arguments)
    workers = 2 if options.device == "cpu" else _devices()
    if workers < 2:
        print(f"two GPUs are needed to exchange anything; this machine has {workers}")
        return 0
    chosen = [way for way in WAYS if all(word in way.name for word in options.only.split())]
    if find_spec("deepspeed") is None:
        chosen = [way for way in chosen if way.settings.get("engine.name") != "deepspeed"]
    file = page.results(options.tiny) / f"exchange_{options.device}.md"
    machine = f"{workers} x {page.describe('torch')}{setup.accelerator(options.device)}"
    found: dict[str, tuple[float, float] | str] = {}
    with tempfile.TemporaryDirectory(prefix="bench-exchange-") as scratch:
        data = setup.dataset(Path(scratch) / "data", characters=60_000 if options.tiny else 600_000)
        for number, way in enumerate(chosen):
            found[way.name] = result = measure(way, workers, options.tiny, data, Path(scratch) / str(number))
            told = (
                result if isinstance(result, str) else f"{1e3 * result[0]:.1f} ms a step, {1e3 * result[1]:.1f} exposed"
            )
            print(f"{way.name}: {told}", flush=True)
            rows = ((name, *_cells(figures)) for name, figures in found.items())
            table = page.table(("way", "step, ms", "exposed exchange, ms"), rows)
            page.write(file, "# The exchange between GPUs", setup.command("exchange", options), machine, table)
    return int(any(isinstance(result, str) for result in found.values()))


def measure(way: Way, workers: int, tiny: bool, data: str, folder: Path) -> tuple[float, float] | str:
    """Return the seconds of a step and of its exposed exchange, or in a line why there are none."""
    windows, length = (2, 16) if tiny else (32, 1024)
    values = {
        "data.directory": data,
        "run.directory": folder / "run",
        "model.preset": "tiny" if tiny else "small",
        "steps": 4 if tiny else STEPS,
        "sequence_length": length,
        "micro_batch": windows,
        "tokens_per_step": workers * windows * length,
        "precision": "bf16",
        "compile": str(not tiny).lower(),
        "metrics.attention_statistics": False,
    } | way.settings
    folder.mkdir()
    if way.zero:
        path = folder / "deepspeed.json"
        path.write_text(json.dumps({"zero_optimization": {"stage": 1, **way.zero}}), "utf-8")
        values["engine.deepspeed_config"] = path
    launch = [sys.executable, "-m", "trainer.launch", "--standalone", "--nproc-per-node", str(workers), "--"]
    environment = os.environ | way.environment | ({"CUDA_VISIBLE_DEVICES": ""} if tiny else {})
    try:
        subprocess.run(
            [*launch, *setup.train(values)[3:]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return f"failed: not done after {SECONDS} s"
    except subprocess.CalledProcessError as error:
        return f"failed: {reason(error)}"
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "step_seconds" in line][2:]
    step, exposed = (statistics.median(line[f"{key}_seconds"] for line in steps) for key in ("step", "communication"))
    return step, exposed


def _cells(result: tuple[float, float] | str) -> tuple[str, str]:
    return (result, "") if isinstance(result, str) else (f"{1e3 * result[0]:.1f}", f"{1e3 * result[1]:.1f}")


def _devices() -> int:
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    sys.exit(main())
