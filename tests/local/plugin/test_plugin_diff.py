"""Which changes are seen, which of them replace the object, and which old values the server has only spelled anew."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from local.plugin import diff, ownership, state
from local.plugin.values import UNKNOWN
from review import immutable


def job(**spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "c", "image": "a", "args": ["x"]}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "demo"},
        "spec": {"completions": 2, "parallelism": 2, "template": {"spec": pod}, **spec},
    }


def detailed(
    old: dict[str, Any], new: dict[str, Any], ignored: tuple[str, ...] = (), **switches: bool
) -> dict[str, str]:
    mutable = {"mutable_config_maps": False, "mutable_secrets": False, **switches}
    return diff.detailed(old, new, list(ignored), immutable.force_new_paths(new, **mutable))


def test_the_same_inputs_have_no_diff() -> None:
    assert detailed(job(), copy.deepcopy(job())) == {}


def test_null_is_the_same_as_missing() -> None:
    assert detailed(job(), job(backoffLimit=None)) == {}


def test_a_job_is_replaced_for_its_template_and_changed_for_its_deadline() -> None:
    changed = job(activeDeadlineSeconds=60)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "b"
    assert detailed(job(), changed) == {
        "spec.activeDeadlineSeconds": "add",
        "spec.template.spec.containers[0].image": "update-replace",
    }


def test_a_removed_list_item_is_a_delete() -> None:
    changed = job()
    changed["spec"]["template"]["spec"]["containers"][0]["args"] = []
    assert detailed(job(), changed) == {"spec.template.spec.containers[0].args[0]": "delete-replace"}


def test_ignored_paths() -> None:
    changed = job(completions=4, parallelism=4)
    assert detailed(job(), changed, ("spec.parallelism", "spec.completions")) == {}
    assert detailed(job(), changed, ("spec.parallelism",)) == {"spec.completions": "update-replace"}
    assert detailed(job(), changed, ("spec",)) == {}
    changed = job()
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "b"
    assert detailed(job(), changed, ("spec.template.spec.containers[*].image",)) == {}


def test_unknown_values_are_changes() -> None:
    assert detailed(job(), job(completions=UNKNOWN)) == {"spec.completions": "update-replace"}


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("apps/v1", "Deployment", "spec.selector.matchLabels.app"),
        ("apps/v1", "StatefulSet", "spec.serviceName"),
        ("apps/v1", "StatefulSet", "spec.volumeClaimTemplates[0].spec.accessModes[0]"),
        ("v1", "PersistentVolume", "spec.nfs.server"),
        ("v1", "PersistentVolumeClaim", "spec.storageClassName"),
        ("v1", "Service", "spec.clusterIP"),
        ("v1", "Secret", "type"),
        ("v1", "Secret", "data.password"),
        ("v1", "ConfigMap", "data.key"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", "roleRef.name"),
        ("v1", "Pod", "spec.containers[1].image"),
        ("example.com/v1", "Thing", "metadata.namespace"),
    ],
)
def test_immutable_fields_replace(api_version: str, kind: str, path: str) -> None:
    obj = {"apiVersion": api_version, "kind": kind}
    patterns = immutable.force_new_paths(obj, mutable_config_maps=False, mutable_secrets=False)
    assert immutable.matches(diff.parse_path(path), patterns)


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("apps/v1", "Deployment", "spec.replicas"),
        ("apps/v1", "StatefulSet", "spec.template.spec.containers[0].image"),
        ("v1", "PersistentVolumeClaim", "spec.resources.requests.storage"),
        ("v1", "Service", "spec.clusterIPs[0]"),
        ("v1", "ConfigMap", "metadata.labels.data"),
        ("example.com/v1", "Job", "spec.template"),
    ],
)
def test_other_fields_do_not_replace(api_version: str, kind: str, path: str) -> None:
    obj = {"apiVersion": api_version, "kind": kind}
    patterns = immutable.force_new_paths(obj, mutable_config_maps=False, mutable_secrets=False)
    assert not immutable.matches(diff.parse_path(path), patterns)


def test_config_maps_change_in_place_only_where_the_provider_allows_it() -> None:
    old = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}}
    new = {**old, "data": {"k": "2"}}
    assert detailed(old, new) == {"data.k": "update-replace"}
    assert detailed(old, new, mutable_config_maps=True) == {"data.k": "update"}
    frozen = {**new, "immutable": True}
    assert detailed({**old, "immutable": True}, frozen, mutable_config_maps=True) == {"data.k": "update-replace"}


@pytest.mark.parametrize("text", ["a.b[0].c", 'metadata.annotations["pulumi.com/x"]', "spec.a[12]"])
def test_paths_round_trip(text: str) -> None:
    assert diff.format_path(diff.parse_path(text)) == text


def test_a_replacement_with_the_same_name_deletes_first() -> None:
    live = {"metadata": {"name": "train", "namespace": "demo"}}
    automatic = {"metadata": {**live["metadata"], "annotations": {"pulumi.com/autonamed": "true"}}}
    elsewhere = {"metadata": {"name": "train", "namespace": "other"}}
    assert diff.must_delete_first(True, live, live)
    assert not diff.must_delete_first(False, live, live)
    assert not diff.must_delete_first(True, automatic, live)
    assert not diff.must_delete_first(True, elsewhere, live)


def test_server_defaults_are_no_drift() -> None:
    inputs = job()
    inputs["spec"]["template"]["spec"]["hostNetwork"] = False
    live = copy.deepcopy(job(backoffLimit=6, suspend=False))
    live["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    live["spec"]["template"]["spec"]["containers"].insert(0, {"name": "sidecar-of-a-webhook"})
    live["status"] = {"active": 1}
    assert state.prune(live, inputs) == inputs


def test_drift_of_a_given_field_is_seen() -> None:
    live = job(parallelism=5)
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "b"
    assert detailed(state.prune(live, job()), job()) == {
        "spec.parallelism": "update-replace",
        "spec.template.spec.containers[0].image": "update-replace",
    }


def test_inputs_are_normalised_to_what_the_server_stores() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"uid": "x"}, "stringData": {"p": "hunter2"}}
    assert state.normalize(secret) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {},
        "data": {"p": "aHVudGVyMg=="},
    }
    limited = job()
    limited["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1, "memory": "0.5Gi"}}
    containers = state.normalize(limited)["spec"]["template"]["spec"]["containers"]
    assert containers[0]["resources"] == {"limits": {"cpu": "1", "memory": "512Mi"}}


def managed(manager: str, operation: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def test_ownership_of_the_creation_passes_to_our_manager() -> None:
    entries = [
        managed("pulumi-kubernetes", "Update", {"f:spec": {"f:a": {}}}),
        managed("mine", "Apply", {"f:spec": {"f:b": {}}}),
        managed("kube-controller-manager", "Update", {"f:status": {}}),
    ]
    patch = ownership.hand_over({"metadata": {"managedFields": entries, "resourceVersion": "7"}}, "mine")
    assert patch is not None
    value = patch[0]["value"]
    assert [entry["manager"] for entry in value] == ["kube-controller-manager", "mine"]
    assert value[1]["fieldsV1"] == {"f:spec": {"f:a": {}, "f:b": {}}}
    assert patch[1]["value"] == "7"
    assert ownership.hand_over({"metadata": {"managedFields": value, "resourceVersion": "8"}}, "mine") is None


def test_ignored_fields_keep_their_live_value_or_stay_with_their_owner() -> None:
    live = job(parallelism=5)
    live["metadata"]["managedFields"] = [
        managed("mine", "Apply", {"f:spec": {"f:completions": {}}}),
        managed("scaler", "Update", {"f:spec": {"f:parallelism": {}}}),
    ]
    live["spec"]["completions"] = 5
    inputs = job()
    ownership.keep_ignored(inputs, live, ["spec.parallelism", "spec.completions"], "mine")
    assert "parallelism" not in inputs["spec"]  # the scaler's
    assert inputs["spec"]["completions"] == 5  # ours: leaving it out would unset it
