"""The resource graph of the local stack: order, lifetimes, and options that the mocks alone would not show."""

from __future__ import annotations

from review.recording import Recorded, Recording
from tests.infra.recorded import recorded

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


def test_without_tensorboard_nothing_of_it_remains() -> None:
    stack = recorded("local", tensorboard={"enabled": False})
    assert not [item for item in stack.resources if "tensorboard" in item.name]


def _namespace(stack: Recording) -> Recorded:
    (found,) = stack.all("kubernetes:core/v1:Namespace")
    return found
