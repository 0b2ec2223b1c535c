"""Objects through the real engine: create, change, replace, drift, import, delete."""

from __future__ import annotations

import base64
import subprocess
import time
from typing import Any

import pytest

from tests.local.plugin.conftest import Cluster, Entry, Stack, StackMaker, resource

pytestmark = pytest.mark.cluster
SKIP = {"pulumi.com/skipAwait": "true"}
PROVIDER = 2  # every program has the stack itself and one provider


def sleeper(image: str, command: str = "sleep 3600", **container: Any) -> dict[str, Any]:
    """A pod's spec with one container that runs a shell command and stops at once when told."""
    main = {"name": "main", "image": image, "command": ["sh", "-c", command], **container}
    return {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}


def config_map(namespace: str, data: dict[str, Any], **metadata: Any) -> Entry:
    return resource("settings", "v1:ConfigMap", {"metadata": {"namespace": namespace, **metadata}, "data": data})


def job(namespace: str, pod: dict[str, Any], ignore_changes: list[str] | None = None, **spec: Any) -> Entry:
    """A Job that is not awaited."""
    metadata = {"name": "train", "namespace": namespace, "annotations": SKIP}
    properties = {"metadata": metadata, "spec": {"template": {"spec": pod}, **spec}}
    return resource("job", "batch/v1:Job", properties, ignore_changes=ignore_changes)


def test_a_second_up_and_a_refresh_change_nothing(stack: Stack, cluster: Cluster, namespace: str) -> None:
    """Also for what the server spells differently, drops or fills in: quantities, false, empty strings, defaults."""
    meta = {"namespace": namespace}
    pod = sleeper(
        cluster.image,
        env=[{"name": "EMPTY", "value": ""}],
        resources={"requests": {"cpu": "0.001", "memory": "0.015625Gi"}, "limits": {"cpu": "2000m"}},
        volumeMounts=[{"name": "tmp", "mountPath": "/tmp", "readOnly": False}],
        ports=[{"containerPort": 80}],
    )
    volumes = [{"name": "tmp", "emptyDir": {"sizeLimit": "1024Mi"}}]
    pod |= {"hostNetwork": False, "restartPolicy": "Always", "volumes": volumes}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    service = {"selector": {"app": "x"}, "ports": [{"port": 80, "name": "http"}], "clusterIP": "None"}
    deployment = {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": template}
    quota = {"hard": {"requests.cpu": "4000m", "pods": 10}}
    program = [
        config_map(namespace, {"a": "1"}),
        resource("service", "v1:Service", {"metadata": meta, "spec": service}),
        resource("account", "v1:ServiceAccount", {"metadata": meta, "automountServiceAccountToken": False}),
        resource("role", "rbac.authorization.k8s.io/v1:Role", {"metadata": meta, "rules": rules}),
        resource("policy", "networking.k8s.io/v1:NetworkPolicy", {"metadata": meta, "spec": {"podSelector": {}}}),
        resource("web", "apps/v1:Deployment", {"metadata": {**meta, "annotations": SKIP}, "spec": deployment}),
        resource("quota", "v1:ResourceQuota", {"metadata": meta, "spec": quota}),
        job(namespace, sleeper(cluster.image), parallelism=0, backoffLimit=0),
    ]
    count = PROVIDER + len(program)
    assert stack.up(*program) == {"create": count}
    assert stack.up(*program) == {"unchange": count}
    assert stack.refresh() == {"unchange": count}
    assert stack.preview(*program) == {"unchange": count}
    stack.destroy()
    assert stack.resources() == {}
    assert cluster.core.list_namespaced_service(namespace).items == []


def test_automatic_names_and_replacement_under_a_new_name(stack: Stack, cluster: Cluster, namespace: str) -> None:
    stack.up(config_map(namespace, {"a": "1"}))
    first = stack.resources()["settings"]["id"]
    assert first.startswith(f"{namespace}/settings-")
    updated = {"unchange": 2, "update": 1}
    assert stack.up(config_map(namespace, {"a": "1"}, labels={"stage": "two", "gone": "soon"})) == updated
    assert stack.up(config_map(namespace, {"a": "1"}, labels={"stage": "two"})) == updated
    live = cluster.core.read_namespaced_config_map(first.split("/")[1], namespace)
    assert live.metadata.labels == {"stage": "two"}  # a field that the program drops goes away
    changed = stack.up(config_map(namespace, {"a": "2"}, labels={"stage": "two"}))
    assert changed == {"unchange": 2, "replace": 1}
    second = stack.resources()["settings"]["id"]
    names = [f"{namespace}/{item.metadata.name}" for item in cluster.core.list_namespaced_config_map(namespace).items]
    assert second in names
    assert first not in names


def test_a_job_is_replaced_when_its_template_changes(stack: Stack, cluster: Cluster, namespace: str) -> None:
    """With an explicit name the old Job is deleted first; a change of `activeDeadlineSeconds` keeps it."""

    def program(command: str, **spec: Any) -> Entry:
        entry = job(namespace, sleeper(cluster.image, command), **spec)
        del entry["properties"]["metadata"]["annotations"]  # awaited: also the deletion of the old Job
        return entry

    stack.up(program("sleep 0"))
    before = cluster.batch.read_namespaced_job("train", namespace)
    stack.up(program("sleep 0", activeDeadlineSeconds=3600))
    kept = cluster.batch.read_namespaced_job("train", namespace)
    assert kept.metadata.uid == before.metadata.uid
    assert kept.spec.active_deadline_seconds == 3600
    changed = program("sleep 1", activeDeadlineSeconds=3600)
    assert stack.preview(changed) == {"unchange": 2, "replace": 1}
    assert stack.up(changed) == {"unchange": 2, "replace": 1}
    assert cluster.batch.read_namespaced_job("train", namespace).metadata.uid != before.metadata.uid


def test_a_job_that_is_not_awaited_needs_a_new_name(stack: Stack, cluster: Cluster, namespace: str) -> None:
    """As with the real plugin: with skipAwait the old Job may still be there when the new one is created."""
    entry = job(namespace, sleeper(cluster.image))
    entry["properties"]["metadata"]["finalizers"] = ["trainyard.test/hold"]
    stack.up(entry)
    entry["properties"]["spec"]["template"]["spec"]["containers"][0]["command"] = ["true"]
    assert f"Job {namespace}/train is still being deleted" in stack.fails(stack.up, entry)
    cluster.batch.patch_namespaced_job("train", namespace, {"metadata": {"finalizers": None}})


def test_ignored_changes_stay_as_they_are(stack: Stack, cluster: Cluster, namespace: str) -> None:
    """Somebody resizes the Job by hand; neither `up` nor an `up` that changes something else sets it back."""

    def program(**spec: Any) -> Entry:
        pod = sleeper(cluster.image)
        return job(namespace, pod, ["spec.parallelism", "spec.completions"], completionMode="Indexed", **spec)

    stack.up(program(parallelism=1, completions=1))
    cluster.batch.patch_namespaced_job("train", namespace, {"spec": {"parallelism": 2, "completions": 2}})
    assert stack.up(program(parallelism=1, completions=1)) == {"unchange": 3}
    assert stack.up(program(parallelism=4, completions=4)) == {"unchange": 3}
    changed = program(parallelism=4, completions=4, activeDeadlineSeconds=3600)
    assert stack.up(changed) == {"unchange": 2, "update": 1}
    live = cluster.batch.read_namespaced_job("train", namespace)
    assert (live.spec.parallelism, live.spec.completions, live.spec.active_deadline_seconds) == (2, 2, 3600)


def test_a_job_patch_resizes_and_releases(stack: Stack, cluster: Cluster, namespace: str) -> None:
    """Elastic resize: the Job ignores its size, a JobPatch owns it."""
    ignored = ["spec.parallelism", "spec.completions"]
    whole = job(namespace, sleeper(cluster.image), ignored, parallelism=1, completions=1, completionMode="Indexed")

    def patch(size: int, retain: bool = True) -> Entry:
        annotations = {"pulumi.com/patchForce": "true", **SKIP}
        metadata = {"name": {"$ref": "job.metadata.name"}, "namespace": namespace, "annotations": annotations}
        properties = {"metadata": metadata, "spec": {"parallelism": size, "completions": size}}
        return resource("size", "batch/v1:JobPatch", properties, retain_on_delete=retain)

    def size() -> tuple[int, int]:
        spec = cluster.batch.read_namespaced_job("train", namespace).spec
        return spec.parallelism, spec.completions

    stack.up(whole, patch(2))
    uid = cluster.batch.read_namespaced_job("train", namespace).metadata.uid
    assert size() == (2, 2)
    assert stack.up(whole, patch(3)) == {"unchange": 3, "update": 1}
    assert size() == (3, 3)
    assert stack.up(whole, patch(3)) == {"unchange": 4}
    stack.up(whole)
    assert size() == (3, 3)  # retainOnDelete
    stack.up(whole, patch(2, retain=False))
    stack.up(whole)
    assert size() == (1, 1)  # released: the server's defaults
    assert cluster.batch.read_namespaced_job("train", namespace).metadata.uid == uid


def test_secrets_stay_secret(stack: Stack, cluster: Cluster, namespace: str) -> None:
    def program(password: str) -> list[Entry]:
        secret = {"$secret": password}
        meta = {"namespace": namespace, "name": "login"}
        return [
            resource("login", "v1:Secret", {"metadata": meta, "stringData": {"password": secret}}),
            config_map(namespace, {"leak": secret}),
        ]

    stack.up(*program("hunter-22"))
    assert "hunter-22" not in stack.text
    stored = cluster.core.read_namespaced_secret("login", namespace)
    assert base64.b64decode(stored.data["password"]) == b"hunter-22"
    state = stack.state()
    assert "hunter-22" not in state
    assert stored.data["password"] not in state
    assert stack.up(*program("hunter-22")) == {"unchange": 4}
    assert stack.up(*program("hunter-23")) == {"unchange": 2, "replace": 2}
    assert "hunter-23" not in stack.text + stack.state()
    invalid = config_map(namespace, {}, name="settings", labels={"leak": {"$secret": "hunter 24!"}})
    text = stack.fails(stack.preview, invalid)  # the API server's message quotes the value
    assert "metadata.labels: Invalid value" in text
    assert "hunter 24" not in text


def test_refresh_sees_a_deletion_by_hand_and_up_mends_it(stack: Stack, cluster: Cluster, namespace: str) -> None:
    program = config_map(namespace, {"a": "1"}, name="settings")
    stack.up(program)
    cluster.core.delete_namespaced_config_map("settings", namespace)
    assert stack.refresh() == {"unchange": 2, "delete": 1}
    assert "settings" not in stack.resources()
    assert stack.up(program) == {"unchange": 2, "create": 1}


def test_refresh_sees_drift_and_up_mends_it(stack: Stack, cluster: Cluster, namespace: str) -> None:
    program = config_map(namespace, {"a": "1"}, name="settings", labels={"mine": "yes"})
    stack.up(program)
    body = {"metadata": {"labels": {"mine": "no", "other": "theirs"}}}
    cluster.core.patch_namespaced_config_map("settings", namespace, body)
    assert stack.refresh() == {"unchange": 2, "update": 1}
    assert "other programs manage some of its fields: .metadata.labels.mine" in stack.fails(stack.up, program)
    stack.environment["PULUMI_K8S_ENABLE_PATCH_FORCE"] = "true"
    assert stack.up(program) == {"unchange": 2, "update": 1}
    live = cluster.core.read_namespaced_config_map("settings", namespace)
    assert live.metadata.labels == {"mine": "yes", "other": "theirs"}


def test_an_existing_object_is_imported_not_taken_over(stack: Stack, cluster: Cluster, namespace: str) -> None:
    cluster.core.create_namespaced_config_map(namespace, {"metadata": {"name": "settings"}, "data": {"theirs": "1"}})
    text = stack.fails(stack.up, config_map(namespace, {"a": "1"}, name="settings"))
    assert f"ConfigMap {namespace}/settings already exists" in text
    assert cluster.core.read_namespaced_config_map("settings", namespace).data == {"theirs": "1"}
    same = config_map(namespace, {"theirs": "1"}, name="settings")
    assert stack.up({**same, "import": f"{namespace}/settings"})["import"] == 1
    assert stack.up(same) == {"unchange": 3}


def test_a_server_side_error_is_one_clear_line(stack: Stack, namespace: str, cluster: Cluster) -> None:
    """The preview's dry run finds it, before anything is changed."""
    text = stack.fails(stack.preview, job(namespace, sleeper(cluster.image), completionMode="Indexed", parallelism=2))
    lines = {line.strip() for line in text.split("Diagnostics:")[1].splitlines() if "is invalid" in line}
    assert lines == {
        f"error: Preview failed: Job {namespace}/train is invalid: spec.completions: Required value: "
        "when completion mode is Indexed"
    }


def test_delete_waits_until_the_object_is_gone(stack: Stack, cluster: Cluster, namespace: str) -> None:
    metadata = {"name": "held", "namespace": namespace, "finalizers": ["trainyard.test/hold"]}
    stack.up(resource("held", "v1:ConfigMap", {"metadata": metadata}, timeouts={"delete": "2s"}))
    started = time.monotonic()
    with pytest.raises(subprocess.CalledProcessError):
        stack.destroy()
    assert time.monotonic() - started > 2
    assert f"ConfigMap {namespace}/held still exists 2 s after its deletion" in stack.text
    assert "trainyard.test/hold" in stack.text
    assert "held" in stack.resources()
    cluster.core.patch_namespaced_config_map("held", namespace, {"metadata": {"finalizers": None}})
    stack.destroy()
    assert stack.resources() == {}


def test_deleted_with_leaves_the_deletion_to_the_other(stack: Stack, cluster: Cluster, namespace: str) -> None:
    """The object is in another namespace, so it stays, which shows that nobody asked for its deletion."""
    metadata = {"namespace": namespace, "name": "inner"}
    stack.up(
        resource("outer", "v1:Namespace", {}),
        resource("inner", "v1:ConfigMap", {"metadata": metadata}, deleted_with="outer"),
    )
    outer = stack.resources()["outer"]["id"]
    stack.destroy()
    assert cluster.core.read_namespaced_config_map("inner", namespace).metadata.deletion_timestamp is None
    assert outer not in [item.metadata.name for item in cluster.core.list_namespace().items]  # waited for


def test_an_unreachable_cluster_is_one_line(make_stack: StackMaker) -> None:
    stack = make_stack(
        "{current-context: trainyard-local, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [],"
        " contexts: [{name: trainyard-local, context: {cluster: c, user: c}}]}"
    )
    program = config_map("default", {"a": "1"})
    assert stack.preview(program) == {"create": 3}
    assert stack.text.count("warning: previewed without the cluster: ") >= 1
    text = stack.fails(stack.up, program)
    errors = [line.strip() for line in text.split("Diagnostics:")[1].splitlines() if "cannot be reached" in line]
    assert len(errors) == 1
    assert errors[0].startswith("error: the Kubernetes API server at http://127.0.0.1:9 cannot be reached")
