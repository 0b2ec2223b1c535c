"""The resource graph of the local stack: order, lifetimes, and options that the mocks alone would not show."""

from __future__ import annotations

import pytest

from infra.stackfiles import stack_file_values
from review.recording import Recorded, Recording, record

CLUSTER_SCOPED = {"Namespace", "PersistentVolume", "PriorityClass"}


def test_everything_in_the_namespace_is_deleted_with_it(local_stack: Recording) -> None:
    namespace = _namespace(local_stack)
    training = local_stack.one("Job", "training")
    assert not training.deleted_with, "a running Job and its namespace would wait for each other for ever"
    assert namespace.urn in local_stack.earlier(training)
    for item in local_stack.all("kubernetes:"):
        if item.kind not in CLUSTER_SCOPED and item is not training:
            assert item.deleted_with == namespace.urn, f"{item.kind} {item.name} would be deleted one by one"
            assert namespace.urn in local_stack.earlier(item)


def test_the_volume_outlives_the_namespace_whose_claim_binds_it(local_stack: Recording) -> None:
    volume = local_stack.one("PersistentVolume")
    assert volume.deleted_with == ""
    assert volume.urn in local_stack.earlier(_namespace(local_stack))
    assert volume.inputs["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_the_training_waits_for_text_rendezvous_image_and_storage(local_stack: Recording) -> None:
    earlier = local_stack.earlier(local_stack.one("Job", "training"))
    for kind, name in [
        ("Job", "dataset"),
        ("StatefulSet", "etcd"),
        ("Service", "etcd"),
        ("BuildahImage", "trainer"),
        ("PersistentVolumeClaim", "data"),
    ]:
        assert local_stack.one(kind, name).urn in earlier


def test_the_image_waits_for_nothing(local_stack: Recording) -> None:
    assert local_stack.earlier(local_stack.one("BuildahImage")) == set()


@pytest.mark.parametrize("name", ["dataset", "training"])
def test_no_two_jobs_ever_write_the_same_folder(local_stack: Recording, name: str) -> None:
    assert local_stack.one("Job", name).delete_before_replace


def test_nothing_has_an_address_outside_the_cluster(local_stack: Recording) -> None:
    for item in local_stack.all("kubernetes:core/v1:Service"):
        assert item.inputs["spec"].get("type", "ClusterIP") == "ClusterIP"
    assert not [item for item in local_stack.resources if item.kind == "Ingress"]


def test_without_tensorboard_nothing_of_it_remains(local_kubeconfig: object) -> None:
    stack = record("local", {**stack_file_values("local"), "tensorboard": {"enabled": False}})
    assert not [item for item in stack.resources if "tensorboard" in item.name]
    assert "tensorboardCommand" not in stack.outputs


def test_the_outputs_name_what_follow_needs(local_stack: Recording) -> None:
    outputs = local_stack.outputs
    assert outputs["context"] == "trainyard-local"
    assert outputs["namespace"] == "trainyard"
    assert outputs["jobName"] == local_stack.one("Job", "training").inputs["metadata"]["name"]
    assert outputs["runDirectory"].startswith("/data/runs/micro-")
    assert outputs["image"].startswith("registry.test:5000/trainyard/trainer@sha256:")


def _namespace(stack: Recording) -> Recorded:
    (found,) = stack.all("kubernetes:core/v1:Namespace")
    return found
