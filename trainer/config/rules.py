"""Every rule about the settings of config.py: which values are allowed, and which of them go together."""

import re
from typing import TYPE_CHECKING, Any

from trainer.config.presets import PRESETS

if TYPE_CHECKING:
    from trainer.config.schema import Config

CHOICES = {
    "data.verify": ("auto", "always", "never"),
    "task": ("language_model", "distillation", "question_answering"),
    "precision": ("auto", "fp32", "bf16", "fp16"),
    "optimizer.name": ("adamw", "muon"),
    "optimizer.schedule": ("cosine", "linear", "constant", "wsd", "warmup_decay_log", "warmup_decay_linear"),
    "engine.name": ("ddp", "deepspeed"),
    "engine.zero_stage": (1, 2),
    "communication.sync": ("step", "diloco"),
    "communication.compression": ("auto", "none", "bf16", "fp16"),
}


def broken(config: "Config", failed: set[str]) -> list[str]:
    """A line for every rule that the configuration breaks; rules about `failed` keys are left out."""
    problems: list[str] = []

    def rule(holds: bool, key: str, message: str) -> None:
        if not holds and key not in failed:
            problems.append(f"{key}: {message}")

    def value(key: str) -> Any:
        found: Any = config
        for name in key.split("."):
            found = getattr(found, name)
        return found

    preset = PRESETS.get(config.model.preset)
    if config.model.preset == "weights":
        rule(bool(config.model.weights), "model.preset", "weights takes the size of model.weights, which is empty")
    else:
        names = ", ".join(PRESETS)
        rule(preset is not None, "model.preset", f"{config.model.preset!r} is not one of {names}, weights")
    answering = config.task == "question_answering"
    for key in ("data.directory", "run.directory"):
        rule(
            bool(value(key)) or (answering and key == "data.directory"),
            key,
            f"missing; give a folder, as in {key}=/data/...",
        )
    if answering:
        for key in ("question_answering.train", "question_answering.validation"):
            rule(bool(value(key)), key, f"missing; give a SQuAD JSON file, a URL or hf:squad, as in {key}=hf:squad")
        rule(
            bool(config.model.weights),
            "model.weights",
            "missing; name an encoder, as in model.weights=bert-base-uncased",
        )
    if config.task == "distillation":
        rule(
            bool(config.distillation.teacher),
            "distillation.teacher",
            "missing; name a GPT-2 to learn from, as in distillation.teacher=gpt2",
        )
    rule(
        0 <= config.distillation.alpha <= 1, "distillation.alpha", f"{config.distillation.alpha} is not between 0 and 1"
    )
    stride, question = config.question_answering.document_stride, config.question_answering.question_tokens
    room = config.sequence_length - question - 4  # special tokens: two after the question, one at each end
    rule(
        not answering or stride < room,
        "question_answering.document_stride",
        f"{stride} leaves no room for text beside it: sequence_length - question_tokens - 4 = {room}",
    )
    for key, allowed in CHOICES.items():
        rule(value(key) in allowed, key, f"{value(key)!r} is not one of {', '.join(map(str, allowed))}")
    for key in (
        "steps",
        "tokens_per_step",
        "sequence_length",
        "optimizer.learning_rate",
        "optimizer.epsilon",
        "optimizer.skipped_steps_limit",
        "communication.bucket_megabytes",
        "communication.inner_steps",
        "communication.outer_learning_rate",
        "evaluation.batches",
        "checkpoint.keep",
        "metrics.every",
        "distillation.temperature",
        "question_answering.question_tokens",
        "question_answering.answer_tokens",
        "run.collective_timeout_seconds",
    ):
        rule(value(key) > 0, key, f"{value(key)} is not positive")
    for key in (
        "run.seed",
        "optimizer.warmup_steps",
        "optimizer.schedule_steps",
        "optimizer.weight_decay",
        "optimizer.clip",
        "evaluation.every",
        "evaluation.sample_tokens",
        "checkpoint.every_steps",
        "checkpoint.every_minutes",
        "checkpoint.keep_every",
        "metrics.prometheus_port",
        "question_answering.validation_examples",
        "question_answering.document_stride",
    ):
        rule(value(key) >= 0, key, f"{value(key)} is negative; 0 switches it off")
    for key in ("optimizer.beta1", "optimizer.beta2", "communication.outer_momentum"):
        rule(0 <= value(key) < 1, key, f"{value(key)} is not in [0, 1)")
    for key in ("optimizer.final_fraction", "optimizer.decay_fraction"):
        rule(0 <= value(key) <= 1, key, f"{value(key)} is not between 0 and 1")
    deepspeed = config.engine.name == "deepspeed"
    rule(not deepspeed or value("optimizer.name") == "adamw", "optimizer.name", "muon needs engine.name=ddp")
    rule(not deepspeed or value("communication.sync") == "step", "communication.sync", "diloco needs engine.name=ddp")
    rule(
        deepspeed or not config.engine.deepspeed_config,
        "engine.deepspeed_config",
        "given, but engine.name is ddp; add engine.name=deepspeed or leave the file out",
    )
    traced = re.fullmatch(r"(\d+):(\d+)", config.metrics.profile)
    rule(
        not config.metrics.profile or bool(traced and 1 <= int(traced[1]) <= int(traced[2]) <= config.steps),
        "metrics.profile",
        f"{config.metrics.profile!r} is not FIRST:LAST from 1 to steps={config.steps}; in YAML, put it in quotes",
    )
    if preset is not None and not answering:
        rule(
            config.sequence_length <= preset.positions,
            "sequence_length",
            f"{config.sequence_length} is longer than the {preset.positions} positions of preset {config.model.preset}",
        )
    rule(config.micro_batch >= 0, "micro_batch", f"{config.micro_batch} is negative; 0 or auto chooses one")
    window = config.sequence_length * (config.micro_batch or 1)
    if window > 0:
        nearest = max(1, round(config.tokens_per_step / window)) * window
        rule(
            config.tokens_per_step % window == 0,
            "tokens_per_step",
            f"{config.tokens_per_step} is no multiple of sequence_length x micro_batch = {window}; nearest: {nearest}",
        )
    return problems
