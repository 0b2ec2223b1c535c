"""Names: what makes a new Job, a new run folder or a new image, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.config import DatasetConfig, TrainingConfig
from infra.image import TRAINER, content_hash
from infra.stackfiles import stack_file_values
from review.recording import record
from workloads.dataset import prepare_arguments
from workloads.training_arguments import run_name, training_arguments


def job_name(training: dict[str, Any], **sections: dict[str, Any]) -> str:
    values = stack_file_values("local")
    values["training"] = {**values["training"], **training}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return record("local", values).outputs["jobName"]


@pytest.mark.usefixtures("local_kubeconfig")
def test_the_job_is_new_when_the_training_is_and_only_then() -> None:
    same = job_name({})
    assert job_name({}) == same
    assert job_name({}, tensorboard={"enabled": False}) == same
    assert job_name({"steps": 300}) != same
    assert job_name({"metricsEvery": 7}) != same
    assert job_name({}, workers={"memoryGib": 5}) != same
    assert job_name({}, workers={"count": 3}) == same, "pods come and go without a new Job"
    assert job_name({}, workers={"spares": 1}) != same


def test_a_run_folder_belongs_to_one_mathematics() -> None:
    dataset = DatasetConfig()
    base = TrainingConfig(steps=500)
    name = run_name(base, dataset)
    assert name == run_name(base.model_copy(update={"metrics_every": 1}), dataset)
    assert name != run_name(base.model_copy(update={"seed": 2}), dataset)
    assert name != run_name(base, DatasetConfig(name="other"))
    assert run_name(base.model_copy(update={"name": "mine"}), dataset) == "mine"


def test_the_image_is_new_when_a_file_that_enters_it_changes(tmp_path: Path) -> None:
    for entry in TRAINER.context:
        path = tmp_path / entry
        if path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1")
        else:
            path.mkdir(parents=True)
            (path / "train.py").write_text("1")
    first = content_hash(TRAINER, {}, tmp_path)
    (tmp_path / "trainer" / "__pycache__").mkdir()
    (tmp_path / "trainer" / "__pycache__" / "train.pyc").write_text("cache")
    (tmp_path / "README.md").write_text("not in the image")
    assert content_hash(TRAINER, {}, tmp_path) == first
    assert content_hash(TRAINER, {"BASE_IMAGE": "x"}, tmp_path) != first
    (tmp_path / "trainer" / "train.py").write_text("2")
    assert content_hash(TRAINER, {}, tmp_path) != first


def test_dataset_inputs_are_paths_on_the_shared_volume() -> None:
    config = DatasetConfig(input=("sample", "books/a.txt", "/data/b", "gs://bucket/c"))
    arguments = prepare_arguments(config, "/data/datasets/x")
    assert arguments[1:5] == ["sample", "/data/books/a.txt", "/data/b", "gs://bucket/c"]


def test_the_trainer_accepts_every_argument_that_the_job_gives_it() -> None:
    from trainer.config.schema import load

    training = TrainingConfig(model="tiny", steps=20, tokens_per_step=256, sequence_length=64, micro_batch=2)
    training = training.model_copy(update={"optimizer": training.optimizer.model_copy(update={"warmup_steps": 3})})
    config = load(training_arguments(training, "/data/datasets/x", "/data/runs/y"))
    assert config.steps == 20
    assert config.model.preset == "tiny"
    assert config.optimizer.warmup_steps == 3
    assert str(config.run.directory) == "/data/runs/y"
