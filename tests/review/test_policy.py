"""Each policy rule finds every way to break it, and no stack of the repository breaks any."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cli.__main__ import main
from infra.image import RECIPES
from infra.stackfiles import ROOT
from review.policy import RULES, broken, demand, name
from review.recording import Recorded, Recording, record_anywhere
from tests.infra.recorded import VARIANTS, changed, recorded, variant

Inputs = dict[str, Any]
INTERNET = "0.0.0.0/0"
LABELS = {"app": "trainyard", "stack": "s"}
FIREWALL, GKE = "gcp:compute/firewall:Firewall", "gcp:container/cluster:Cluster"
POOL, GROUP, TEMPLATE = (
    "gcp:container/nodePool:NodePool",
    "aws:eks/nodeGroup:NodeGroup",
    "aws:ec2/launchTemplate:LaunchTemplate",
)
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EKS, EFS_POLICY = "aws:eks/cluster:Cluster", "aws:efs/fileSystemPolicy:FileSystemPolicy"
POD, NAMESPACE = "kubernetes:core/v1:Pod", "kubernetes:core/v1:Namespace"


def declared(type_: str, inputs: Inputs, provider: str = "urn:provider::id") -> Recorded:
    return Recorded(type=type_, name="x", urn=f"urn:{type_}", inputs=inputs, provider=provider)


PROVIDER = replace(declared("pulumi:providers:gcp", {"defaultLabels": json.dumps(LABELS)}), urn="urn:provider")


def problems(*items: Recorded) -> set[str]:
    """Names of the rules that the last of these resources breaks, beside a provider that labels."""
    return {found.rule for found in broken(Recording([PROVIDER, *items], {})) if found.resource.urn == items[-1].urn}


def efs_policy(principal: Any) -> Inputs:
    allow = {"Effect": "Allow", "Principal": principal, "Action": "elasticfilesystem:ClientMount"}
    return {"policy": json.dumps({"Statement": [allow, {"Effect": "Deny", "Principal": {"AWS": "*"}}]})}


def template(tags: Inputs = LABELS, encrypted: Any = True) -> Inputs:
    return {
        "tagSpecifications": [{"resourceType": what, "tags": tags} for what in ("instance", "volume")],
        "blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"encrypted": encrypted}}],
    }


def scaled(low: int, wanted: int) -> Inputs:
    return {"scalingConfig": {"minSize": low, "desiredSize": wanted}}


def listed(pod: str, **spec: Any) -> Inputs:
    """A pod of kube-system without containers."""
    return {"metadata": {"namespace": "kube-system", "name": pod}, "spec": {"containers": [], **spec}}


def on_node(image_pull_policy: str) -> Inputs:
    container = {"name": "c", "image": "cos-nvidia-installer:fixed", "imagePullPolicy": image_pull_policy}
    return listed("gpu-driver", containers=[container])


def namespace(name: str, component: str) -> Inputs:
    return {"metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}}}


SOCKETS = [{"name": "sockets", "hostPath": {"path": "/"}}]
#: Rule -> resources that break it, and no other rule.
BREAKING: dict[str, list[tuple[str, Inputs]]] = {
    "known-cloud": [("azure-native:storage:StorageAccount", {})],
    "no-open-network": [
        (FIREWALL, {"sourceRanges": ["10.0.0.0/8", "::/0"]}),
        (FIREWALL, {"sourceRanges": ["0.0.0.0/1", "128.0.0.0/1"]}),
        (GKE, {"masterAuthorizedNetworksConfig": {"cidrBlocks": [{"cidrBlock": "::/0"}]}}),
        (GKE, {}),
        ("aws:ec2/securityGroup:SecurityGroup", {"ingress": [{"cidrBlocks": [INTERNET]}]}),
        ("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", {"ingress": [{"ipv6CidrBlocks": ["::/0"]}]}),
        (INGRESS, {"cidrIpv4": INTERNET}),
        (INGRESS, {"cidrIpv6": "::/0"}),
        (EKS, {"vpcConfig": {"endpointPublicAccess": True}}),
        (EKS, {"vpcConfig": {"publicAccessCidrs": [INTERNET]}}),
        (EFS_POLICY, efs_policy({"AWS": "*"})),
    ],
    "no-load-balancer": [
        ("aws:lb/loadBalancer:LoadBalancer", {}),
        ("gcp:compute/forwardingRule:ForwardingRule", {}),
        ("kubernetes:core/v1:Service", {"spec": {"type": "LoadBalancer"}}),
        ("kubernetes:networking.k8s.io/v1:Ingress", {}),
    ],
    "no-worker-at-rest": [
        (POOL, {}),
        (POOL, {"autoscaling": {"totalMinNodeCount": 1}}),
        (POOL, {"autoscaling": {"totalMinNodeCount": 0}, "initialNodeCount": 1}),
        (GROUP, scaled(0, 1)),
        (GROUP, scaled(1, 0)),
        ("aws:ec2/instance:Instance", {}),
    ],
    "encrypted-storage": [
        ("aws:efs/fileSystem:FileSystem", {}),
        (TEMPLATE, template(encrypted=None)),
    ],
    "labels-for-cost": [
        *(("pulumi:providers:gcp", {"defaultLabels": json.dumps({label: "x"})}) for label in LABELS),
        *(("pulumi:providers:aws", {"defaultTags": {"tags": {label: "x"}}}) for label in LABELS),
        (TEMPLATE, template(tags={"app": "trainyard"})),
    ],
    "image-by-digest": [(POD, on_node("IfNotPresent"))],
    "restricted-pods": [
        (NAMESPACE, namespace("team-storage", "namespace")),
        (NAMESPACE, namespace("team", "storage")),
    ],
    "no-privileged-pod": [
        (POD, listed("somebody-else", volumes=SOCKETS)),
        (POD, listed("nvidia-device-plugin", volumes=SOCKETS, hostNetwork=True)),
    ],
}
ALLOWED: list[tuple[str, Inputs]] = [
    (FIREWALL, {"sourceRanges": ["10.0.0.0/8", "203.0.113.0/24"]}),
    (INGRESS, {"referencedSecurityGroupId": "sg-1"}),
    (EKS, {"vpcConfig": {"endpointPublicAccess": False}}),
    (EKS, {"vpcConfig": {"publicAccessCidrs": ["203.0.113.7/32"]}}),
    (GKE, {"controlPlaneEndpointsConfig": {"ipEndpointsConfig": {"enabled": False}}}),
    (EFS_POLICY, efs_policy({"AWS": "arn:aws:iam::1:role/nodes"})),
    (POD, on_node("Never")),
    (POD, listed("nvidia-device-plugin", volumes=SOCKETS)),
    (POD, listed("gpu-driver", hostNetwork=True)),
    (NAMESPACE, namespace("team-storage-storage", "storage")),
]


@pytest.mark.parametrize("rule", BREAKING)
def test_each_way_to_break_a_rule_is_found(rule: str) -> None:
    assert [(item, problems(declared(*item))) for item in BREAKING[rule]] == [(item, {rule}) for item in BREAKING[rule]]


def test_what_is_allowed_breaks_nothing() -> None:
    assert [item for item in ALLOWED if problems(declared(*item))] == []


def test_a_default_provider_labels_nothing() -> None:
    assert problems(declared("gcp:compute/disk:Disk", {}, provider="")) == {"labels-for-cost"}


def test_pods_are_found_in_kinds_that_nobody_thought_of() -> None:
    """A custom resource that makes pods, such as a TrainJob's runtime, must obey the same rules."""
    pod = {"hostNetwork": True, "containers": [{"name": "c", "image": "x:1"}]}
    deep = {"template": {"spec": {"replicatedJobs": [{"template": {"spec": {"template": {"spec": pod}}}}]}}}
    found = problems(declared("kubernetes:trainer.kubeflow.org/v1alpha1:TrainingRuntime", {"spec": deep}))
    assert {"image-by-digest", "no-privileged-pod", "restricted-pods"} <= found


def test_an_image_is_built_on_one_by_digest() -> None:
    for recipe in RECIPES:
        (base,) = re.findall(r"^ARG BASE_IMAGE=(.*)", (ROOT / recipe.dockerfile).read_text(), re.MULTILINE)
        for build in ("docker-build:index:Image", "pulumi-python:dynamic/trainyard:BuildahImage"):
            assert problems(declared(build, {"buildArgs": {"BASE_IMAGE": base}})) == set()
            by_tag = {"buildArgs": {"BASE_IMAGE": base.partition("@")[0]}}
            assert problems(declared(build, by_tag)) == {"image-by-digest"}


def pod(inputs: Inputs) -> Inputs:
    return inputs["spec"]["template"]["spec"]


def container(inputs: Inputs) -> Inputs:
    return pod(inputs)["containers"][0]


def security(inputs: Inputs) -> Inputs:
    return container(inputs)["securityContext"]


def labels(inputs: Inputs) -> Inputs:
    return inputs["spec"]["template"]["metadata"]["labels"]


#: (rule, kind, name, change): gcp-a100 with one input changed breaks this rule, and no other.
CHANGES: list[tuple[str, str, str, Callable[[Inputs], object]]] = [
    ("image-by-digest", "Job", "training", lambda it: container(it).update(image="docker.io/you/trainer:latest")),
    ("image-by-digest", "StatefulSet", "etcd", lambda it: container(it).pop("image")),
    ("image-by-digest", "Job", "training", lambda it: pod(it).update(initContainers=[{**container(it), "image": "x"}])),
    ("restricted-pods", "Job", "training", lambda it: container(it).pop("securityContext")),
    ("restricted-pods", "Job", "dataset", lambda it: security(it).update(readOnlyRootFilesystem=False)),
    ("restricted-pods", "StatefulSet", "etcd", lambda it: security(it).update(runAsUser=0)),
    ("restricted-pods", "StatefulSet", "etcd", lambda it: security(it).update(runAsNonRoot=False)),
    ("restricted-pods", "Job", "training", lambda it: security(it).pop("allowPrivilegeEscalation")),
    ("restricted-pods", "Job", "training", lambda it: security(it)["capabilities"].pop("drop")),
    ("restricted-pods", "Job", "training", lambda it: security(it)["capabilities"].update(add=["SYS_PTRACE"])),
    ("restricted-pods", "Job", "dataset", lambda it: pod(it)["securityContext"].pop("seccompProfile")),
    ("no-privileged-pod", "Deployment", "tensorboard", lambda it: security(it).update(privileged=True)),
    ("no-privileged-pod", "Deployment", "nfs-server", lambda it: security(it).update(privileged=True)),
    *(
        ("no-privileged-pod", "Job", "training", lambda it, access=access: pod(it).update({access: True}))
        for access in ("hostNetwork", "hostPID", "hostIPC")
    ),
    (
        "secrets-by-reference",
        "Job",
        "training",
        lambda it: container(it)["env"].append({"name": "HF_TOKEN", "value": "hf_x"}),
    ),
    ("job-without-ttl", "Job", "training", lambda it: it["spec"].update(ttlSecondsAfterFinished=0)),
    ("labelled-pods", "Deployment", "tensorboard", lambda it: labels(it).pop("app.kubernetes.io/name")),
    ("labelled-pods", "Deployment", "tensorboard", lambda it: labels(it).pop("app.kubernetes.io/component")),
]


def test_a_stack_that_breaks_one_rule_is_told_that_one() -> None:
    stack = recorded("gcp-a100")
    for at, (rule, kind, which, change) in enumerate(CHANGES):
        item = stack.one(kind, which)
        inputs = copy.deepcopy(item.inputs)
        change(inputs)
        others = [other for other in stack.resources if other is not item]
        found = {violation.rule for violation in broken(Recording([*others, replace(item, inputs=inputs)], {}))}
        assert found == {rule}, (at, kind, which)


@pytest.mark.parametrize("stack_name", ["gcp-a100", "aws-g4dn"])
def test_an_object_that_would_outlive_its_cluster_is_found(stack_name: str) -> None:
    stack = recorded(stack_name)
    item = stack.one("Service", "trainer")
    others = [other for other in stack.resources if other is not item]
    for lifetime in ("", item.parent):
        (found,) = broken(Recording([*others, replace(item, deleted_with=lifetime)], {}))
        assert (found.rule, found.resource.name) == ("goes-with-cluster", "trainer")


@pytest.mark.parametrize("name", VARIANTS)
def test_no_stack_of_a_cloud_breaks_a_rule(name: str) -> None:
    assert broken(variant(name)) == []


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {
            "storage": {"kind": "storageClass", "className": "shared"},
            "workers": {"tolerations": ["sku=gpu:NoSchedule"], "runtimeClass": "nvidia"},
            "sweep": {"optimizer.learningRate": [0.0003, 0.001]},
        },
    ],
)
def test_no_stack_on_an_existing_cluster_breaks_a_rule(sections: dict[str, Any]) -> None:
    assert broken(record_anywhere("local", changed("local", **sections))) == []


def test_every_rule_is_tried_and_says_what_it_demands() -> None:
    tried = {*BREAKING, *(rule for rule, *_ in CHANGES), "goes-with-cluster"}
    assert {name(rule) for rule in RULES} == tried
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in RULES:
        assert f"| `{name(rule)}` | {demand(rule)} |\n" in page, "docs/operations.md has a line for each rule"


def test_the_command_names_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["dev", "policy", "--stack", "gcp-c3"]) == 0
    assert "none broken" in capsys.readouterr().out
    monkeypatch.setattr("infra.gke.stack.ETCD_IMAGE", "quay.io/coreos/etcd:v3.6.5")
    assert main(["dev", "policy", "--stack", "gcp-c3"]) == 1
    assert "StatefulSet etcd: container etcd runs quay.io/coreos/etcd:v3.6.5" in capsys.readouterr().out
