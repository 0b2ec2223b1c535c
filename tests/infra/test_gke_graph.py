"""The resources of the GCP stacks: their order, the nodes, and the cost at rest."""

from __future__ import annotations

from typing import Any

import pytest

from review.recording import Recording, record
from tests.infra.recorded import changed, pod, recorded, trained
from trainer.contract import TRAINER_ID


def pool(stack: Recording) -> dict[str, Any]:
    return stack.one("NodePool", "workers").inputs


def node(stack: Recording) -> dict[str, Any]:
    return pool(stack)["nodeConfig"]


def nodes(stack: str, **changes: Any) -> Recording:
    check = {"check": {"enabled": False}} if changes.get("consumption") == "queued" else {}
    return record(stack, changed(stack, nodes=changes, **check))


def test_without_hyperthreads_the_pod_asks_for_half() -> None:
    stack = nodes("gcp-c3", threadsPerCore=1)
    assert node(stack)["advancedMachineFeatures"] == {"threadsPerCore": 1}
    container = pod(stack)["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "3000m"
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert environment["OMP_NUM_THREADS"] == "3"


UNRESERVED = {"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}


@pytest.mark.parametrize(
    ("consumption", "expected", "repaired"),
    [
        ("spot", {"spot": True, **UNRESERVED}, True),
        ("flex_start", {"spot": False, "flexStart": True, "maxRunDuration": "86400s", **UNRESERVED}, False),
        ("queued", {"flexStart": True, **UNRESERVED}, False),
        (
            "reservation",
            {
                "reservationAffinity": {
                    "consumeReservationType": "SPECIFIC_RESERVATION",
                    "key": "compute.googleapis.com/reservation-name",
                    "values": ["mine"],
                }
            },
            True,
        ),
    ],
)
def test_each_way_to_have_nodes_is_what_gke_calls_it(
    consumption: str, expected: dict[str, Any], repaired: bool
) -> None:
    reservation = {"reservation": "mine"} if consumption == "reservation" else {}
    stack = nodes("gcp-a100", consumption=consumption, **reservation)
    assert expected.items() <= node(stack).items()
    assert pool(stack)["management"]["autoRepair"] is repaired
    assert ("queuedProvisioning" in pool(stack)) == (consumption == "queued")
    grace = node(stack)["kubeletConfig"].get("shutdownGracePeriodSeconds")
    assert grace == (120 if consumption == "spot" else None), "GKE takes it for Spot nodes only"


def test_queued_nodes_are_asked_for_all_at_once_by_the_pods_that_use_them() -> None:
    stack = nodes("gcp-a100", consumption="queued")
    request = stack.one("ProvisioningRequest").inputs
    job = stack.one("Job", "training").inputs
    assert request["spec"]["podSets"] == [{"count": 2, "podTemplateRef": {"name": request["metadata"]["name"]}}]
    assert request["spec"]["parameters"] == {"maxRunDurationSeconds": "86400"}
    template = stack.one("PodTemplate", "nodes-wanted").inputs["template"]["spec"]
    assert template["containers"] == job["spec"]["template"]["spec"]["containers"], "the nodes have to fit the pods"
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == request["metadata"]["name"]
    assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == request["spec"]["provisioningClassName"]
    assert not [item for item in recorded("gcp-a100").resources if item.kind == "ProvisioningRequest"]
    assert not [item for item in stack.resources if item.kind == "JobPatch"], "a granted request has no more nodes"
    # Nodes that came during the tokenisation would be paid for, and gone when the pods come.
    assert stack.one("Job", "dataset").urn in stack.one("ProvisioningRequest").dependencies


def test_filestore_is_made_beside_the_cluster_and_given_to_the_trainer() -> None:
    stack = record("gcp-a100", changed("gcp-a100", storage={"kind": "filestore", "sizeGib": 1024}))
    share = stack.one("Instance")
    cluster = stack.one("Cluster")
    assert cluster.urn not in stack.earlier(share)
    assert share.urn not in stack.earlier(cluster), "a Filestore instance takes minutes"
    assert share.inputs["fileShares"]["nfsExportOptions"][0]["ipRanges"] == ["10.0.0.0/20"]
    volume = stack.one("PersistentVolume", "trainyard-trainyard")
    # An address: a node cannot resolve a name that only pods can.
    assert volume.inputs["spec"]["nfs"] == {"path": "/data", "server": "10.200.0.2"}
    owner = pod(stack, name="volume-owner")["containers"][0]
    assert owner["args"] == ["chown", f"{TRAINER_ID}:{TRAINER_ID}", "/data"]
    assert stack.one("Job", "volume-owner").urn in stack.earlier(volume)
    assert "file" in {item.name for item in stack.all("gcp:projects/service")}
    assert not [item for item in stack.resources if item.kind in ("Disk", "NfsServer")]


def test_t17_a_driver_is_installed_by_gke_or_by_us_and_never_by_both() -> None:
    """Otherwise the two fight for the node."""
    managed = recorded("gcp-a100")
    assert not [item for item in managed.resources if item.kind == "DaemonSet"]
    ours = nodes("gcp-a100", gpuDriver="daemonset")
    (accelerator,) = node(ours)["guestAccelerators"]
    assert accelerator["gpuDriverInstallationConfig"] == {"gpuDriverVersion": "INSTALLATION_DISABLED"}
    daemon_set = pod(ours, "DaemonSet", "gpu-driver")
    (term,) = daemon_set["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "cloud.google.com/gke-accelerator", "operator": "Exists"},
        {"key": "cloud.google.com/gke-gpu-driver-version", "operator": "DoesNotExist"},
    ]
    paths = {item["hostPath"]["path"] for item in daemon_set["volumes"]}
    assert {"/home/kubernetes/bin/nvidia", "/dev", "/"} <= paths
    assert daemon_set["tolerations"] == [{"operator": "Exists"}]
    assert ours.one("DaemonSet").urn in ours.earlier(ours.one("Job", "training"))


def test_bert_on_squad_is_one_key() -> None:
    stack = record("gcp-c3", changed("gcp-c3") | {"training": {"task": "question_answering"}})
    dataset = pod(stack, name="dataset")
    (_, weights), (questions,) = dataset["initContainers"], dataset["containers"]
    assert weights["args"][2:5] == ["trainer.fetch", "--model", "bert-large-uncased"]
    assert questions["args"][2:5] == ["trainer.fetch", "--questions", "hf:squad"]
    folder = questions["args"][-1]
    assert trained(stack).question_answering.train == f"{folder}/train.json"
    assert trained(stack).model.name == "/data/models/bert-large-uncased"
    assert stack.outputs["runDirectory"].startswith("/data/runs/bert-large-uncased-")
    assert "sampleCommand" not in stack.outputs  # it writes no text


def test_a_chat_model_is_talked_with() -> None:
    training = {"task": "finetune", "model": {"name": "Qwen/Qwen2.5-0.5B-Instruct"}, "adapter": {"kind": "lora"}}
    stack = record("gcp-c3", changed("gcp-c3") | {"dataset": {"input": ["chats.jsonl"]}, "training": training})
    assert stack.outputs["sampleCommand"] == ".venv/bin/trainyard chat --stack gcp-c3"
