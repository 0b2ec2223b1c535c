"""Names: what makes a new Job, a new run folder or a new image, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from infra.changes import ASKED, digest_of
from infra.config import DatasetConfig, TrainingConfig
from infra.parse import parse
from infra.stackfiles import stack_file_values
from review.recording import Recording, record_anywhere
from tests.infra.recorded import changed, pod, recorded, trained
from workloads.dataset import prepare_command
from workloads.training import tell_new_folders


def job_name(stack: str = "local", **sections: Any) -> str:
    return recorded(stack, **sections).outputs["jobName"]


def test_the_job_is_new_when_its_pods_are_and_only_then() -> None:
    """Pulumi replaces a Job whose pods change, and does not wait until the former one and its pods are gone."""
    same = job_name()
    # Pods come and go without a new Job.
    assert job_name(tensorboard={"enabled": False}, workers={"count": 3}) == same
    changes: list[dict[str, Any]] = [
        {"training": {"metrics": {"every": 7}}},
        {"workers": {"spares": 1}},
        {"workers": {"environment": {"NCCL_DEBUG": "INFO"}}},
        {"rendezvous": {"tls": True}},
        {"secrets": {"imagePull": "you:ghp_x"}},
        {"job": {"maxHours": 5}},
        {"dataset": {"name": "other"}},
    ]
    names = [job_name("local", **change) for change in changes]
    assert len({same, *names}) == len(names) + 1


def test_how_nodes_are_had_starts_no_training_anew() -> None:
    same, etcd = job_name("gcp-c3"), {"image": "quay.io/etcd:v3.6.6"}
    assert job_name("gcp-c3", nodes={"max": 5, "compactPlacement": True}, rendezvous=etcd) == same
    assert job_name("gcp-c3", nodes={"consumption": "spot"}) == same, "its pods get the same time to save on both"


def test_dataset_inputs_are_paths_on_the_shared_volume() -> None:
    given = DatasetConfig(input=("sample", "books/a.txt", "/data/b", "gs://bucket/c"), documents="lines")
    arguments = prepare_command(TrainingConfig(task="finetune"), given, "/data/datasets/x")
    assert arguments[2:6] == ["sample", "/data/books/a.txt", "/data/b", "gs://bucket/c"]
    assert arguments[-3:] == ["--documents", "lines", "--conversations"]


def finetuned(**sections: Any) -> Recording:
    """The local stack with the four keys that fine-tune a model."""
    training = {"task": "finetune", "model": {"name": "org/chat"}, "adapter": {"kind": "lora"}}
    values = changed("local", **{**sections, "training": training | sections.get("training", {})})
    return record_anywhere("local", {**values, "dataset": {"input": ["chats.jsonl"]}})


def test_four_keys_fetch_the_model_and_prepare_with_its_tokenizer() -> None:
    stack = finetuned()
    spec = pod(stack, name="dataset")
    (_, fetch), (prepare,) = spec["initContainers"], spec["containers"]
    weights = "/data/models/org/chat"
    assert fetch["args"] == ["python", "-m", "trainer.fetch", "--model", "org/chat", "--output", weights]
    words = prepare["args"]
    assert words[words.index("--tokenizer") + 1] == weights
    assert words[words.index("--input") + 1] == "/data/chats.jsonl"
    found, folder = trained(stack), words[words.index("--output") + 1]
    assert (found.task, found.adapter.kind, found.model.name) == ("finetune", "lora", weights)
    assert found.data.directory == folder
    assert stack.outputs["runDirectory"].startswith("/data/runs/chat-")


def test_a_teacher_is_fetched_to_where_the_trainers_look_for_it() -> None:
    teacher = {"task": "distillation", "distillation": {"teacher": "distilgpt2"}, "model": {}, "adapter": {}}
    stack = finetuned(training=teacher, workers={"memoryGib": 8})
    fetch = pod(stack, name="dataset")["initContainers"][1]
    assert trained(stack).distillation.teacher == fetch["args"][-1]


def test_a_folder_on_the_volume_is_taken_as_it_is_and_nothing_is_fetched() -> None:
    model = {"name": "/data/models/mine"}
    stack = finetuned(training={"task": "finetune", "model": model})
    spec = pod(stack, name="dataset")
    assert [container["name"] for container in spec["initContainers"]] == ["folders"]
    words = spec["containers"][0]["args"]
    assert words[words.index("--tokenizer") + 1] == "/data/models/mine"


def test_no_two_data_sets_share_a_folder_unless_it_is_asked_for() -> None:
    def folder(**changes: dict[str, Any]) -> str:
        values = stack_file_values("local")
        values["training"], values["workers"]["memoryGib"] = {}, 8  # GPT-2 small by default
        return parse({**values, **changes}, "local").dataset.name

    text = {"input": ["texts/my corpus.txt"]}
    others: list[dict[str, dict[str, Any]]] = [
        {},
        {"dataset": text},
        {"dataset": text | {"validationFraction": 0.1}},
        {"dataset": text | {"tokenizer": "org/chat"}},
        {"dataset": text | {"textField": "body"}},
        {"dataset": text | {"documents": "lines"}},
        {"dataset": text, "training": {"task": "finetune", "model": {"name": "org/chat"}}},
    ]
    names = [folder(**changes) for changes in others]
    assert len({*names}) == len(names)
    assert names[1].startswith("my-corpus-")
    assert folder(dataset=text | {"tokenizer": "gpt2"}) == names[1], "what would have been taken anyway"
    assert folder(dataset=text, training={"model": {"name": "org/chat"}}) == names[3], "its tokenizer"
    assert folder(dataset=text, training={"steps": 700}) == names[1]
    assert folder(dataset=text | {"name": "mine", "tokenizer": "org/chat"}) == "mine"


def test_a_living_stack_is_told_which_folders_a_newer_program_leaves_and_how_to_keep_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr("workloads.training.pulumi.warn", told.append)
    values = stack_file_values("local")
    built = {"folder of the run": "/data/runs/micro-a28b9923", "folder of the dataset": "/data/datasets/opticks"}
    kept = {**values, "job": {"name": "micro-a28b9923"}, "dataset": {**values["dataset"], "name": "opticks"}}
    asked = {**built, ASKED: digest_of(kept)}
    tell_new_folders(parse(kept, "local"), kept, asked)
    tell_new_folders(parse(values, "local"), values, asked)
    assert told == [], "it stays, or the stack file asked for it"
    tell_new_folders(parse(values, "local"), values, {**built, ASKED: digest_of(values)})
    run, dataset = told
    assert run.endswith("; to continue the one in /data/runs/micro-a28b9923, set job.name: micro-a28b9923")
    assert "the one in /data/datasets/opticks" in dataset
    assert dataset.endswith("set dataset.name: opticks")
