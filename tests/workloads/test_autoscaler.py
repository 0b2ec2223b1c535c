"""cluster-autoscaler as a workload: its flags, what it may do, and what it must not."""

from __future__ import annotations

from typing import Any

from tests.infra.eks import pod, stack

NAME = "cluster-autoscaler"
READING = {"get", "list", "watch"}


def rules(kind: str) -> list[dict[str, Any]]:
    return stack().one(kind, NAME).inputs["rules"]


def flags() -> dict[str, str]:
    (container,) = pod(stack(), "Deployment", NAME)["containers"]
    return dict(argument.removeprefix("--").split("=", 1) for argument in container["args"])


def test_it_finds_the_groups_of_this_cluster_and_stops_at_what_the_stack_allows() -> None:
    tags = "asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/trainyard-aws-g4dn"
    assert flags()["node-group-auto-discovery"] == tags
    # Three system nodes and four that train.
    assert flags()["max-nodes-total"] == "7"


def test_accelerators_that_nothing_needs_go_within_minutes() -> None:
    assert flags()["scale-down-unneeded-time"] == "3m"
    # Otherwise EKS' own pods keep a second system node for ever.
    assert flags()["skip-nodes-with-local-storage"] == flags()["skip-nodes-with-system-pods"] == "false"
    # It does not move the pods that a training needs.
    for kind, name in [("Job", "training"), ("StatefulSet", "etcd")]:
        annotations = stack().one(kind, name).inputs["spec"]["template"]["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false", name


def test_it_reads_no_secret_and_writes_only_what_it_has_to() -> None:
    written = {
        (group, resource)
        for rule in rules("ClusterRole")
        if set(rule["verbs"]) - READING
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert written == {("", "nodes"), ("", "pods/eviction"), ("", "pods/status"), ("", "events")}
    for rule in [*rules("ClusterRole"), *rules("Role")]:
        assert "*" not in rule["verbs"]
        assert not {"secrets", "*"} & set(rule["resources"]) or rule["apiGroups"] in (
            ["storage.k8s.io"],
            ["resource.k8s.io"],
        )


def test_it_changes_nothing_but_its_own_in_the_systems_namespace() -> None:
    for rule in rules("Role"):
        if {"update", "delete", "patch"} & set(rule["verbs"]):
            assert all(name.startswith(NAME) for name in rule["resourceNames"]), rule


def test_it_is_there_before_the_training_asks_for_nodes_and_off_the_nodes_that_it_removes() -> None:
    assert stack().one("Deployment", NAME).urn in stack().earlier(stack().one("Job", "training"))
    spec = pod(stack(), "Deployment", NAME)
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert not spec.get("tolerations")
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
