"""A name that is accepted passes the rules of every resource that is named after the stack; others are one line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from botocore.loaders import Loader

from review.recording import record
from tests.infra.recorded import changed, problems

#: Type of a resource -> service and shape of its name in AWS's own service models.
MODELS = {
    "aws:iam/role:Role": ("iam", "roleNameType"),
    "aws:ecr/repository:Repository": ("ecr", "RepositoryName"),
    "aws:eks/cluster:Cluster": ("eks", "ClusterName"),
    "aws:kms/alias:Alias": ("kms", "AliasNameType"),
    "aws:cloudwatch/logGroup:LogGroup": ("logs", "LogGroupName"),
    "aws:ec2/launchTemplate:LaunchTemplate": ("ec2", "LaunchTemplateName"),
}
LONG = {"aws-g4dn": "x" * 38 + "-1", "gcp-c3": "x" * 22 + "-1"}


def test_the_models_of_amazon_accept_all_names_of_the_longest_that_is_accepted() -> None:
    cluster = {"name": LONG["aws-g4dn"]}
    parts = {"nodes": {"compactPlacement": True}, "dataset": {"input": ["s3://bucket/texts"]}}
    stack = record("aws-g4dn", changed("aws-g4dn", cluster=cluster, **parts))
    for type_, (service, shape) in MODELS.items():
        model = Loader().load_service_model(service, "service-2")["shapes"][shape]
        for item in stack.all(type_):
            name = item.inputs["name"]
            assert name.startswith(("alias/", "/aws/eks/", cluster["name"]))
            assert len(name) <= model["max"], name
            assert re.fullmatch(model.get("pattern", ".*"), name), name
        assert stack.all(type_), "nothing of it was tried"


@pytest.mark.parametrize("storage", [{}, {"kind": "filestore", "tier": "ZONAL", "sizeGib": 1024}])
def test_google_accepts_all_names_of_the_longest_that_is_accepted(storage: dict[str, Any]) -> None:
    parts = {"cluster": {"name": LONG["gcp-c3"]}, "dataset": {"input": ["gs://bucket/texts"]}, "storage": storage}
    stack = record("gcp-c3", changed("gcp-c3", **parts))
    most = {"accountId": 30, "name": 40}
    named = [(key, item.inputs[key]) for item in stack.all("gcp:") for key in most if key in item.inputs]
    ours = [(key, name) for key, name in named if name.startswith(LONG["gcp-c3"])]
    assert len(ours) > 5
    assert [name for key, name in ours if len(name) > most[key]] == []


@pytest.mark.parametrize(
    ("stack", "file", "cluster", "expected"),
    [
        (
            "x.y",
            "aws-g4dn",
            {},
            "cluster.name: 'trainyard-x.y' is no name that all parts can have; allowed: at most 40",
        ),
        ("a--b", "aws-g4dn", {}, "cluster.name: 'trainyard-a--b' is no name"),
        ("A", "gcp-c3", {}, "cluster.name: 'trainyard-A' is no name"),
        ("x" * 31, "aws-g4dn", {}, "cluster.name: 'trainyard-xxx"),
        ("a", "aws-g4dn", {"name": "sg-team"}, "cluster.name: 'sg-team' is no name"),
        ("a", "aws-g4dn", {"name": "7b"}, "cluster.name: '7b' is no name"),
        ("x-long-team-sub", "gcp-c3", {}, "cluster.name: 'trainyard-x-long-team-sub' is no name"),
        ("x.y", "gcp-c3", {"name": "good"}, "stack: 'x.y' is no name"),
        ("a", "gcp-c3", {"namespace": "kube-system"}, "cluster.namespace: 'kube-system' is Kubernetes' own"),
    ],
)
def test_a_name_that_cannot_be_is_one_line(stack: str, file: str, cluster: dict[str, str], expected: str) -> None:
    (line,) = problems(changed(file, cluster=cluster), stack)
    assert line.startswith(expected)


@pytest.mark.parametrize(("stack", "file"), [("x" * 30, "aws-g4dn"), ("x" * 14, "gcp-c3"), ("A.b", "local")])
def test_a_name_that_can_be_is_accepted(stack: str, file: str, local_kubeconfig: object) -> None:
    assert problems(changed(file), stack) == []
