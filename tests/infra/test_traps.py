"""The traps of a cluster that the stack creates, on the recorded graphs of both clouds.

The numbers are those of the project's list of what users of comparable systems hit. Each docstring says what happens
without the property that its test checks. test_gcp_traps.py and test_aws_traps.py have those of one cloud.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.clouds import CLOUDS
from infra.parse import cluster_kind
from infra.stackfiles import ROOT, marks, stack_file_values
from review.policy import LABELLED_BY
from review.recording import Recorded, Recording, record
from tests.infra.recorded import changed, recorded

#: Cloud -> kind of its node groups, command that prints credentials, identifier of the cluster.
FACTS = {
    "gke": ("NodePool", ["gke-gcloud-auth-plugin"], "your-project/us-central1-a/{name}"),
    "eks": ("NodeGroup", ["aws", "eks", "get-token"], "us-east-2/{name}"),
}
ARN = "arn:aws:iam::123456789012:role/ops"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gcp-a100": ("gcp-a100", {}),
    "gcp-c3": ("gcp-c3", {}),
    "gcp-smoke": ("gcp-smoke", {}),
    "aws-private": ("aws-g4dn", {}),
    "aws-public": ("aws-g4dn", {"publicNodes": True}),
    "aws-options": ("aws-g4dn", {"irsa": True, "admins": [ARN]}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, Recording]:
    name, change = CASES[request.param]
    return name, record(name, changed(name, eks=change)) if change else recorded(name)


@pytest.fixture
def name(case: tuple[str, Recording]) -> str:
    return case[0]


@pytest.fixture
def stack(case: tuple[str, Recording]) -> Recording:
    return case[1]


@pytest.fixture
def kind(name: str) -> str:
    return cluster_kind(stack_file_values(name))


@pytest.fixture
def facts(kind: str) -> tuple[str, list[str], str]:
    return FACTS[kind]


def cluster(stack: Recording) -> Recorded:
    return stack.one("Cluster", "cluster")


def provider(stack: Recording, which: str) -> Recorded:
    return next(item for item in stack.resources if item.type == f"pulumi:providers:{which}")


def objects(stack: Recording) -> list[Recorded]:
    """The Kubernetes objects."""
    found = stack.all("kubernetes:")
    assert found
    return found


def test_t1_destroy_deletes_no_object_one_by_one(stack: Recording) -> None:
    """Otherwise it waits for, and fails on, objects of a cluster that is going away anyway."""
    for item in objects(stack):
        assert item.deleted_with == cluster(stack).urn, f"{item.kind} {item.name}"


def test_t2_objects_come_after_all_nodes_and_so_go_before_them(
    stack: Recording, facts: tuple[str, list[str], str]
) -> None:
    """Otherwise a namespace stays in Terminating, because nothing runs its finalizers any more."""
    nodes = {item.urn for item in stack.resources if item.kind == facts[0]}
    assert len(nodes) > 1
    early = [item for item in objects(stack) if not nodes <= stack.earlier(item)]
    # AWS's add-ons with pods wait for this policy, which is the cluster's own: no namespace of ours ends after it, and
    # destroy leaves it to the cluster (t1), so that those pods keep their traffic to the last.
    assert [(item.kind, item.inputs["metadata"]["namespace"]) for item in early] == (
        [("NetworkPolicy", "kube-system")] if facts[0] == "NodeGroup" else []
    )
    for item in early:
        assert "finalizers" not in item.inputs["metadata"]
        assert not item.inputs["spec"]["podSelector"], "all pods of kube-system"
        pods = [addon for addon in stack.all("aws:eks/addon:Addon") if addon.name in ("coredns", "aws-efs-csi-driver")]
        assert len(pods) == 2
        for addon in pods:
            assert item.urn in stack.earlier(addon), addon.name


def test_t4_nothing_in_the_cluster_makes_things_outside_of_it(stack: Recording) -> None:
    """Otherwise load balancers, their rules and disks that nobody declared stay, are billed, and hold the network."""
    for item in objects(stack):
        assert item.kind not in ("Ingress", "Gateway")
        if item.kind == "Service":
            assert item.inputs["spec"].get("type", "ClusterIP") == "ClusterIP"
        if item.kind == "PersistentVolumeClaim":
            assert item.inputs["spec"]["storageClassName"] == "", "a class would make a disk of its own"
        if item.kind == "StatefulSet":
            assert "volumeClaimTemplates" not in item.inputs["spec"]


def test_t5_deletion_protection_is_said_and_not_the_providers_default(stack: Recording) -> None:
    """Otherwise the first destroy fails."""
    assert cluster(stack).inputs["deletionProtection"] is False
    assert not cluster(stack).protect


@pytest.mark.parametrize("which", ["gcp-c3", "aws-g4dn"])
def test_t5_protection_is_refused_in_the_preview_of_a_destroy(which: str) -> None:
    """If only the cloud refused, the destroy would have dropped the nodes from the state by then."""
    protected = cluster(record(which, changed(which, cluster={"deletionProtection": True})))
    assert protected.inputs["deletionProtection"] is True
    assert protected.protect


def test_t7_claims_are_bound_by_name_and_wait_for_their_volume(stack: Recording) -> None:
    """Otherwise a claim is stuck on pv-protection, or binds somebody else's volume."""
    volumes = {item.inputs["metadata"]["name"]: item for item in objects(stack) if item.kind == "PersistentVolume"}
    claims = [item for item in objects(stack) if item.kind == "PersistentVolumeClaim"]
    assert claims
    for claim in claims:
        volume = volumes[claim.inputs["spec"]["volumeName"]]
        assert volume.urn in stack.earlier(claim)
        assert volume.inputs["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_t8_the_cluster_is_known_at_preview(stack: Recording, facts: tuple[str, list[str], str]) -> None:
    """Otherwise a preview in which the kubeconfig is unknown replaces every object."""
    identifier = provider(stack, "kubernetes").inputs["clusterIdentifier"]
    assert identifier == facts[2].format(name=cluster(stack).inputs["name"])


def test_t9_no_token_is_in_the_kubeconfig(stack: Recording, kind: str, facts: tuple[str, list[str], str]) -> None:
    """Otherwise the token is in the state, and soon expired."""
    config = json.loads(provider(stack, "kubernetes").inputs["kubeconfig"])
    (user,), (where,) = config["users"], config["clusters"]
    assert set(user["user"]) == {"exec"}
    called = [user["user"]["exec"]["command"], *user["user"]["exec"].get("args", [])]
    assert called[: len(facts[1])] == facts[1]
    # GKE is reached by DNS name, with a publicly trusted certificate.
    assert kind == "gke" or where["cluster"]["certificate-authority-data"]


def test_t10_no_default_provider_and_so_no_stray_object(stack: Recording, name: str) -> None:
    """Otherwise objects land in whatever cluster, project or account the environment points at."""
    for item in stack.resources:
        if item.custom and item.type.startswith(("gcp:", "aws:", "kubernetes:")):
            assert item.provider, f"{item.kind} {item.name} has the default provider"
    assert "pulumi:disable-default-providers: [kubernetes, gcp, aws]" in (ROOT / f"Pulumi.{name}.yaml").read_text()


def test_t18_accelerators_are_asked_for_by_name_which_nodes_that_are_not_there_can_answer(
    stack: Recording, name: str
) -> None:
    """Otherwise the autoscaler sees no reason to add a node to an empty group (DRA)."""
    pod = stack.one("Job", "training").inputs["spec"]["template"]["spec"]
    assert "resourceClaims" not in pod
    wanted = {"gcp-a100": "8", "gcp-smoke": "1", "aws-g4dn": "1"}.get(name)
    assert pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") == wanted


def test_t22_a_training_is_neither_awaited_nor_forgotten(stack: Recording) -> None:
    """Otherwise `pulumi up` waits for its end, `up` or a refresh restarts it while it runs, or it runs for ever."""
    job = stack.one("Job", "training")
    annotations = job.inputs["metadata"]["annotations"]
    assert annotations["pulumi.com/skipAwait"] == "true"
    assert "pulumi.com/replaceUnready" not in annotations
    assert "ttlSecondsAfterFinished" not in job.inputs["spec"]
    assert job.delete_before_replace
    assert job.inputs["spec"]["activeDeadlineSeconds"] > 0


def test_all_that_is_billed_can_be_found_by_its_mark(stack: Recording, name: str, kind: str) -> None:
    package = CLOUDS[kind].sdk.removeprefix("pulumi-")
    found = json.loads(provider(stack, package).inputs[LABELLED_BY[package]])
    assert found.get("tags", found) == marks(name)
