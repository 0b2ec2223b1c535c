"""Read a DeepSpeed JSON file, as in the tutorials, and translate it into our settings.

Optimizer, scheduler, clipping and precision become settings (schema.py), so they are checked, stored in each checkpoint
and kept when the engine changes. The section zero_optimization goes to DeepSpeed. Batch sizes follow from
tokens_per_step, micro_batch and the number of workers; the file may repeat them but not contradict them.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import values
from trainer.config.base import flat, nested
from trainer.config.paths import expanded
from trainer.files import read_text

AUTO = "auto"
"""Hugging Face's word for a value that the trainer provides."""
SETTINGS = {
    "optimizer.params.lr": "optimizer.learning_rate",
    "optimizer.params.eps": "optimizer.epsilon",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "scheduler.params.total_num_steps": "optimizer.schedule_steps",
    "scheduler.params.warmup_num_steps": "optimizer.warmup_steps",
    "scheduler.params.warmup_max_lr": "optimizer.learning_rate",
    "gradient_clipping": "optimizer.clip",
    "train_micro_batch_size_per_gpu": "micro_batch",
}
"""Keys of the file that are a setting, with the same values."""
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "optimizer.type": ("Adam", "AdamW"),
    "optimizer.params.adam_w_mode": (True,),
    "optimizer.params.bias_correction": (True,),
    "scheduler.type": ("WarmupDecayLR",),
    "scheduler.params.warmup_min_lr": (0,),
    "scheduler.params.warmup_type": ("log", "linear"),
    "zero_optimization.stage": (1, 2),
    "fp16.enabled": (True, False),
    "bf16.enabled": (True, False),
    "bfloat16.enabled": (True, False),
    "communication_data_type": ("fp32", "fp16", "bf16"),
}
"""Keys with the values of them that are followed."""
WARMUP_STEPS = 1000
"""DeepSpeed's, where the file says nothing (runtime/lr_schedules.py)."""
PASSED = re.compile(
    r"(zero_optimization|comms_logger|flops_profiler)\..+|wall_clock_breakdown|memory_breakdown|gradient_predivide_factor"
)
"""Goes to DeepSpeed unchanged: it does not change the result."""
UNUSED = re.compile(
    r"zero_optimization\.(stage3_|offload_param).*|(fp16|bf16|bfloat16|amp)\..+|steps_per_print"
    r"|zero_allow_untested_optimizer|gradient_accumulation_steps|optimizer\.params\.(torch_adam|fused)"
)
"""Has no effect here, and the log says so."""


@dataclass(frozen=True)
class Meaning:
    settings: dict[str, Any] = field(default_factory=dict)
    """By dotted key of schema.py."""
    sections: dict[str, Any] = field(default_factory=dict)
    """For deepspeed.initialize."""
    sequences_per_step: int | None = None
    """train_batch_size."""
    accumulation: int | None = None
    """gradient_accumulation_steps."""
    unused: list[str] = field(default_factory=list)
    """Keys without an effect."""


def display_path(given: str) -> str:
    """The name of the file in messages: its path, or `the file` if a stack passes its content."""
    return "the file" if given.startswith("{") else given


def read(given: str, problems: list[str], key: str = "engine.deepspeed_config") -> Meaning:
    """Translate the file at this path, or with this content; add what is wrong with it to `problems`."""
    name = f"{key}: {display_path(given)}"
    try:
        text = given if given.startswith("{") else read_text(Path(expanded(given)).resolve())
        document = json.loads(text, object_pairs_hook=values.unique_keys)
    except OSError as error:
        problems.append(f"{name}: cannot be read ({error.strerror}); give a JSON file that every worker can read")
        return Meaning()
    except (ValueError, RecursionError) as error:
        problems.append(f"{name}: not JSON: {error}")
        return Meaning()
    if not isinstance(document, dict):
        problems.append(f"{name}: holds {values.kind(document)}; a DeepSpeed file is an object")
        return Meaning()
    return _translated(document, name, problems)


def _translated(document: dict[str, Any], name: str, problems: list[str]) -> Meaning:
    settings: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    unused: list[str] = []

    def put(setting: str, value: Any) -> None:
        if settings.setdefault(setting, value) != value:
            both = f"{values.typed(settings[setting])} and {values.typed(value)}"
            problems.append(f"{name}: says {setting} twice: {both}; make them equal")

    written = flat(document)
    found: dict[str, Any] = {key: value for key, value in written.items() if value not in (AUTO, None)}
    if "scheduler.type" in found:
        found.setdefault("scheduler.params.warmup_type", "log")
        if "scheduler.params.warmup_num_steps" not in written:
            found["scheduler.params.warmup_num_steps"] = WARMUP_STEPS
    for key, value in found.items():
        allowed = SUPPORTED.get(key)
        if allowed and value not in allowed:
            instead = "; engine.name=fsdp shards the weights, too" if key == "zero_optimization.stage" else ""
            supported = ", ".join(map(values.typed, allowed))
            problems.append(f"{name}: {key} is {values.shown(value)}; supported: {supported}{instead}")
        elif key.startswith("scheduler.") and "scheduler.type" not in found:
            unused.append(key)  # its type is left to optimizer.schedule
        elif key in SETTINGS:
            put(SETTINGS[key], value)
        elif key == "optimizer.params.betas" and isinstance(value, list) and len(value) == 2:
            put("optimizer.beta1", value[0])
            put("optimizer.beta2", value[1])
        elif key == "scheduler.params.warmup_type":
            put("optimizer.schedule", f"warmup_decay_{value}")
        elif key == "zero_optimization.stage":
            put("engine.zero_stage", value)
        elif key == "communication_data_type":
            put("communication.compression", "none" if value == "fp32" else value)
        elif key.endswith("16.enabled") and value:
            put("precision", "fp16" if key.startswith("fp16") else "bf16")
        elif UNUSED.fullmatch(key):
            unused.append(key)
        elif PASSED.fullmatch(key):
            passed[key] = value
        elif not allowed and key != "train_batch_size":
            problems.append(f"{name}: {key}: {values.shown(value)} is not supported here; remove it")
    return Meaning(
        settings, nested(passed), found.get("train_batch_size"), found.get("gradient_accumulation_steps"), unused
    )
