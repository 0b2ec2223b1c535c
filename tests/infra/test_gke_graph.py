"""The resources of the GCP stacks: their order, the nodes, and the cost at rest."""

from __future__ import annotations

from typing import Any

import pytest

from review.recording import Recorded, Recording, record
from tests.infra.recorded import changed, recorded, trained
from trainer.contract import TRAINER_ID

STACKS = ["gcp-a100", "gcp-c3", "gcp-smoke"]


def pool(stack: Recording, name: str = "workers") -> Recorded:
    return stack.one("NodePool", name)


def node(stack: Recording, name: str = "workers") -> dict[str, Any]:
    return pool(stack, name).inputs["nodeConfig"]


def nodes(stack: str, **changes: Any) -> Recording:
    check = {"check": {"enabled": False}} if changes.get("consumption") == "queued" else {}
    return record(stack, changed(stack, nodes=changes, **check))


@pytest.mark.parametrize("name", STACKS)
def test_pods_go_where_they_belong(name: str) -> None:
    stack = recorded(name)
    taints = {(taint["key"], taint["value"]) for taint in node(stack)["taints"]}
    training = stack.one("Job", "training").inputs["spec"]["template"]["spec"]
    assert {(item["key"], item.get("value")) for item in training["tolerations"]} >= taints
    assert training["nodeSelector"].items() <= node(stack)["labels"].items()
    # Everything else stays off the expensive nodes.
    for kind, which in [("Job", "dataset"), ("StatefulSet", "etcd"), ("Deployment", "nfs-server")]:
        spec = stack.one(kind, which).inputs["spec"]["template"]["spec"]
        assert not spec.get("tolerations")


def test_an_a100_node_has_all_that_a_training_needs() -> None:
    stack = recorded("gcp-a100")
    found = node(stack)
    (accelerator,) = found["guestAccelerators"]
    assert (accelerator["type"], accelerator["count"]) == ("nvidia-tesla-a100", 8)
    assert accelerator["gpuDriverInstallationConfig"] == {"gpuDriverVersion": "LATEST"}
    assert found["gvnic"] == found["gcfsConfig"] == {"enabled": True}
    assert "ephemeralStorageLocalSsdConfig" not in found, "0.66 USD an hour for what the pods hardly use"
    assert found["workloadMetadataConfig"] == {"mode": "GKE_METADATA"}
    assert found["imageType"] == "COS_CONTAINERD"
    assert found["maxRunDuration"] == "86400s"
    assert "reservationAffinity" not in found
    container = stack.one("Job", "training").inputs["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["args"][container["args"].index("--nproc-per-node") + 1] == "8"
    training = trained(stack)
    assert (training.engine.name, training.precision) == ("ddp", "bf16")
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert environment["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64", "the driver's libraries are in no default path"


def test_a_c3_pod_has_whole_cores_to_itself() -> None:
    stack = recorded("gcp-c3")
    assert node(stack)["kubeletConfig"]["cpuManagerPolicy"] == "static"
    assert node(stack)["diskType"] == "pd-balanced"
    container = stack.one("Job", "training").inputs["spec"]["template"]["spec"]["containers"][0]
    # QoS class Guaranteed: whole CPUs, and requests equal limits. 7 of 8, as GKE keeps a part of one for itself.
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["requests"]["cpu"] == "7000m"
    environment = {item["name"]: item.get("value") for item in container["env"]}
    # One thread per core; the machine has four cores.
    assert environment["OMP_NUM_THREADS"] == "4"
    assert environment["TRAINYARD_BIND_CORES"] == "1"
    assert environment["LD_PRELOAD"].endswith("libtcmalloc.so")
    assert (trained(stack).require_capability, trained(stack).model.name) == ("amx_bf16", "/data/models/gpt2")


def test_without_hyperthreads_the_pod_asks_for_half() -> None:
    stack = nodes("gcp-c3", threadsPerCore=1)
    assert node(stack)["advancedMachineFeatures"] == {"threadsPerCore": 1}
    container = stack.one("Job", "training").inputs["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "3000m"
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert environment["OMP_NUM_THREADS"] == "3"


def test_zero_stage_two_is_one_key() -> None:
    stack = record("gcp-a100", changed("gcp-a100", training={"engine": {"name": "deepspeed", "zeroStage": 2}}))
    assert trained(stack).engine.zero_stage == 2


@pytest.mark.parametrize(
    ("consumption", "expected", "repaired"),
    [
        ("on_demand", {"spot": False}, True),
        ("spot", {"spot": True, "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}, True),
        (
            "flex_start",
            {
                "spot": False,
                "flexStart": True,
                "maxRunDuration": "86400s",
                "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
            },
            False,
        ),
        (
            "queued",
            {"flexStart": True, "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}},
            False,
        ),
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
    assert pool(stack).inputs["management"]["autoRepair"] is repaired
    assert ("queuedProvisioning" in pool(stack).inputs) == (consumption == "queued")
    grace = node(stack)["kubeletConfig"].get("shutdownGracePeriodSeconds")
    assert grace == (120 if consumption == "spot" else None), "GKE takes it for Spot nodes only"


def test_flexible_nodes_are_had_for_a_week_at_most_when_nothing_else_is_said() -> None:
    assert node(nodes("gcp-a100", consumption="flex_start", maxRunHours=None))["maxRunDuration"] == "604800s"
    assert "maxRunDuration" not in node(nodes("gcp-a100", maxRunHours=None))


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


def test_compact_placement_is_an_option() -> None:
    assert "placementPolicy" not in pool(recorded("gcp-a100")).inputs
    assert pool(nodes("gcp-a100", compactPlacement=True)).inputs["placementPolicy"] == {"type": "COMPACT"}


def test_the_cluster_is_closed_watched_and_quiet_during_a_run() -> None:
    cluster = recorded("gcp-a100").one("Cluster").inputs
    assert cluster["location"] == "us-central1-a"
    assert cluster["privateClusterConfig"] == {"enablePrivateNodes": True}
    assert cluster["controlPlaneEndpointsConfig"] == {
        "dnsEndpointConfig": {"allowExternalTraffic": True},
        "ipEndpointsConfig": {"enabled": False},
    }
    assert cluster["datapathProvider"] == "ADVANCED_DATAPATH"
    assert cluster["workloadIdentityConfig"] == {"workloadPool": "your-project.svc.id.goog"}
    assert cluster["monitoringConfig"]["managedPrometheus"] == {"enabled": True}
    assert "DCGM" in cluster["monitoringConfig"]["enableComponents"]
    assert cluster["costManagementConfig"] == {"enabled": True}
    assert cluster["addonsConfig"]["httpLoadBalancing"] == {"disabled": True}
    (exclusion,) = cluster["maintenancePolicy"]["maintenanceExclusions"]
    assert exclusion["exclusionOptions"]["scope"] == "NO_MINOR_OR_NODE_UPGRADES"
    assert cluster["removeDefaultNodePool"] is True
    assert "DCGM" not in recorded("gcp-c3").one("Cluster").inputs["monitoringConfig"]["enableComponents"]


def test_new_nodes_for_old_ones_may_take_longer_than_a_disruption_budget_holds_one_up() -> None:
    # A budget holds a node for up to an hour (the NFS server's); replacing the node takes time too.
    for name in ("system", "workers"):
        assert pool(recorded("gcp-a100"), name).timeouts["update"] == "180m"


def test_upgrades_come_when_they_are_wanted() -> None:
    stack = record("gcp-c3", changed("gcp-c3", gke={"noUpgradesSince": None}))
    assert "maintenanceExclusions" not in stack.one("Cluster").inputs["maintenancePolicy"]


@pytest.mark.parametrize("name", STACKS)
def test_image_and_storage_are_off_the_critical_path(name: str) -> None:
    stack = recorded(name)
    cluster = stack.one("Cluster").urn
    for kind in ("Image", "Disk", "Repository"):
        for item in (other for other in stack.resources if other.kind == kind):
            assert cluster not in stack.earlier(item), f"{kind} {item.name} waits for the cluster"
    # A disk takes seconds and depends on the APIs alone; the cluster depends on the network anyway.
    assert stack.earlier(stack.one("Disk")) <= stack.earlier(stack.one("Network")) | {
        item.urn for item in stack.all("gcp:projects/service")
    }


def test_filestore_is_made_beside_the_cluster_and_given_to_the_trainer() -> None:
    stack = record("gcp-a100", changed("gcp-a100", storage={"kind": "filestore", "sizeGib": 1024}))
    share = stack.one("Instance")
    cluster = stack.one("Cluster")
    assert cluster.urn not in stack.earlier(share)
    assert share.urn not in stack.earlier(cluster), "a Filestore instance takes minutes"
    assert share.inputs["fileShares"]["nfsExportOptions"][0]["ipRanges"] == ["10.0.0.0/20"]
    volume = stack.one("PersistentVolume", "trainyard-trainyard")
    assert volume.inputs["spec"]["nfs"]["path"] == "/data"
    owner = stack.one("Job", "volume-owner")
    assert owner.inputs["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "chown",
        f"{TRAINER_ID}:{TRAINER_ID}",
        "/data",
    ]
    assert owner.urn in stack.earlier(volume)
    assert "file" in {item.name for item in stack.all("gcp:projects/service")}
    assert not [item for item in stack.resources if item.kind in ("Disk", "NfsServer")]


def test_t17_a_driver_is_installed_by_gke_or_by_us_and_never_by_both() -> None:
    """Otherwise the two fight for the node."""
    managed = recorded("gcp-a100")
    assert not [item for item in managed.resources if item.kind == "DaemonSet"]
    ours = nodes("gcp-a100", gpuDriver="daemonset")
    (accelerator,) = node(ours)["guestAccelerators"]
    assert accelerator["gpuDriverInstallationConfig"] == {"gpuDriverVersion": "INSTALLATION_DISABLED"}
    daemon_set = ours.one("DaemonSet").inputs["spec"]["template"]["spec"]
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


@pytest.mark.parametrize("name", STACKS)
def test_the_outputs_are_what_a_person_needs_next(name: str) -> None:
    outputs = recorded(name).outputs
    assert outputs["cluster"] == f"trainyard-{name}"
    assert "@sha256:" in outputs["image"]
    assert outputs["storageAddress"].endswith(":/data")
    assert outputs["credentialsCommand"].endswith("--dns-endpoint")
    bill = outputs["costPerHour"]
    assert bill["atRest"] < min(1, bill["atFullSize"])
    context = outputs["context"]
    for command in ("watchCommand", "logsCommand", "tensorboardCommand"):
        assert f"--context {context} " in outputs[command]
    for verb in ("fetch", "sample"):
        assert outputs[f"{verb}Command"] == f".venv/bin/trainyard {verb} --stack {name}"


@pytest.mark.parametrize("task", ["language_model", "question_answering"])
@pytest.mark.parametrize("name", STACKS)
def test_the_trainer_takes_the_configuration_that_a_stack_gives_it(name: str, task: str) -> None:
    # 16 accelerators, or 3 machines, share a step.
    asked = {"training": {"task": task, "precision": "bf16", "microBatch": 3 if name == "gcp-a100" else 8}}
    stack = record(name, changed(name) | (asked if task == "question_answering" else {}))
    assert (trained(stack).task, trained(stack).precision) == (task, "bf16")


def test_bert_on_squad_is_one_key() -> None:
    stack = record("gcp-c3", changed("gcp-c3") | {"training": {"task": "question_answering"}})
    dataset = stack.one("Job", "dataset").inputs["spec"]["template"]["spec"]
    (weights,), (questions,) = dataset["initContainers"], dataset["containers"]
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
