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
from trainer.contract import TRAINER_ID

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


def pod(inputs: Inputs) -> Inputs:
    return inputs["spec"]["template"]["spec"]


def container(inputs: Inputs) -> Inputs:
    return pod(inputs)["containers"][0]


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
        ("Job", "training", lambda found: pod(found).update(initContainers=[{**container(found), "image": "x:1"}])),
        ("Job", "training", lambda found: pod(found).update(ephemeralContainers=[{**container(found), "image": "x"}])),
        ("Image", "trainer", lambda found: found.update(buildArgs={"BASE_IMAGE": "python:3.11"})),
    ],
    "restricted-pods": [
        ("Job", "training", lambda found: container(found).pop("securityContext")),
        ("Job", "dataset", lambda found: container(found)["securityContext"].update(readOnlyRootFilesystem=False)),
        ("StatefulSet", "etcd", lambda found: container(found)["securityContext"].update(runAsUser=0)),
        ("StatefulSet", "etcd", lambda found: container(found)["securityContext"].update(runAsNonRoot=False)),
        ("Job", "training", lambda found: container(found)["securityContext"].pop("allowPrivilegeEscalation")),
        ("Job", "training", lambda found: container(found)["securityContext"]["capabilities"].pop("drop")),
        (
            "Job",
            "training",
            lambda found: container(found)["securityContext"]["capabilities"].update(add=["SYS_PTRACE"]),
        ),
        ("Job", "dataset", lambda found: pod(found)["securityContext"].pop("seccompProfile")),
        (
            "Namespace",
            "trainyard",
            lambda found: found["metadata"]["labels"].pop("pod-security.kubernetes.io/enforce"),
        ),
    ],
    "no-privileged-pod": [
        ("Deployment", "tensorboard", lambda found: container(found)["securityContext"].update(privileged=True)),
        ("Deployment", "nfs-server", lambda found: container(found)["securityContext"].update(privileged=True)),
        ("Job", "training", lambda found: pod(found).update(hostNetwork=True)),
        ("Job", "training", lambda found: pod(found).update(hostPID=True)),
        ("Job", "training", lambda found: pod(found).update(hostIPC=True)),
        ("Job", "training", lambda found: pod(found)["volumes"].append({"name": "node", "hostPath": {"path": "/"}})),
    ],
    "secrets-by-reference": [
        ("Job", "training", lambda found: container(found)["env"].append({"name": "HF_TOKEN", "value": "hf_x"})),
    ],
    "job-without-ttl": [("Job", "training", lambda found: found["spec"].update(ttlSecondsAfterFinished=0))],
    "labelled-pods": [
        (
            "Deployment",
            "tensorboard",
            lambda found, label=label: found["spec"]["template"]["metadata"]["labels"].pop(
                f"app.kubernetes.io/{label}"
            ),
        )
        for label in ("name", "component")
    ],
}


@pytest.mark.parametrize(("rule", "at"), [(rule, at) for rule, changes in BREAKS.items() for at in range(len(changes))])
def test_a_stack_that_breaks_one_rule_is_told_that_one(rule: str, at: int) -> None:
    kind, which, change = BREAKS[rule][at]
    assert changed(recorded("gcp-a100"), kind, which, change) == [rule]


@pytest.mark.parametrize("name", ["gcp-a100", "aws-g4dn"])
def test_an_object_that_would_outlive_its_cluster_is_found(name: str) -> None:
    stack = recorded(name)
    item = stack.one("Service", "trainer")
    others = [other for other in stack.resources if other is not item]
    for lifetime in ("", item.parent):
        (found,) = broken(Recording([*others, replace(item, deleted_with=lifetime)], {}))
        assert (found.rule, found.resource.name) == ("goes-with-cluster", "trainer")
    # Pulumi's engine does not tell it.
    # pyrefly: ignore[bad-argument-type]
    assert broken(Recording([*others, replace(item, deleted_with=None)], {})) == []


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
    for build in ("docker-build:index:Image", "pulumi-python:dynamic/trainyard:BuildahImage"):
        assert problems(declared(build, buildArgs={"BASE_IMAGE": base})) == set()
        by_tag = declared(build, buildArgs={"BASE_IMAGE": base.partition("@")[0]})
        assert problems(by_tag) == {"image-by-digest"}


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
    tried = {*BREAKS, "encrypted-storage", "goes-with-cluster", "known-cloud"}
    assert problems(declared("azure-native:storage:StorageAccount")) == {"known-cloud"}
    assert {name(rule) for rule in RULES} == tried
    assert all(demand(rule).endswith(".") for rule in RULES)
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in RULES:
        assert f"| `{name(rule)}` | {demand(rule)} |\n" in page, "docs/operations.md has a line for each rule"


def test_the_command_names_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["dev", "policy", "--stack", "gcp-c3"]) == 0
    assert "none broken" in capsys.readouterr().out
    monkeypatch.setattr("infra.gke.stack.ETCD_IMAGE", "quay.io/coreos/etcd:v3.6.5")
    assert main(["dev", "policy", "--stack", "gcp-c3"]) == 1
    assert "StatefulSet etcd: container etcd runs quay.io/coreos/etcd:v3.6.5" in capsys.readouterr().out
    assert main(["dev", "policy", "--stack", "nowhere"]) == 2
    assert "no stack 'nowhere'" in capsys.readouterr().err
