"""LoRA steps of a Llama with the shape of a 0.5B model, ours against peft with transformers' Trainer:
`python -m bench.trainer.lora`.

Random weights of Qwen2.5-0.5B's shape (arXiv 2412.15115, table 1) in bf16, an adapter of rank 16 beside each linear
layer, AdamW at a constant rate, clipping at 1, random tokens. Each way is a process of its own. The processes make one
step each in turn, so that other load on the machine affects all of them alike. Memory is a process's peak in a step,
weights included.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import page
from bench.trainer import setup
from trainer.launch import MALLOC

WAYS = {
    "ours, eager": {"program": "ours", "compiled": False},
    "ours, compiled": {"program": "ours", "compiled": True},
    "Trainer, eager": {"program": "Trainer", "compiled": False},
    "Trainer, compiled": {"program": "Trainer", "compiled": True},
    "Trainer, base in fp32": {"program": "Trainer", "compiled": False, "base": "float32"},
    "Trainer, base in fp32, compiled": {"program": "Trainer", "compiled": True, "base": "float32"},
}
SHAPE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
GOAL = 1.1
COLUMNS = ("program", "tokens/s", "s/step", "CPU s/step", "first step, s", "most memory, GB", "loss of step 1")


def main() -> int:
    parser = setup.parser("lora", __doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=512, help="tokens in a window")
    parser.add_argument("--windows", type=int, default=2, help="windows in a step, all in one pass")
    parser.add_argument("--steps", type=int, default=6, help="steps of each program; the first is not measured")
    words = "programs whose name has one of these words; the default fits into 24 GiB"
    parser.add_argument("--only", default="ours,compiled,fp32", help=words)
    options = parser.parse_args()
    options.threads = options.threads or len(os.sched_getaffinity(0))
    if options.steps < 2:
        parser.error(f"--steps: {options.steps}; at least 2, because the first is not measured")
    if options.tiny:
        options.layers, options.length, options.steps = 2, 64, 3
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "GLIBC_TUNABLES": MALLOC}
    environment |= {} if options.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory(prefix="bench-lora-") as scratch:
        mode = {**vars(options), "scratch": scratch, "base": "bfloat16"}
        save_base(mode, Path(scratch) / "base")
        ways = {
            name: subprocess.Popen(
                [sys.executable, "-m", "bench.trainer.lora", "--way", json.dumps(mode | way)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, way in WAYS.items()
            if any(word in name for word in options.only.split(","))
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(options.steps):
            for name, process in ways.items():
                found[name].append(one_step(name, process))
        for process in ways.values():
            process.kill()
    print(write(found, options))
    return 0


def one_step(name: str, process: "subprocess.Popen[str]") -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("step\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith('{"seconds"'):
            print(name, line.strip(), flush=True)
            return json.loads(line)
    raise SystemExit(f"{name}: ended before its step")


def write(found: dict[str, list[dict[str, float]]], options: Any) -> str:
    """Write the page after all steps: an interrupted run leaves the old page."""
    count, clocks = options.length * options.windows, ("seconds", "cpu", "memory")
    middle = {
        name: [statistics.median(step[key] for step in steps[1:]) for key in clocks[:2]]
        + [max(step["memory"] for step in steps)]
        for name, steps in found.items()
    }
    rows = []
    for name, (seconds, cpu, memory) in sorted(middle.items(), key=lambda pair: pair[1][1]):
        first = found[name][0]
        figures = (f"{count / seconds:.0f}", f"{seconds:.2f}", f"{cpu:.2f}", f"{first['seconds']:.0f}")
        rows.append((name, *figures, f"{memory / 1e9:.2f}", f"{first['loss']:.3f}"))
    sides = [[each for name, each in middle.items() if name.startswith(side)] for side in ("ours", "Trainer")]
    compared: list[str] = []
    if all(sides):
        ours, theirs = (list(map(min, zip(*side, strict=True))) for side in sides)
        ratios = (f"{b / a:.2f}" for a, b in zip(ours, theirs, strict=True))
        columns = ("comparison", "wall", "CPU", "memory", "goal (time)")
        compared = page.table(columns, [("best Trainer / best of ours", *ratios, GOAL)])
    return page.write(
        page.results(options.tiny) / ("lora.md" if options.device == "cpu" else "lora_cuda.md"),
        f"# LoRA on a Llama of 0.5B's shape, {options.layers} layers, sequence {options.length}",
        f"{setup.command('lora', options)}: bf16, rank 16 beside every linear layer, steps of {count:,} tokens in one "
        f"pass, {options.threads} threads; medians of {options.steps - 1} steps that the ways made in turn. Compare "
        "within this page only.",
        f"- {page.describe('torch', 'transformers', 'peft', 'accelerate')}{setup.accelerator(options.device)}",
        page.table(COLUMNS, rows),
        compared,
    )


def save_base(mode: dict[str, Any], folder: Path) -> None:
    import torch
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    small: dict[str, Any] = {"vocab_size": 1000, "hidden_size": 112, "intermediate_size": 300} if mode["tiny"] else {}
    torch.manual_seed(1337)
    net = LlamaForCausalLM(LlamaConfig(num_hidden_layers=mode["layers"], **(SHAPE | small))).bfloat16()
    net.save_pretrained(folder)


class Clock:
    """Waits for the parent's signal before each step, and reports the step's cost to it."""

    def begin(self) -> None:
        if not sys.stdin.readline():
            sys.exit()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the peak resident size (proc(5))
        self._began = time.perf_counter(), time.process_time()

    def end(self, loss: float) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        memory = 1024 * int(status["VmHWM"].split()[0])
        if torch.cuda.is_available():
            memory = torch.cuda.max_memory_allocated()
        print(json.dumps({"seconds": seconds, "cpu": cpu, "memory": memory, "loss": loss}), flush=True)


def tokens(mode: dict[str, Any], step: int) -> Any:
    import torch

    words = 1000 if mode["tiny"] else SHAPE["vocab_size"]
    drawn = torch.Generator().manual_seed(step)
    return torch.randint(words, (mode["windows"], mode["length"] + 1), generator=drawn)


def ours(mode: dict[str, Any]) -> None:
    """Make the steps with the training loop's engine."""
    import torch

    from trainer.config.schema import load
    from trainer.models import adapters, networks
    from trainer.parallel.world import World
    from trainer.train.loop import build_engine

    base = f"{mode['scratch']}/base"
    settings = {"data.directory": "/none", "run.directory": "/none", "model.name": base, "adapter.kind": "lora"}
    config = load([f"{key}={value}" for key, value in settings.items()])
    world = World(rank=0, size=1, local_rank=0, round=1, device=torch.device(mode["device"]))
    net = networks.load(base, 1000, mode["length"], None, dtype="auto")
    adapters.Adapter(net, config)
    module = networks.module(net)
    adapters.hold_frozen(net, torch.bfloat16)
    module.to(world.device)
    if mode["compiled"]:
        module.compile()
    count = mode["windows"] * mode["length"]
    work = setup.work(net, module, count, mode["windows"])
    engine, clock = build_engine(work, config, world, torch.bfloat16), Clock()
    for step in range(mode["steps"]):
        clock.begin()
        drawn = tokens(mode, step).to(world.device)
        total = engine.accumulate((drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()), 1.0, last=True)
        engine.step(2e-4, step + 1)
        clock.end(float(total) / count)


def trainer(mode: dict[str, Any]) -> None:
    """Make the steps with peft's model in transformers' Trainer, as in their documentation."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    net = AutoModelForCausalLM.from_pretrained(f"{mode['scratch']}/base", dtype=getattr(torch, mode["base"]))
    net.config.use_cache = False
    model = get_peft_model(net, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    rows = [{"input_ids": row[:-1], "labels": row[:-1]} for step in range(mode["steps"]) for row in tokens(mode, step)]
    clock = Clock()

    class Turns(TrainerCallback):
        def on_step_begin(self, *given: Any, **options: Any) -> None:
            clock.begin()

        def on_step_end(self, *given: Any, **options: Any) -> None:
            clock.end(losses[-1])

    losses: list[float] = []

    class Watched(Trainer):
        def compute_loss(self, *given: Any, **options: Any) -> Any:
            loss: Any = super().compute_loss(*given, **options)
            losses.append(float(loss.detach()))
            return loss

    arguments = TrainingArguments(
        output_dir=f"{mode['scratch']}/{os.getpid()}",
        per_device_train_batch_size=mode["windows"],
        max_steps=mode["steps"],
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=True,
        torch_compile=mode["compiled"],
        use_cpu=mode["device"] == "cpu",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=1337,
    )
    Watched(model, arguments, train_dataset=rows, callbacks=[Turns()]).train()  # pyrefly: ignore[bad-argument-type]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        chosen = json.loads(sys.argv[2])
        {"ours": ours, "Trainer": trainer}[chosen["program"]](chosen)
    else:
        sys.exit(main())
