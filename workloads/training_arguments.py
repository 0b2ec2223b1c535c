"""What a training is called, and what its workers are told: the arguments of `python -m trainer.train`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from infra.config import DatasetConfig, TrainingConfig
from workloads.layout import weights_folder


def run_name(config: TrainingConfig, dataset: DatasetConfig) -> str:
    """The configured name, else the model and a hash of all that changes the mathematics.

    The same training, started again or on other machines, resumes in its folder; a different one gets a new folder.
    """
    if config.name:
        return config.name
    without = {"name", "metrics_every", "evaluation", "checkpoint", "engine", "zero_stage", "max_hours", "runtime"}
    without |= {"micro_batch"}  # what does not fit the memory goes on in its folder with a smaller one
    text = dataset.model_dump(exclude={"timeout_minutes", "cpu", "memory_gib"})
    identity = [config.model_dump(exclude=without), text]
    what = config.model if config.task == "language_model" else "answering"
    return f"{what}-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]}"


def training_arguments(
    config: TrainingConfig, dataset_directory: str, run_directory: str, capability: str | None = None
) -> list[str]:
    """Arguments of `python -m trainer.train`; `capability` is a processor flag that every node must have."""
    settings: dict[str, Any] = {
        "model.preset": config.model,
        "data.directory": dataset_directory,
        "run.directory": run_directory,
        "run.seed": config.seed,
        "steps": config.steps,
        "tokens_per_step": config.tokens_per_step,
        "sequence_length": config.sequence_length,
        "precision": config.precision,
        "optimizer.learning_rate": config.optimizer.learning_rate,
        "optimizer.warmup_steps": config.optimizer.warmup_steps,
        "optimizer.schedule": config.optimizer.schedule,
        "optimizer.weight_decay": config.optimizer.weight_decay,
        "optimizer.clip": config.optimizer.clip,
        "evaluation.every": config.evaluation.every,
        "evaluation.batches": config.evaluation.batches,
        "checkpoint.every_steps": config.checkpoint.every_steps,
        "checkpoint.every_minutes": config.checkpoint.every_minutes,
        "checkpoint.keep": config.checkpoint.keep,
        "metrics.every": config.metrics_every,
    }
    if config.task == "question_answering":
        settings |= {
            "task": config.task,
            # The encoder's own shape.
            "model.preset": "weights",
            "question_answering.train": f"{dataset_directory}/train.json",
            "question_answering.validation": f"{dataset_directory}/validation.json",
        }
        del settings["data.directory"]
    if config.micro_batch:
        settings["micro_batch"] = config.micro_batch
    if config.weights:
        fetched = not config.weights.startswith("/")
        settings["model.weights"] = weights_folder(config.weights) if fetched else config.weights
    if config.engine == "deepspeed":
        settings |= {"engine.name": "deepspeed", "engine.zero_stage": config.zero_stage}
    if capability:
        settings["require_capability"] = capability
    settings |= {
        key: str(value).lower() if isinstance(value, bool) else value for key, value in config.settings.items()
    }
    return [f"{key}={value}" for key, value in settings.items()]
