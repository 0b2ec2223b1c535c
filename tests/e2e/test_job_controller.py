"""The trainings' Jobs on a real control plane whose nodes have no kubelet.

One that holds nodes in vain lets them go, by a program with the rights that the stack gives it and no others; and one
is made smaller than it can be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.infra.recorded import recorded
from tests.standin.api_server import ApiServer, api_server, until
from tests.workloads.test_trainings import jobs
from trainer import api_server as inside
from trainer import requeue

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NAMESPACE = "trainyard"
#: Pods that the only node has room for: two workers of the first training, and one of the second.
ROOM = 3
HOLD = timedelta(0)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api"), scheduler=True) as made:
        core = made.core()
        core.create_namespace({"metadata": {"name": NAMESPACE}})
        add_node(made, "n")
        yield made


def add_node(api: ApiServer, name: str) -> None:
    api.core().create_node({"metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": datetime.now(UTC).isoformat()}
    room = {"pods": ROOM, "cpu": 8, "memory": "8Gi"}
    api.core().patch_node_status(name, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}})


@pytest.fixture(scope="module")
def names(api: ApiServer) -> list[str]:
    """Two trainings that need two workers each, the most urgent first, and the rights, as the stack declares them."""
    two = {"workers": {"count": 2, "min": 2}}
    stack = recorded("local", trainings={"b": two, "a": two})
    found, rbac = jobs(stack), client.RbacAuthorizationV1Api(api.client())
    api.core().create_namespaced_service_account(NAMESPACE, {"metadata": {"name": "requeue"}})
    for kind, grant in (("Role", rbac.create_namespaced_role), ("RoleBinding", rbac.create_namespaced_role_binding)):
        (item,) = [item for item in stack.resources if item.kind == kind]
        grant(NAMESPACE, plain(item.inputs))
    for training in ("b", "a"):
        name = create(api, found[training].inputs)
        # The first has its nodes before the second asks for the rest.
        until(lambda name=name, least=2 if training == "b" else 1: placed(api, name) == least, f"{name} has nodes")
    return [found[training].inputs["metadata"]["name"] for training in ("b", "a")]


def plain(inputs: Any) -> Any:
    """Pulumi's numbers are all floats, but Kubernetes takes 2 and not 2.0."""
    return json.loads(json.dumps(inputs), parse_float=lambda text: int(float(text)))


def create(api: ApiServer, inputs: Any, **spec: Any) -> str:
    """Make a declared Job, whose pods need no volume and little room; return its name."""
    made = plain(inputs)
    made["spec"] |= spec
    pod = made["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": volume["name"], "emptyDir": {}} for volume in pod["volumes"]]
    del pod["priorityClassName"], pod["containers"][0]["resources"]
    pod["nodeSelector"] = {}
    client.BatchV1Api(api.client()).create_namespaced_job(NAMESPACE, made)
    return made["metadata"]["name"]


@pytest.fixture
def account(api: ApiServer, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pod has of its service account."""
    made: Any = api.core().create_namespaced_service_account_token("requeue", NAMESPACE, {"spec": {}})
    (tmp_path / "token").write_text(made.status.token)
    (tmp_path / "namespace").write_text(NAMESPACE)
    (tmp_path / "ca.crt").write_bytes(api.certificate.read_bytes())
    monkeypatch.setattr(inside, "ACCOUNT", tmp_path)
    host, _, port = api.address.partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)


def pods(api: ApiServer, job: str) -> list[Any]:
    return api.core().list_namespaced_pod(NAMESPACE, label_selector=f"batch.kubernetes.io/job-name={job}").items


def placed(api: ApiServer, job: str) -> int:
    return sum(bool(pod.spec.node_name) and not pod.metadata.deletion_timestamp for pod in pods(api, job))


def job(api: ApiServer, name: str) -> Any:
    return client.BatchV1Api(api.client()).read_namespaced_job(name, NAMESPACE)


def conditions(api: ApiServer, name: str) -> list[str]:
    return [each.type for each in job(api, name).status.conditions or [] if each.status == "True"]


def leave(api: ApiServer, name: str) -> None:
    """Do what a kubelet does for pods that are asked to leave."""
    for pod in pods(api, name):
        if pod.metadata.deletion_timestamp:
            api.core().delete_namespaced_pod(pod.metadata.name, NAMESPACE, grace_period_seconds=0)


@pytest.mark.usefixtures("account")
def test_it_may_do_nothing_else(names: list[str]) -> None:
    for path in (f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", f"/api/v1/namespaces/{NAMESPACE}/secrets"):
        with pytest.raises(inside.RefusedError, match="403"):
            inside.ask(path)
    with pytest.raises(inside.RefusedError, match="403"):
        inside.ask(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/another", {"spec": {"suspend": True}})
    assert inside.ask(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{names[0]}")["kind"] == "Job"


@pytest.mark.usefixtures("account")
def test_the_one_that_waits_lets_its_node_go_and_tries_again_once_the_other_is_done(
    api: ApiServer, names: list[str]
) -> None:
    first, second = names
    began = datetime.now(UTC)
    until(lambda: any(pod.status.conditions for pod in pods(api, second) if not pod.spec.node_name), "one waits")
    requeue.look(names, timedelta(hours=1), 0, began)
    assert not job(api, second).spec.suspend, "it may hold its node for an hour"
    requeue.look(names, HOLD, 0, began)
    until(lambda: "Suspended" in conditions(api, second), "suspended")
    until(lambda: not leave(api, second) and not pods(api, second), "its pods leave")
    assert (job(api, second).status.failed or 0, placed(api, first)) == (0, 2)

    # Hours are as long as they are: the mark says for how long it rests.
    rests = {"metadata": {"annotations": {requeue.QUEUED: "2026-01-01T00:00:00+00:00/2999-01-01T00:00:00+00:00"}}}
    client.BatchV1Api(api.client()).patch_namespaced_job(second, NAMESPACE, rests)
    earlier = datetime(2025, 1, 1, tzinfo=UTC)
    requeue.look(names, HOLD, 0, earlier)
    assert job(api, second).spec.suspend, "nothing has changed"

    done = pods(api, first)[0].metadata.name
    api.core().patch_namespaced_pod_status(done, NAMESPACE, {"status": {"phase": "Succeeded"}})
    until(lambda: not leave(api, first) and "Complete" in conditions(api, first), "the first is done")
    requeue.look(names, HOLD, 0, earlier)
    until(lambda: placed(api, second) == 2, "the second has all that it needs")
    requeue.look(names, HOLD, 0, earlier)
    assert not job(api, second).spec.suspend


def test_fewer_workers_than_were_given_up_end_a_training_which_saves_before(api: ApiServer) -> None:
    """The Job controller keeps the lowest indexes. Of three workers the first was given up; the others train."""
    add_node(api, "another")
    inputs = jobs(recorded("local", trainings={"c": {"workers": {"count": 3, "min": 1}}}))["c"].inputs
    name, batch = create(api, inputs, backoffLimitPerIndex=0), client.BatchV1Api(api.client())
    until(lambda: placed(api, name) == 3, "three train")
    first = min(pod.metadata.name for pod in pods(api, name))
    api.core().patch_namespaced_pod_status(first, NAMESPACE, {"status": {"phase": "Failed"}})
    until(lambda: job(api, name).status.failed_indexes == "0", "the first is given up")
    size = {"parallelism": 1, "completions": 1, "maxFailedIndexes": 0}
    batch.patch_namespaced_job(name, NAMESPACE, {"spec": size})
    until(lambda: "FailureTarget" in conditions(api, name), "the end is near")
    assert "Failed" not in conditions(api, name), "`trainyard up` waits for it (cli/lifecycle.py)"
    left = [pod.metadata for pod in pods(api, name) if pod.metadata.name != first]
    assert [pod.deletion_grace_period_seconds for pod in left] == [30, 30], "time to save"
    until(lambda: not leave(api, name) and "Failed" in conditions(api, name), "the end")
