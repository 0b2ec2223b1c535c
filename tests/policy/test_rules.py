"""Every rule has a stack that breaks it, and no stack of the repository breaks any."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cli.__main__ import main
from infra.image import RECIPES, Recipe
from infra.stackfiles import ROOT, stacks
from policy import RULES
from policy.check import broken
from policy.rules import UNKNOWN, Resource, demand, name, violations
from review.recording import Recording
from tests.infra.recorded import recorded
from workloads.pod import TRAINER_ID

Inputs = dict[str, Any]


def declared(type_: str, **inputs: Any) -> Resource:
    """A resource of a type, as the only one of its stack."""
    return Resource(type=type_, name="x", urn=f"urn:{type_}", inputs=inputs, provider="urn:provider")


LABELLED = Resource(
    type="pulumi:providers:gcp",
    name="gcp",
    urn="urn:provider",
    inputs={"defaultLabels": '{"app": "trainyard", "stack": "s"}'},
)


def problems(resource: Resource, *others: Resource) -> set[str]:
    """Names of the rules that a resource breaks."""
    return {found.rule for found in violations(RULES, [LABELLED, *others, resource]) if found.resource is resource}


def changed(stack: Recording, kind: str, which: str, change: Callable[[Inputs], object]) -> list[str]:
    """Rules that are broken when the inputs of one resource of a stack are changed."""
    (item,) = (found for found in stack.resources if found.custom and (found.kind, found.name) == (kind, which))
    inputs = copy.deepcopy(item.inputs)
    change(inputs)
    others = [other for other in stack.resources if other is not item]
    return sorted({found.rule for found in broken(Recording([*others, replace(item, inputs=inputs)], {}))})


def container(inputs: Inputs) -> Inputs:
    return inputs["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("stack", stacks())
def test_no_stack_breaks_a_rule(stack: str) -> None:
    assert broken(recorded(stack)) == []


#: Rule -> (kind, name, change): gcp-a100 with one thing changed breaks this rule, and no other.
BREAKS: dict[str, list[tuple[str, str, Callable[[Inputs], object]]]] = {
    "no-open-network": [
        (
            "Cluster",
            "cluster",
            lambda found: found.update(masterAuthorizedNetworksConfig={"cidrBlocks": [{"cidrBlock": "0.0.0.0/0"}]}),
        )
    ],
    "no-load-balancer": [("Service", "tensorboard", lambda found: found["spec"].update(type="LoadBalancer"))],
    "no-accelerator-at-rest": [
        ("NodePool", "workers", lambda found: found["autoscaling"].update(totalMinNodeCount=1)),
        ("NodePool", "workers", lambda found: found.update(initialNodeCount=1)),
        ("NodePool", "workers", lambda found: found.pop("autoscaling")),
    ],
    "labels-for-cost": [("gcp", "gcp", lambda found: found.update(defaultLabels='{"app": "trainyard"}'))],
    "image-by-digest": [
        ("Job", "training", lambda found: container(found).update(image="docker.io/you/trainer:latest")),
        ("StatefulSet", "etcd", lambda found: container(found).pop("image")),
        ("Image", "trainer", lambda found: found.update(buildArgs={"BASE_IMAGE": "python:3.11"})),
    ],
    "restricted-pods": [
        ("Job", "training", lambda found: container(found).pop("securityContext")),
        ("Job", "dataset", lambda found: container(found)["securityContext"].update(readOnlyRootFilesystem=False)),
        ("StatefulSet", "etcd", lambda found: container(found)["securityContext"].update(runAsUser=0)),
        (
            "Job",
            "training",
            lambda found: container(found)["securityContext"]["capabilities"].update(add=["SYS_PTRACE"]),
        ),
        ("Job", "dataset", lambda found: found["spec"]["template"]["spec"]["securityContext"].pop("seccompProfile")),
        (
            "Namespace",
            "trainyard",
            lambda found: found["metadata"]["labels"].pop("pod-security.kubernetes.io/enforce"),
        ),
    ],
    "no-privileged-pod": [
        ("Deployment", "tensorboard", lambda found: container(found)["securityContext"].update(privileged=True)),
        ("Deployment", "nfs-server", lambda found: container(found)["securityContext"].update(privileged=True)),
        ("Job", "training", lambda found: found["spec"]["template"]["spec"].update(hostNetwork=True)),
        (
            "Job",
            "training",
            lambda found: found["spec"]["template"]["spec"]["volumes"].append(
                {"name": "node", "hostPath": {"path": "/"}}
            ),
        ),
    ],
    "secrets-by-reference": [
        ("Job", "training", lambda found: container(found)["env"].append({"name": "HF_TOKEN", "value": "hf_x"})),
    ],
    "job-without-ttl": [("Job", "training", lambda found: found["spec"].update(ttlSecondsAfterFinished=0))],
    "labelled-pods": [("Deployment", "tensorboard", lambda found: found["spec"]["template"]["metadata"].pop("labels"))],
}


@pytest.mark.parametrize(("rule", "at"), [(rule, at) for rule, changes in BREAKS.items() for at in range(len(changes))])
def test_a_stack_that_breaks_one_rule_is_told_that_one(rule: str, at: int) -> None:
    kind, which, change = BREAKS[rule][at]
    assert changed(recorded("gcp-a100"), kind, which, change) == [rule]


def test_an_object_that_would_outlive_its_cluster_is_found() -> None:
    stack = recorded("gcp-a100")
    item = stack.one("Service", "trainer")
    others = [other for other in stack.resources if other is not item]
    for lifetime in ("", item.parent):
        (found,) = broken(Recording([*others, replace(item, deleted_with=lifetime)], {}))
        assert (found.rule, found.resource.name) == ("goes-with-cluster", "trainer")


INTERNET = "0.0.0.0/0"


def endpoint(enabled: bool) -> Inputs:
    """Inputs of a GKE cluster with or without an IP address of its API."""
    return {"controlPlaneEndpointsConfig": {"ipEndpointsConfig": {"enabled": enabled}}}


@pytest.mark.parametrize(
    "resource",
    [
        declared("gcp:compute/firewall:Firewall", sourceRanges=["10.0.0.0/8", "::/0"]),
        declared("gcp:compute/firewall:Firewall", direction="INGRESS"),
        declared("gcp:compute/firewall:Firewall", sourceRanges=["0.0.0.0/1", "128.0.0.0/1"]),
        declared("aws:ec2/securityGroup:SecurityGroup", ingress=[{"cidrBlocks": [INTERNET]}]),
        declared("aws:ec2/securityGroupRule:SecurityGroupRule", type="ingress", ipv6CidrBlocks=["::/0"]),
        declared("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", cidrIpv4=INTERNET),
        declared("aws:eks/cluster:Cluster", vpcConfig={"endpointPublicAccess": True}),
        declared("aws:eks/cluster:Cluster", vpcConfig={"publicAccessCidrs": [INTERNET]}),
        declared("gcp:container/cluster:Cluster"),
        declared("gcp:container/cluster:Cluster", **endpoint(True)),
    ],
    ids=lambda resource: f"{resource.type.rsplit(':', 1)[1]} {dict(resource.inputs)}",
)
def test_every_way_in_for_the_whole_internet_is_found(resource: Resource) -> None:
    assert problems(resource) == {"no-open-network"}


@pytest.mark.parametrize(
    "resource",
    [
        declared("gcp:compute/firewall:Firewall", sourceRanges=["10.0.0.0/8", "203.0.113.0/24"]),
        declared("gcp:compute/firewall:Firewall", sourceTags=["nodes"]),
        declared("gcp:compute/firewall:Firewall", direction="EGRESS"),
        declared("aws:ec2/securityGroupRule:SecurityGroupRule", type="egress", cidrBlocks=[INTERNET]),
        declared("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", referencedSecurityGroupId="sg-1"),
        declared("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", cidrIpv4=UNKNOWN),
        declared("aws:eks/cluster:Cluster", vpcConfig={"endpointPublicAccess": False}),
        declared("aws:eks/cluster:Cluster", vpcConfig={"publicAccessCidrs": ["203.0.113.7/32"]}),
        declared("gcp:container/cluster:Cluster", **endpoint(False)),
        declared("gcp:container/cluster:Cluster", masterAuthorizedNetworksConfig={}),
        declared("gcp:container/cluster:Cluster", privateClusterConfig={"enablePrivateEndpoint": True}),
    ],
    ids=lambda resource: f"{resource.type.rsplit(':', 1)[1]} {dict(resource.inputs)}",
)
def test_addresses_of_ones_own_may_come_in(resource: Resource) -> None:
    assert problems(resource) == set()


def group(template: str = "", **inputs: Any) -> tuple[Resource, Resource]:
    """A managed node group and its launch template."""
    scaling = {"minSize": 0, "desiredSize": 1, "maxSize": 4}
    tagged = [{"resourceType": what, "tags": {"app": "a", "stack": "s"}} for what in ("instance", "volume")]
    launch = declared("aws:ec2/launchTemplate:LaunchTemplate", instanceType=template, tagSpecifications=tagged)
    return declared("aws:eks/nodeGroup:NodeGroup", **{"scalingConfig": scaling, **inputs}), launch


def test_accelerators_are_recognised_by_machine_type_template_or_image() -> None:
    for given in (
        group(instanceTypes=["g4dn.xlarge"]),
        group(instanceTypes=["m5.large", "p5.48xlarge"]),
        group(amiType="AL2023_x86_64_NVIDIA"),
        group(template="trn2.48xlarge"),
    ):
        assert problems(*given) == {"no-accelerator-at-rest"}, given
    assert problems(*group(instanceTypes=["m5.large"])) == set()
    assert problems(*group(instanceTypes=["g4dn.xlarge"], scalingConfig={"minSize": 0, "desiredSize": 0})) == set()
    for type_ in ("g4dn.xlarge", "gr6.4xlarge"):
        assert problems(declared("aws:ec2/instance:Instance", instanceType=type_)) == {"no-accelerator-at-rest"}
    assert problems(declared("aws:ec2/instance:Instance", instanceType="m5.large")) == set()


@pytest.mark.parametrize(
    "type_", ["a2-highgpu-8g", "a3-highgpu-1g", "a4x-highgpu-4g", "g2-standard-4", "ct6e-standard-4t"]
)
def test_google_has_accelerators_in_the_machine_type(type_: str) -> None:
    scaling: Inputs = {"autoscaling": {"minNodeCount": 0}}

    def pool(machine_type: str, **inputs: Any) -> set[str]:
        return problems(declared("gcp:container/nodePool:NodePool", nodeConfig={"machineType": machine_type}, **inputs))

    assert pool(type_) == pool(type_, autoscaling={"minNodeCount": 2}) == {"no-accelerator-at-rest"}
    assert pool(type_, **scaling) == pool("c3-standard-4") == pool("n2-standard-2") == set()
    assert problems(declared("gcp:compute/instance:Instance", machineType=type_)) == {"no-accelerator-at-rest"}
    assert problems(declared("gcp:compute/instance:Instance", machineType="e2-standard-4")) == set()


def test_storage_in_plain_text_is_found() -> None:
    assert problems(declared("aws:efs/fileSystem:FileSystem")) == {"encrypted-storage"}
    assert problems(declared("aws:efs/fileSystem:FileSystem", encrypted=True)) == set()
    _, launch = group()
    for encrypted, found in ((True, set()), ("true", set()), (None, {"encrypted-storage"})):
        disks = [{"deviceName": "/dev/xvda", "ebs": {"encrypted": encrypted}}]
        assert problems(replace(launch, inputs={**launch.inputs, "blockDeviceMappings": disks})) == found
    driver = {"driver": "efs.csi.aws.com"}
    for spec, found in (
        ({"csi": driver}, set()),
        ({"csi": {**driver, "volumeAttributes": {"encryptInTransit": "false"}}}, {"encrypted-storage"}),
        ({"csi": driver, "mountOptions": ["notls"]}, {"encrypted-storage"}),
    ):
        assert problems(declared("kubernetes:core/v1:PersistentVolume", spec=spec)) == found


def test_what_costs_is_labelled() -> None:
    unowned = replace(declared("gcp:compute/disk:Disk"), provider="urn:pulumi:s::p::pulumi:providers:gcp::default_9_0")
    default = replace(LABELLED, urn=unowned.provider)
    assert problems(unowned) == problems(unowned, default) == {"labels-for-cost"}
    _, launch = group()
    untagged = {**launch.inputs, "tagSpecifications": launch.inputs["tagSpecifications"][:1]}
    assert problems(replace(launch, inputs=untagged)) == {"labels-for-cost"}


def test_a_value_that_is_not_known_before_up_breaks_nothing() -> None:
    pod = {"spec": {"containers": [{"name": "c", "image": UNKNOWN}]}}
    found = problems(declared("kubernetes:core/v1:Pod", spec=pod["spec"]))
    assert "image-by-digest" not in found
    assert "restricted-pods" in found


def test_the_image_that_lies_on_the_node_needs_no_digest() -> None:
    for policy, found in (("Never", set()), ("IfNotPresent", {"image-by-digest"})):
        spec = {"containers": [{"name": "c", "image": "cos-nvidia-installer:fixed", "imagePullPolicy": policy}]}
        metadata = {"namespace": "kube-system", "name": "gpu-driver"}
        assert problems(declared("kubernetes:core/v1:Pod", metadata=metadata, spec=spec)) == found


def test_a_secret_is_known_by_the_last_word_of_its_variable() -> None:
    def found(variable: str) -> bool:
        env = {"containers": [{"name": "c", "env": [{"name": variable, "value": "x"}]}]}
        return "secrets-by-reference" in problems(declared("kubernetes:core/v1:Pod", spec=env))

    secrets = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_PRIVATE_KEY", "GITHUB_PAT", "PAT", "GOOGLE_CREDENTIALS")
    assert all(map(found, secrets))
    assert not any(map(found, ("AWS_ACCESS_KEY_ID", "TOKENIZERS_PARALLELISM", "SPAT", "SORT_KEY")))


def test_a_listed_pod_may_do_what_is_listed_and_no_more() -> None:
    spec = {"containers": [], "volumes": [{"name": "sockets", "hostPath": {"path": "/"}}]}
    for pod, more, found in (
        ("nvidia-device-plugin", {}, set()),
        ("nvidia-device-plugin", {"hostNetwork": True}, {"no-privileged-pod"}),
        ("gpu-driver", {"hostNetwork": True}, set()),
        ("somebody-else", {}, {"no-privileged-pod"}),
    ):
        metadata = {"namespace": "kube-system", "name": pod}
        assert problems(declared("kubernetes:core/v1:Pod", metadata=metadata, spec={**spec, **more})) == found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_an_image_is_built_on_one_by_digest_where_nobody_says_another(recipe: Recipe) -> None:
    (base,) = re.findall(r"^ARG BASE_IMAGE=(.*)", (ROOT / recipe.dockerfile).read_text(), re.MULTILINE)
    build = declared("docker-build:index:Image", buildArgs={"BASE_IMAGE": base})
    assert problems(build) == set()


def test_the_trainer_runs_as_nobody_in_particular() -> None:
    """Of the two images only the trainer's runs what users bring; the other is among the exceptions."""
    lines = (ROOT / "trainer" / "Dockerfile").read_text().splitlines()
    (user,) = [line for line in lines if line.startswith("USER ")]
    assert user == f"USER {TRAINER_ID}:{TRAINER_ID}"


def test_pods_are_found_in_kinds_that_nobody_thought_of() -> None:
    """A custom resource that makes pods, such as a TrainJob's runtime, must obey the same rules."""
    pod = {"hostNetwork": True, "containers": [{"name": "c", "image": "x:1"}]}
    deep = {"template": {"spec": {"replicatedJobs": [{"template": {"spec": {"template": {"spec": pod}}}}]}}}
    found = problems(declared("kubernetes:trainer.kubeflow.org/v1alpha1:TrainingRuntime", spec=deep))
    assert {"image-by-digest", "no-privileged-pod", "restricted-pods"} <= found


def test_a_trainings_namespace_is_held_to_the_standard_whatever_its_name() -> None:
    """cluster.namespace may be team-storage; the namespace of its storage is team-storage-storage."""

    def found(name: str, component: str) -> set[str]:
        metadata = {"name": name, "labels": {"app.kubernetes.io/component": component}}
        return problems(declared("kubernetes:core/v1:Namespace", metadata=metadata))

    assert found("team-storage", "namespace") == found("team", "storage") == {"restricted-pods"}
    assert found("team-storage-storage", "storage") == set()


def test_every_rule_is_tried_and_says_what_it_demands() -> None:
    tried = {*BREAKS, "encrypted-storage", "goes-with-cluster"}
    assert {name(rule) for rule in RULES} == tried
    assert all(demand(rule).endswith(".") for rule in RULES)
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in RULES:
        assert f"| `{name(rule)}` | {demand(rule)} |\n" in page, "docs/operations.md has a line for each rule"


def test_the_command_names_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["policy", "gcp-c3"]) == 0
    assert "none broken" in capsys.readouterr().out
    monkeypatch.setattr("infra.gke.stack.ETCD_IMAGE", "quay.io/coreos/etcd:v3.6.5")
    assert main(["policy", "gcp-c3"]) == 1
    assert "StatefulSet etcd: container etcd runs quay.io/coreos/etcd:v3.6.5" in capsys.readouterr().out
    assert main(["policy", "nowhere"]) == 2
    assert "no stack 'nowhere'" in capsys.readouterr().err
