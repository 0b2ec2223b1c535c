"""Which changes the stand-ins see, and which of them replace the object."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.standin import diff
from tests.standin.replaces import matches, of_object
from tests.standin.server import normalize
from tests.standin.values import UNKNOWN


def job(**spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "c", "image": "a", "args": ["x"]}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "demo"},
        "spec": {"completions": 2, "parallelism": 2, "template": {"spec": pod}, **spec},
    }


def detailed(old: dict[str, Any], new: dict[str, Any], *ignored: str) -> dict[str, str]:
    return diff.detailed(old, new, list(ignored), of_object(new))


def test_equal_inputs_have_no_diff() -> None:
    """null counts as missing, and the server spells quantities its own way."""
    assert detailed(job(), copy.deepcopy(job())) == {}
    assert detailed(job(), job(backoffLimit=None)) == {}
    old, new = job(), job()
    old["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1, "memory": "512Mi"}}
    new["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1000m", "memory": "0.5Gi"}}
    assert detailed(old, new) == {}
    new["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "much"
    assert list(detailed(old, new)) == ["spec.template.spec.containers[0].resources.limits.cpu"]


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
    assert detailed(job(), changed, "spec.parallelism", "spec.completions") == {}
    assert detailed(job(), changed, "spec.parallelism") == {"spec.completions": "update-replace"}
    assert detailed(job(), changed, "spec") == {}
    changed = job()
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "b"
    assert detailed(job(), changed, "spec.template.spec.containers[*].image") == {}


def test_unknown_values_are_changes() -> None:
    assert detailed(job(), job(completions=UNKNOWN)) == {"spec.completions": "update-replace"}


@pytest.mark.parametrize(
    ("api_version", "kind", "path", "replaces"),
    [
        ("apps/v1", "Deployment", "spec.selector.matchLabels.app", True),
        ("apps/v1", "Deployment", "spec.replicas", False),
        ("apps/v1", "StatefulSet", "spec.serviceName", True),
        ("apps/v1", "StatefulSet", "spec.volumeClaimTemplates[0].spec.accessModes[0]", True),
        ("apps/v1", "StatefulSet", "spec.template.spec.containers[0].image", False),
        ("v1", "PersistentVolume", "spec.nfs.server", True),
        ("v1", "PersistentVolumeClaim", "spec.storageClassName", True),
        ("v1", "PersistentVolumeClaim", "spec.resources.requests.storage", False),
        ("v1", "Service", "spec.clusterIP", True),
        ("v1", "Service", "spec.clusterIPs[0]", False),
        ("v1", "Secret", "type", True),
        ("v1", "Secret", "data.password", True),
        ("v1", "ConfigMap", "data.key", True),
        ("v1", "ConfigMap", "metadata.labels.data", False),
        ("v1", "Pod", "spec.containers[1].image", True),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", "roleRef.name", True),
        ("example.com/v1", "Thing", "metadata.namespace", True),
        ("example.com/v1", "Job", "spec.template", False),
    ],
)
def test_changes_of_immutable_fields_replace(api_version: str, kind: str, path: str, replaces: bool) -> None:
    patterns = of_object({"apiVersion": api_version, "kind": kind})
    assert matches(diff.parse_path(path), patterns) is replaces


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


def test_inputs_are_normalised_to_what_the_server_stores() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"labels": None}, "stringData": {"p": "hunter2"}}
    assert normalize(secret) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {},
        "data": {"p": "aHVudGVyMg=="},
    }
