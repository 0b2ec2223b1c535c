"""Every name that a stack can have, the default included, passes the rules of every resource named after it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from botocore.loaders import Loader
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.config import ConfigError
from infra.names import ZONE, resource_name, rows, unusable_names
from infra.parse import cluster_kind, parse
from infra.sections import ClusterConfig
from infra.stackfiles import stack_file_values
from review.recording import record
from tests.infra.recorded import changed

#: Type and property of a resource -> service and shape in AWS's own service models.
MODELS = {
    "aws:iam/role:Role name": ("iam", "roleNameType"),
    "aws:ecr/repository:Repository name": ("ecr", "RepositoryName"),
    "aws:eks/cluster:Cluster name": ("eks", "ClusterName"),
    "aws:kms/alias:Alias name": ("kms", "AliasNameType"),
    "aws:cloudwatch/logGroup:LogGroup name": ("logs", "LogGroupName"),
    "aws:ec2/launchTemplate:LaunchTemplate name": ("ec2", "LaunchTemplateName"),
}
#: Variants of stacks with resources that their files do not have.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gcp-c3", {"dataset": {"input": ["gs://bucket/texts"]}}),
    ("gcp-c3", {"storage": {"kind": "filestore", "tier": "ZONAL", "sizeGib": 1024}}),
    ("aws-g4dn", {"nodes": {"compactPlacement": True}, "dataset": {"input": ["s3://bucket/texts"]}}),
    ("aws-g4dn", {"eks": {"irsa": True}}),
]
NAMES = st.from_regex(r"[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,60}[a-zA-Z0-9])?", fullmatch=True)


def problems(stack: str, file: str, **sections: dict[str, Any]) -> list[str]:
    try:
        parse(changed(file, **sections), stack)
    except ConfigError as error:
        return [*error.lines]
    return []


def fits(row: dict[str, Any], text: str) -> bool:
    within = row.get("least", 1) <= len(text) <= row["most"]
    return within and bool(re.fullmatch(row["pattern"], text))


@cache
def model(type_: str) -> dict[str, Any]:
    service, shape = MODELS[type_]
    described = Loader().load_service_model(service, "service-2")["shapes"][shape]
    return {key: described[key] for key in ("min", "max", "pattern") if key in described}


@pytest.mark.parametrize("kind", ["gke", "eks"])
@settings(max_examples=25, deadline=None)
@given(stack=NAMES)
def test_a_stack_name_that_is_accepted_passes_every_rule(kind: str, stack: str) -> None:
    name = f"trainyard-{stack}"
    found = list(unusable_names(ClusterConfig.model_construct(kind=kind, name=name), stack))
    unfit = [
        row
        for row in rows(kind)
        if not fits(row, resource_name(row, name=name, stack=stack.lower(), namespace="trainyard"))
    ]
    assert bool(found) == bool(unfit)
    assert {line.split(":")[0] for line in found} <= {"cluster.name", "stack"}
    assert all("\n" not in line and "; " in line for line in found)


@settings(max_examples=25, deadline=None)
@given(name=NAMES)
def test_what_the_rules_for_aws_accept_the_models_of_its_services_do(name: str) -> None:
    for row in rows("eks"):
        if row.get("type") in MODELS:
            text, rule = resource_name(row, name=name), model(row["type"])
            assert (row["most"], row.get("least", 1)) == (rule["max"], rule.get("min", 1))
            if fits(row, text):
                assert re.fullmatch(rule["pattern"], text), row["of"]


@pytest.mark.parametrize(("file", "sections"), VARIANTS)
def test_everything_that_is_called_after_the_stack_has_a_rule(file: str, sections: dict[str, Any]) -> None:
    """Finds a name that has no row in names.yaml, or that is longer than its row says."""
    kind, name = cluster_kind(stack_file_values(file)), f"trainyard-{file}"
    for item in record(file, changed(file, **sections)).resources:
        for key in ("name", "accountId", "nodeGroupName"):
            value = str(item.inputs.get(key) or "")
            if name not in value or not item.type.startswith(("gcp:", "aws:")):
                continue
            covering = [row for row in rows(kind) if row.get("type", "").startswith(item.type.rpartition("/")[0])]
            longest = [resource_name(row, name=name, namespace="trainyard", stack=file) for row in covering]
            assert longest, f"{item.type} is called {value}: it needs a row"
            assert max(map(len, longest)) >= len(value.replace("use2-az1", ZONE)), (
                f"{value} is longer than its row says"
            )


@pytest.mark.parametrize(
    ("stack", "file", "sections", "expected"),
    [
        (
            "x.y",
            "aws-g4dn",
            {},
            "cluster.name: 'trainyard-x.y' makes an IAM role 'trainyard-x.y-efs-driver'; allowed: lower-case letters, "
            "digits and single '-' inside; set cluster.name",
        ),
        ("a--b", "aws-g4dn", {}, "cluster.name: 'trainyard-a--b' makes an IAM role"),
        (
            "x" * 45,
            "aws-g4dn",
            {},
            "cluster.name: 'trainyard-" + "x" * 45 + "' has 55 characters; allowed: 53, because an",
        ),
        (
            "a-long-team-name",
            "gcp-c3",
            {},
            "cluster.name: 'trainyard-a-long-team-name' has 26 characters; allowed: 24, because the nodes' service "
            "account is called '{name}-nodes'; set cluster.name",
        ),
        (
            "x.y",
            "gcp-c3",
            {"cluster": {"name": "good"}},
            "stack: 'x.y' makes the label of what is billed 'x.y'; allowed:",
        ),
        (
            "a",
            "gcp-c3",
            {"cluster": {"namespace": "kube-system"}},
            "cluster.namespace: 'kube-system' makes the namespace",
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_name_that_cannot_be_is_one_line(stack: str, file: str, sections: dict[str, Any], expected: str) -> None:
    (line,) = problems(stack, file, **sections)
    assert line.startswith(expected)
