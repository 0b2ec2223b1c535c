"""What the pods of the local stack may do, reach and use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from infra.stackfiles import stack_file_values
from review.recording import Recorded, Recording, record_anywhere
from tests.infra.recorded import pod, recorded
from trainer.contract import DEVICE


def reaches(stack: Recording) -> Callable[[str, int], bool]:
    """Whether the dataset Job may connect to an address and port."""
    rules = stack.one("NetworkPolicy", "dataset").inputs["spec"]["egress"]

    def reached(address: str, port: int) -> bool:
        place = ip_address(address)
        for rule in rules:
            for block in (each["ipBlock"] for each in rule["to"] if port in {one["port"] for one in rule["ports"]}):
                inner = any(place in ip_network(each) for each in block.get("except", []))
                if place in ip_network(block["cidr"]) and not inner:
                    return True
        return False

    return reached


@pytest.mark.parametrize("stack", ["local", "gcp-c3", "aws-g4dn"])
def test_the_dataset_job_reaches_the_internet_and_nothing_inside(stack: str) -> None:
    """A page that redirects to an inner address is not followed there."""
    reached = reaches(recorded(stack))
    assert all(reached(address, port) for address in ("8.8.8.8", "2606:4700::1111") for port in (80, 443))
    inner = "10.0.0.1 10.255.1.1 172.16.0.1 172.31.9.9 192.168.1.1 100.64.3.3 127.0.0.1 169.254.169.253 169.254.170.2"
    inner += " 0.0.0.0 ::1 fd00:ec2::254 fe80::1 64:ff9b::a00:1 64:ff9b:1::a00:1 240.1.2.3 168.63.129.16"
    assert [address for address in inner.split() if reached(address, 80) or reached(address, 443)] == []
    assert not reached("8.8.8.8", 22)
    given = {"gke": "169.254.169.254", "eks": "169.254.170.23"}
    kind = "gke" if stack.startswith("gcp") else "eks" if stack.startswith("aws") else ""
    assert [address for address in given.values() if reached(address, 80)] == ([given[kind]] if kind else [])


def test_the_dataset_job_reaches_the_private_servers_that_the_stack_names_and_the_ports_of_its_inputs() -> None:
    dataset = {
        "input": ["https://10.1.2.3:9000/a.txt", "http://data.example.org:8080/b.txt", "https://[fd00:7::1]/c.txt"],
        "privateServers": ["10.1.2.3", "192.168.4.0/24", "fd00:7:0::/64", "240.10.0.0/16"],
    }
    reached = reaches(recorded("local", dataset=dataset))
    for address in ("10.1.2.3", "192.168.4.9", "fd00:7::1", "240.10.2.3", "8.8.8.8"):
        assert [port for port in (22, 80, 443, 8080, 9000, 9001) if reached(address, port)] == [80, 443, 8080, 9000]
    beside = ["10.1.2.4", "192.168.5.1", "fd00:7:0:1::1", "169.254.169.254", "127.0.0.1"]
    assert [address for address in beside for port in (80, 443, 9000) if reached(address, port)] == []


def test_a_cluster_with_name_servers_of_its_own_names_them() -> None:
    rules = (
        recorded("local", cluster={"dns": ["10.96.0.10", "fd00::/64"]})
        .one("NetworkPolicy", "allow-dns")
        .inputs["spec"]["egress"]
    )
    for rule in rules:
        assert [{"ipBlock": {"cidr": cidr}} for cidr in ("10.96.0.10/32", "fd00::/64")] == rule["to"][-2:]


@pytest.mark.parametrize("wandb", [False, True])
def test_a_pod_has_the_tokens_that_it_uses_and_no_other(wandb: bool) -> None:
    training = {"metrics": {"wandbProject": "mine"}} if wandb else {}
    stack = recorded("local", secrets={"huggingFaceToken": "hf_x", "wandbApiKey": "key"}, training=training)
    given: dict[str, set[str]] = {}
    for item in stack.resources:
        if item.kind in ("Job", "Deployment", "StatefulSet", "PodTemplate"):
            spec = item.inputs.get("spec", item.inputs)["template"]["spec"]
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                taken = [
                    each["valueFrom"]["secretKeyRef"]
                    for each in container.get("env", [])
                    if "valueFrom" in each and "secretKeyRef" in each["valueFrom"]
                ]
                assert not any("tokens" in str(source) for source in container.get("envFrom", []))
                given.setdefault(item.name, set()).update(each["key"] for each in taken)
    assert {name: keys for name, keys in given.items() if keys} == {
        "dataset": {"HF_TOKEN"},
        **({"training": {"WANDB_API_KEY"}} if wandb else {}),
    }


@pytest.mark.parametrize("storage", ["nfs", "filestore"])
def test_every_pod_of_a_private_image_has_the_credentials_in_its_own_namespace(storage: str) -> None:
    """Newer kubelets ask for them also where the image is on the node (KubeletEnsureSecretPulledImages)."""
    ref = f"ghcr.io/you/trainer@sha256:{'0' * 64}"
    nfs = {"serverImage": f"ghcr.io/you/nfs@sha256:{'0' * 64}"} if storage == "nfs" else {"sizeGib": 1024}
    stack = recorded(
        "gcp-c3",
        storage={"kind": storage, **nfs},
        image={"builder": "prebuilt", "ref": ref},
        secrets={"imagePull": "you:ghp_x"},
    )
    there = {(one.name, one.inputs["metadata"]["namespace"]) for one in stack.all("kubernetes:core/v1:Secret")}
    pods = 0
    for item in stack.resources:
        spec = (item.inputs.get("spec") or item.inputs).get("template", {}).get("spec", {})
        if any(each["image"] == ref for each in spec.get("containers", [])):
            (secret,) = spec["imagePullSecrets"]
            assert (secret["name"], item.inputs["metadata"]["namespace"]) in there, item.name
            pods += 1
    assert pods >= 4


def test_another_token_of_the_hub_starts_no_training_anew() -> None:
    """No trainer has it; the key of Weights & Biases counts where it is used."""

    def name(wandb: str = "", **secrets: str) -> str:
        training = {"metrics": {"wandbProject": wandb}} if wandb else {}
        return recorded("local", secrets=secrets, training=training).outputs["jobName"]

    assert name() == name(huggingFaceToken="hf_a", wandbApiKey="unused")
    assert name("mine", wandbApiKey="a") != name("mine", wandbApiKey="b")


def test_trainers_reach_as_far_as_their_figures_go_and_no_farther() -> None:
    """Dataplane V2 and others enforce it: without the rule wandb waits a minute at each start, and is left out."""

    def policy(**settings: Any) -> dict[str, Any]:
        secrets = {"wandbApiKey": "key"} if "wandbProject" in settings else {}
        return (
            recorded("local", secrets=secrets, training={"metrics": settings})
            .one("NetworkPolicy", "trainers")
            .inputs["spec"]
        )

    plain, wandb, prometheus = policy(), policy(wandbProject="gpt2"), policy(prometheusPort=9500)
    assert [rule for rule in wandb["egress"] if rule not in plain["egress"]] == [
        {"ports": [{"port": 443, "protocol": "TCP"}]}
    ]
    assert wandb["ingress"] == plain["ingress"]
    assert [rule for rule in prometheus["ingress"] if rule not in plain["ingress"]] == [
        {"ports": [{"port": 9500, "protocol": "TCP"}]}
    ]
    assert prometheus["egress"] == plain["egress"]


def labels_wanted(value: Any) -> Iterator[dict[str, str]]:
    """The labels by which an object selects pods of the stack, at any depth."""
    if isinstance(value, dict) and "namespaceSelector" in value:
        return  # the cluster's own pods
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key in ("selector", "podSelector", "labelSelector"):
            yield item.get("matchLabels", {}) if {"matchLabels", "matchExpressions"} & item.keys() else item
        else:
            yield from labels_wanted(item)


def templates(stack: Recording) -> Iterator[dict[str, Any]]:
    for item in stack.resources:
        template = (item.inputs.get("spec") or {}).get("template") or {}
        if "containers" in (template.get("spec") or {}):
            yield template


@pytest.mark.parametrize("cloud", [False, True])
def test_whoever_looks_for_pods_finds_them_and_services_a_port_that_is_open(
    local_stack: Recording, cloud: bool
) -> None:
    stack = recorded("gcp-a100") if cloud else local_stack
    pods = list(templates(stack))

    def found(item: Recorded) -> list[dict[str, Any]]:
        (labels,) = labels_wanted(item.inputs)
        return [each for each in pods if labels.items() <= each["metadata"]["labels"].items()]

    for item in stack.all("kubernetes:"):
        for labels in labels_wanted(item.inputs):
            assert any(labels.items() <= each["metadata"]["labels"].items() for each in pods), f"{item.urn}: {labels}"
    services = {item.name: item for item in stack.all("kubernetes:core/v1:Service") if item.kind == "Service"}
    for service in services.values():
        for port in service.inputs["spec"].get("ports", []):
            for each in found(service):
                opened = [
                    one["containerPort"] for container in each["spec"]["containers"] for one in container["ports"]
                ]
                assert port["targetPort"] in opened
    training = stack.one("Job", "training").inputs["spec"]["template"]
    headless = services[training["spec"]["subdomain"]]
    assert found(headless) == [training]
    assert headless.inputs["spec"]["clusterIP"] == "None"
    assert headless.inputs["spec"]["publishNotReadyAddresses"], "workers look each other up before they are ready"


def test_gpu_workers_ask_for_gpus_and_tolerate_their_taint() -> None:
    stack = recorded("local", workers={"gpus": 4, "processes": 4, "cpu": 8}, training={"microBatch": 2})
    spec = pod(stack, "Job", "training")
    shared = {"memory": "2048Mi", "nvidia.com/gpu": "4"}
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "8000m"} | shared, "limits": shared}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    environment = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment[DEVICE] == "cuda"
    assert not any("nvidia.com/gpu" in str(item) for item in pod(stack, "Job", "dataset")["containers"])


def test_what_reads_the_web_can_write_datasets_and_models_alone() -> None:
    """Trainers execute code that they find in the folder of their run (trainer/train/compiled.py)."""
    values = stack_file_values("local")
    values["training"]["model"] = {"name": "org/model"}
    del values["dataset"]["tokenizer"]
    spec = pod(record_anywhere("local", values), "Job", "dataset")
    folders, *readers = [*spec["initContainers"], *spec["containers"]]
    assert folders["args"] == ["mkdir", "-p", "/data/datasets", "/data/models"]
    assert [each["name"] for each in readers] == ["fetch", "prepare"]
    for each in readers:
        mounts = [mount for mount in each["volumeMounts"] if mount["name"] == "data"]
        writes = {mount["mountPath"]: mount.get("subPath") for mount in mounts if not mount.get("readOnly")}
        assert writes == {"/data/datasets": "datasets", "/data/models": "models"}
        assert each["args"][each["args"].index("--output") + 1].startswith(tuple(f"{path}/" for path in writes))
