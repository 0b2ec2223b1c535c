"""cluster-autoscaler as a workload: what it may do, and what it must not."""

from __future__ import annotations

from typing import Any

from tests.infra.eks import stack

NAME = "cluster-autoscaler"
READING = {"get", "list", "watch"}


def rules(kind: str) -> list[dict[str, Any]]:
    return stack().one(kind, NAME).inputs["rules"]


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
