"""The graphs of the AWS stacks and of variants, checked against what features need (infra/eks/features.yaml)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import get_args

import pytest

from infra.eks.keys import EksConfig
from infra.features import features, features_of
from review.recording import Recorded, Recording
from tests.infra.recorded import variant, variants_of

#: Kind -> (user of its role in features.yaml, input that names the role); end of a role's name -> its user.
ACTS_BY = {"Cluster": ("cluster", "roleArn"), "NodeGroup": ("nodes", "nodeRoleArn")}
USERS = {"network": "network", "efs-driver": "driver", "efs-node": "mounts", "autoscaler": "autoscaler"}


def not_met(stack: Recording) -> list[str]:
    """Needs of resources on AWS that do not come before them."""
    problems: list[str] = []
    for item in stack.resources:
        needs = features_of("eks", item.type, item.inputs) if item.custom else {}
        if not needs:
            continue
        urns = stack.earlier(item)
        before = [other for other in stack.resources if other.urn in urns]
        addons = {other.inputs["addonName"] for other in before if other.kind == "Addon"} | {
            item.inputs.get("addonName")
        }
        for name, feature in needs.items():
            said = f"{item.kind} {item.name}: {name} needs"
            for who, role in roles(item):
                granted = grants(before, role)
                problems += [f"{said} {policy}" for policy in feature.roles.get(who, ()) if policy not in granted]
            # Add-ons come in any order among themselves; the resources that they serve come after them.
            if item.kind in ("NodeGroup", "PersistentVolume"):
                problems += [f"{said} the add-on {addon}" for addon in feature.addons if addon not in addons]
    return problems


def roles(item: Recorded) -> Iterator[tuple[str, str]]:
    """(user, name of its role) of everybody who acts for a resource."""
    if item.kind in ACTS_BY:
        who, key = ACTS_BY[item.kind]
        yield who, item.inputs[key].rsplit("/", 1)[1]
    given = [item.inputs, *item.inputs.get("podIdentityAssociations", [])]
    for arn in (each.get("roleArn") for each in given if item.kind in ("Addon", "PodIdentityAssociation")):
        for name, who in USERS.items():
            if arn and arn.endswith(f"-{name}"):
                yield who, arn.rsplit("/", 1)[1]


def grants(before: list[Recorded], role: str) -> set[str]:
    found: set[str] = set()
    for item in before:
        if item.inputs.get("role") == role and item.kind == "RolePolicyAttachment":
            found.add(item.inputs["policyArn"].rsplit("/", 1)[1])
        if item.inputs.get("role") == role and item.kind == "RolePolicy":
            for statement in json.loads(item.inputs["policy"])["Statement"]:
                actions = statement["Action"]
                found |= {actions} if isinstance(actions, str) else set(actions)
    return found


@pytest.mark.parametrize("name", variants_of("aws"))
def test_every_resource_comes_after_all_that_it_needs_and_the_doctor_asks_for_its_rights(name: str) -> None:
    stack = variant(name)
    assert not_met(stack) == []
    for item in stack.all("aws:"):
        assert any(feature.permissions for feature in features_of("eks", item.type, item.inputs).values()), item.type


def test_every_version_has_what_the_nodes_count_on() -> None:
    oldest = float(features("eks")["nodes"].versions["eks"])
    assert all(float(version) >= oldest for version in get_args(EksConfig.model_fields["version"].annotation))
