"""What a cloud refuses, or does behind the program's back, held against the graphs of its stacks: nothing is deleted
while it is in use (order.yaml), and no preview shows what the cloud itself has set (sets.yaml)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jmespath
import pytest

from infra.clouds import CLOUDS
from infra.facts import load
from infra.stackfiles import ROOT, marks
from review import computed
from review.policy import LABELLED_BY
from review.recording import Recorded, Recording, record
from tests.infra.recorded import CLOUD_STACKS, VARIANTS, changed, variant

ORDER = {name: load(ROOT / "infra" / name / "order.yaml") for name in ("gke", "eks")}
SETS = {key: rows for name in ORDER for key, rows in load(ROOT / "infra" / name / "sets.yaml")["sets"].items()}


def order_of(stack: Recording) -> Mapping[str, Any]:
    return ORDER["eks" if stack.all("aws:") else "gke"]


def at(inputs: Any, path: str) -> Any:
    for part in path.split("."):
        inputs = inputs.get(part) if isinstance(inputs, Mapping) else None
    return inputs


def words(value: Any) -> Iterator[str]:
    """Every text that may name a resource: a whole one, an EFS volume's parts (fs-1::fsap-2), the end of an ARN."""
    if isinstance(value, str):
        yield from (value, *value.split("::"), *([value.rpartition("/")[2]] if value.startswith("arn:") else []))
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from words(item)


def known_by(item: Recorded) -> set[str]:
    """Ids, links, names and addresses of a resource."""
    place = "us-east-2" if item.type.startswith("aws:") else "your-project"
    id_, outputs = computed.outputs(item.type, item.name, item.inputs, place)
    addresses = [address for network in outputs.get("networks") or [] for address in network["ipAddresses"]]
    return {id_, *addresses, *(outputs[key] for key in ("selfLink", "name", "email") if key in outputs)}


def in_use(stack: Recording) -> Iterator[tuple[Recorded, Recorded]]:
    """(resource, another that must be gone before it)."""
    order, of_kind = order_of(stack), {}
    named = {item.urn: set(words(item.inputs)) for item in stack.resources}
    for item in stack.resources:
        of_kind.setdefault(item.type, []).append(item)
    for section in ("in_use", "beside", "needed"):
        for type_, users in order.get(section, {}).items():
            for item in of_kind.get(type_, []):
                by_key = users if isinstance(users, dict) else {"": users}
                for key, types in by_key.items():
                    by = {"in_use": known_by(item), "beside": {item.inputs.get(key)}}.get(section)
                    for user in (user for kind in types.split() for user in of_kind.get(kind, [])):
                        if by is None or by & named[user.urn]:
                            yield item, user


@pytest.fixture(params=VARIANTS)
def stack(request: pytest.FixtureRequest) -> Recording:
    return variant(request.param)


def test_nothing_is_deleted_while_it_is_in_use(stack: Recording) -> None:
    pairs = list(in_use(stack))
    assert len(pairs) > 5
    for item, user in pairs:
        assert item.urn in stack.earlier(user), f"{item.kind} {item.name} before {user.kind} {user.name}"


def test_what_costs_is_deleted_by_itself_and_what_goes_with_the_cluster_is_not(stack: Recording) -> None:
    """Else it stays, and is billed, after the cluster is gone; or a destroy waits for what is going away anyway."""
    along = order_of(stack)["with_cluster"].split()
    for item in (*stack.all("gcp:"), *stack.all("aws:")):
        assert (item.deleted_with == stack.one("Cluster").urn) == (item.type in along), f"{item.type} {item.name}"


def test_objects_come_after_all_nodes_and_add_ons_with_pods_after_some(stack: Recording) -> None:
    """Else a namespace stays in Terminating, because nothing runs its finalizers; or `up` waits for pods in vain."""
    nodes = {item.urn for item in stack.resources if item.kind in ("NodePool", "NodeGroup")}
    assert len(nodes) > 1
    early = [item for item in stack.all("kubernetes:") if not nodes <= stack.earlier(item)]
    # EKS's add-ons with pods wait for this policy, which goes with the cluster, so that they keep their traffic.
    assert [(item.kind, item.at("metadata", "namespace")) for item in early] == (
        [("NetworkPolicy", "kube-system")] if stack.all("aws:") else []
    )
    on_nodes = order_of(stack).get("on_nodes", "").split()
    waiting = [item for item in stack.all("aws:eks/addon") if item.inputs["addonName"] in on_nodes]
    assert len(waiting) == len(on_nodes)
    for item in waiting:
        assert nodes & stack.earlier(item), item.name
        assert {policy.urn for policy in early} <= stack.earlier(item), item.name


def test_pods_go_where_they_belong(stack: Recording) -> None:
    """Those that train fit the nodes of every pool; all others stay off the expensive ones, and off Spot machines."""
    pools = [item for item in stack.resources if item.kind in ("NodePool", "NodeGroup") and item.name != "system"]
    nodes = [item.inputs.get("nodeConfig", item.inputs) for item in pools]
    for item in stack.all("kubernetes:"):
        if item.kind in ("Job", "Deployment", "StatefulSet"):
            spec = item.inputs["spec"]["template"]["spec"]
            tolerated = {(each["key"], each.get("value")) for each in spec.get("tolerations", [])}
            if not item.name.startswith(("training", "gpu-check")):
                assert not tolerated, item.name
                continue
            for node in nodes:
                assert {(taint["key"], taint["value"]) for taint in node["taints"]} <= tolerated, item.name
                assert spec["nodeSelector"].items() <= node["labels"].items(), item.name


def test_claims_are_bound_by_name_and_wait_for_their_volume(stack: Recording) -> None:
    """Else a claim is stuck on pv-protection, or binds somebody else's volume."""
    volumes = {item.at("metadata", "name"): item for item in stack.resources if item.kind == "PersistentVolume"}
    claims = [item for item in stack.resources if item.kind == "PersistentVolumeClaim"]
    assert claims
    for claim in claims:
        assert volumes[claim.inputs["spec"]["volumeName"]].urn in stack.earlier(claim)


def test_all_that_is_billed_has_the_marks_by_which_it_is_found(stack: Recording) -> None:
    (kind,) = {"eks" if item.type.startswith("aws:") else "gke" for item in stack.resources if item.kind == "Cluster"}
    package = CLOUDS[kind].sdk.removeprefix("pulumi-")
    (provider,) = [item for item in stack.resources if item.type == f"pulumi:providers:{package}"]
    found = json.loads(provider.inputs[LABELLED_BY[package]])
    assert found.get("tags", found) == marks(stack.outputs["cluster"].removeprefix("trainyard-"))


@pytest.mark.parametrize("name", ["gcp-c3", "aws-g4dn"])
def test_protection_is_refused_in_the_preview_of_a_destroy(name: str) -> None:
    """If only the cloud refused, the destroy would have dropped the nodes from the state by then."""
    protected = record(name, changed(name, cluster={"deletionProtection": True})).one("Cluster")
    assert protected.inputs["deletionProtection"] is True
    assert protected.protect


@pytest.mark.parametrize("name", CLOUD_STACKS)
def test_no_object_lands_where_the_environment_points(name: str) -> None:
    assert "pulumi:disable-default-providers: [kubernetes, gcp, aws]" in (ROOT / f"Pulumi.{name}.yaml").read_text()


def test_nothing_slow_waits_for_the_cluster(stack: Recording) -> None:
    for kind in ("Image", "Disk", "Instance", "FileSystem", "MountTarget", "Repository"):
        for item in (other for other in stack.resources if other.kind == kind):
            assert stack.one("Cluster").urn not in stack.earlier(item), f"{kind} {item.name} waits for the cluster"


def test_no_preview_shows_what_the_cloud_has_set(stack: Recording) -> None:
    """No value that the cloud sets is declared otherwise, or not left to it."""
    assert not [
        f"{item.name}: {row['path']}"
        for item in stack.resources
        for row in SETS.get(item.type, [])
        if all(at(item.inputs, path) == wanted for path, wanted in row.get("if", {}).items())
        and ("declared" not in row or at(item.inputs, row["declared"]) is not None)
        and at(item.inputs, row["path"]) != row["to"]
        and not any(f"{row['path']}.".startswith(f"{path}.") for path in item.ignore_changes)
    ]


def test_each_role_is_one_that_its_service_may_assume(stack: Recording) -> None:
    roles = {item.inputs["name"]: item for item in stack.all("aws:iam/role:")}
    for said in order_of(stack).get("acts_by", {}).values():
        for item in stack.all(said["type"]):
            arns = jmespath.search(said["role"], item.inputs) or []
            for arn in [arns] if isinstance(arns, str) else arns:
                statements = json.loads(roles[arn.rpartition("/")[2]].inputs["assumeRolePolicy"])["Statement"]
                assert said["service"] in str(statements), f"{item.name}: {said['service']} may not assume {arn}"
