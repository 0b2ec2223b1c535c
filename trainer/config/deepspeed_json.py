"""Read a DeepSpeed JSON file, as in the tutorials, and translate it into our settings.

Optimizer, scheduler, clipping and precision become settings (schema.py), so they are checked, stored in each checkpoint
and kept when the engine changes. The section zero_optimization goes to DeepSpeed. Batch sizes follow from
tokens_per_step, micro_batch and the number of workers; the file may repeat them but not contradict them.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import values
from trainer.config.paths import expanded
from trainer.files import read_text

AUTO = "auto"
"""Hugging Face's word for a value that the trainer provides."""
PASSED = ("wall_clock_breakdown", "comms_logger", "flops_profiler", "memory_breakdown", "gradient_predivide_factor")
"""Sections passed to DeepSpeed unchanged: they do not change the result."""
IGNORED = {
    "steps_per_print": "metrics.every says when to log",
    "zero_allow_untested_optimizer": "the optimizer is ours",
    "gradient_accumulation_steps": "it follows from tokens_per_step and the number of workers",
    "amp": "precision says it",
}
DEPRECATED = {
    "cpu_offload": ("offload_optimizer", {"device": "cpu"}),
    "cpu_offload_params": ("offload_param", {"device": "cpu"}),
    "cpu_offload_use_pin_memory": ("offload_optimizer", {"device": "cpu", "pin_memory": True}),
}
"""Keys of zero_optimization that DeepSpeed has replaced -> the new key, and its value for `true`."""

SAID = ("optimizer.", "engine.zero_stage", "micro_batch", "precision", "communication.compression")
"""Beginnings of the settings that a file may give."""


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
    warnings: list[str] = field(default_factory=list)


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
    reader = _Reader(name, problems)
    return reader.meaning(document)


class _Reader:
    def __init__(self, name: str, problems: list[str]) -> None:
        self._name, self._problems = name, problems
        self._settings: dict[str, Any] = {}
        self._warnings: list[str] = []

    def meaning(self, document: dict[str, Any]) -> Meaning:
        document = _given(document)
        self._optimizer(self._parts("optimizer", document.pop("optimizer", {})))
        self._scheduler(self._parts("scheduler", document.pop("scheduler", {})))
        zero = self._section("zero_optimization", document.pop("zero_optimization", {}))
        sections = {"zero_optimization": self._zero(zero)}
        self._precision(document)
        self._set("optimizer.clip", document.pop("gradient_clipping", None))
        self._set("micro_batch", document.pop("train_micro_batch_size_per_gpu", None))
        sequences = document.pop("train_batch_size", None)
        accumulation = document.get("gradient_accumulation_steps")
        exchange = document.pop("communication_data_type", None)
        if exchange is not None:
            self._set("communication.compression", "none" if exchange == "fp32" else exchange)
        for key, value in document.items():
            if key in PASSED:
                sections[key] = value
            elif key in IGNORED:
                self._warnings.append(f"{key} is not used: {IGNORED[key]}")
            else:
                self._problem(f"{key} is not supported here; remove it")
        return Meaning(self._settings, sections, sequences, accumulation, self._warnings)

    def _optimizer(self, section: dict[str, Any]) -> None:
        if not section:
            return
        if section.get("type") not in ("Adam", "AdamW", AUTO):
            self._problem(f"optimizer.type is {values.shown(section.get('type'))}; AdamW is supported")
        params = self._section("optimizer.params", section.get("params", {}))
        self._set("optimizer.learning_rate", params.pop("lr", None))
        betas = params.pop("betas", [None, None])
        if isinstance(betas, list) and len(betas) == 2:
            self._set("optimizer.beta1", betas[0])
            self._set("optimizer.beta2", betas[1])
        else:
            self._problem(f"optimizer.params.betas is {json.dumps(betas)}; give two numbers, such as [0.9, 0.95]")
        self._set("optimizer.epsilon", params.pop("eps", None))
        self._set("optimizer.weight_decay", params.pop("weight_decay", None))
        if params.pop("adam_w_mode", True) is False:
            self._problem("optimizer.params.adam_w_mode is false; decoupled weight decay (true) is supported")
        if params.pop("bias_correction", True) is False:
            self._problem("optimizer.params.bias_correction is false; Adam with it (true) is supported")
        self._unused("optimizer.params", params, ("torch_adam", "fused"), IGNORED["zero_allow_untested_optimizer"])
        for key in params:
            self._problem(f"optimizer.params.{key} is not supported; remove it")

    def _scheduler(self, section: dict[str, Any]) -> None:
        if not section:
            return
        if section.get("type") == AUTO:
            params = self._section("scheduler.params", section.get("params", {}))
            self._unused(
                "scheduler.params", params, tuple(params), "scheduler.type is auto: optimizer.schedule says it"
            )
            return
        if section.get("type") != "WarmupDecayLR":
            self._problem(
                f"scheduler.type is {values.shown(section.get('type'))}; WarmupDecayLR is supported, others through "
                "optimizer.schedule"
            )
            return
        written, params = section.get("params"), self._section("scheduler.params", section.get("params", {}))
        kind = params.pop("warmup_type", "log")  # DeepSpeed takes auto for log, too
        self._set("optimizer.schedule", f"warmup_decay_{kind}")
        self._set("optimizer.schedule_steps", params.pop("total_num_steps", None))
        ours = isinstance(written, dict) and written.get("warmup_num_steps") == AUTO
        self._set("optimizer.warmup_steps", params.pop("warmup_num_steps", AUTO if ours else 1000))
        self._set("optimizer.learning_rate", params.pop("warmup_max_lr", None))
        if params.pop("warmup_min_lr", 0) != 0:
            self._problem("scheduler.params.warmup_min_lr is not 0; 0 is supported")
        for key in params:
            self._problem(f"scheduler.params.{key} is not supported; remove it")

    def _zero(self, zero: dict[str, Any]) -> dict[str, Any]:
        for old, (new, value) in DEPRECATED.items():
            if old not in zero:
                continue
            wanted = zero.pop(old)
            self._warnings.append(f"zero_optimization.{old} is deprecated: read as {new}={value if wanted else 'none'}")
            if wanted:
                zero[new] = {**self._section(f"zero_optimization.{new}", zero.get(new, {})), **value}
        for key in [key for key in zero if key.startswith("stage3_") or key == "offload_param"]:
            self._warnings.append(f"zero_optimization.{key} is not used: it belongs to stage 3")
            del zero[key]
        stage = zero.pop("stage", None)
        if stage not in (1, 2, None):
            self._problem(
                f"zero_optimization.stage is {stage}; 1 and 2 are supported, and engine.name=ddp for 0: models that "
                "need 3 take engine.name=fsdp, which shards the weights, too"
            )
        else:
            self._set("engine.zero_stage", stage)
        return zero

    def _precision(self, document: dict[str, Any]) -> None:
        sections = {"fp16": ("fp16",), "bf16": ("bf16", "bfloat16")}
        found = []
        for name, keys in sections.items():
            for key in keys:
                section = self._section(key, document.pop(key, {}))
                if (enabled := section.pop("enabled", None)) in (True, "true"):
                    found.append(name)
                elif enabled in (False, "false"):
                    section["enabled"] = enabled
                elif enabled is not None:
                    self._problem(f"{key}.enabled is {json.dumps(enabled)}; give true, false or auto")
                self._unused(key, section, tuple(section), "precision says it, and the loss is scaled here")
        if len(found) > 1:
            self._problem("fp16 and bf16 are both enabled; enable one")
        elif found:
            self._set("precision", found[0])

    def _section(self, name: str, value: Any) -> dict[str, Any]:
        """A section without the values that are left to the trainer; empty, with a problem, if it is no object."""
        if isinstance(value, dict):
            return _given(value)
        if value not in (AUTO, None):
            self._problem(f"{name} is {json.dumps(value)}; give an object {{...}}, or leave it out")
        return {}

    def _parts(self, name: str, value: Any) -> dict[str, Any]:
        """The type and the params of a section, as they are written; others are named."""
        section = value if isinstance(value, dict) else self._section(name, value)
        others = {key: each for key, each in section.items() if key not in ("type", "params")}
        self._unused(name, others, tuple(others), "type and params are read")
        return {key: each for key, each in section.items() if key in ("type", "params") and each is not None}

    def _unused(self, name: str, section: dict[str, Any], keys: tuple[str, ...], reason: str) -> None:
        """Name each of these keys that the section has, and take it out."""
        for key in [key for key in keys if key in section]:
            self._warnings.append(f"{name}.{key} is not used: {reason}")
            del section[key]

    def _set(self, key: str, value: Any) -> None:
        if value in (None, AUTO):
            return
        if self._settings.get(key, value) != value:
            self._problem(
                f"says {key} twice: {values.typed(self._settings[key])} and {values.typed(value)}; make them equal"
            )
        self._settings[key] = value

    def _problem(self, text: str) -> None:
        self._problems.append(f"{self._name}: {text}")


def _given(section: dict[str, Any]) -> dict[str, Any]:
    """The section without the values that are left to the trainer."""
    return {key: value for key, value in section.items() if value not in (AUTO, None)}
