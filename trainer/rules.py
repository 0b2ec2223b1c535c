"""Every rule about the settings of config.py: which values are allowed, and which of them go together."""

from typing import TYPE_CHECKING, Any

from trainer.presets import PRESETS

if TYPE_CHECKING:
    from trainer.config import Config

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
SCHEDULES = ("cosine", "linear", "constant")
TASKS = ("language_model", "distillation", "question_answering")


def broken(config: "Config", failed: set[str]) -> list[str]:
    """A line for every rule that the configuration breaks; rules about `failed` keys are left out."""
    problems: list[str] = []

    def rule(holds: bool, key: str, message: str) -> None:
        if not holds and key not in failed:
            problems.append(f"{key}: {message}")

    def value(key: str) -> Any:
        section, name = key.split(".")
        return getattr(getattr(config, section), name)

    preset = PRESETS.get(config.model.preset)
    rule(preset is not None, "model.preset", f"{config.model.preset!r} is not one of {', '.join(PRESETS)}")
    for key in ("data.directory", "run.directory"):
        rule(bool(value(key)), key, f"missing; give a folder, as in {key}=/data/...")
    for key, allowed in (("train.precision", PRECISIONS), ("optimizer.schedule", SCHEDULES), ("task.name", TASKS)):
        rule(value(key) in allowed, key, f"{value(key)!r} is not one of {', '.join(allowed)}")
    for key in (
        "train.steps",
        "train.tokens_per_step",
        "train.sequence_length",
        "train.micro_batch",
        "optimizer.learning_rate",
        "evaluation.batches",
        "checkpoint.keep",
        "metrics.every",
        "run.collective_timeout_seconds",
    ):
        rule(value(key) > 0, key, f"{value(key)} is not positive")
    for key in (
        "run.seed",
        "optimizer.warmup_steps",
        "optimizer.weight_decay",
        "optimizer.clip",
        "evaluation.every",
        "evaluation.sample_tokens",
        "checkpoint.every_steps",
        "checkpoint.every_minutes",
        "checkpoint.keep_every",
        "metrics.prometheus_port",
    ):
        rule(value(key) >= 0, key, f"{value(key)} is negative; 0 switches it off")
    for key in ("optimizer.beta1", "optimizer.beta2"):
        rule(0 <= value(key) < 1, key, f"{value(key)} is not in [0, 1)")
    rule(0 <= config.optimizer.final_fraction <= 1, "optimizer.final_fraction", "not between 0 and 1")
    train = config.train
    if preset is not None:
        rule(
            train.sequence_length <= preset.positions,
            "train.sequence_length",
            f"{train.sequence_length} is longer than the {preset.positions} positions of preset {config.model.preset}",
        )
    window = train.sequence_length * train.micro_batch
    if window > 0:
        nearest = max(1, round(train.tokens_per_step / window)) * window
        rule(
            train.tokens_per_step % window == 0,
            "train.tokens_per_step",
            f"{train.tokens_per_step} is no multiple of sequence_length x micro_batch = {window}; nearest: {nearest}",
        )
    return problems
