"""Settings of the cluster on Google Cloud whose defaults would cost a training."""

from __future__ import annotations

import pytest

from infra.gke.machines import NODE, machines
from infra.machine import allocatable
from infra.stackfiles import stack_file_values, stacks
from review.recording import record
from tests.infra.recorded import changed, pod, recorded


@pytest.mark.parametrize(("driver", "secure"), [("managed", True), ("daemonset", False)])
def test_every_node_boots_securely_but_those_with_a_driver_of_ours(driver: str, secure: bool) -> None:
    stack = record("gcp-a100", changed("gcp-a100", nodes={"gpuDriver": driver}))
    nodes = {item.name: item.inputs["nodeConfig"] for item in stack.all("gcp:container/nodeP")}
    booted = {name: each["shieldedInstanceConfig"]["enableSecureBoot"] for name, each in nodes.items()}
    assert booted == {"system": True, "workers": secure}


def test_the_apis_by_which_all_others_are_read_come_first() -> None:
    stack = recorded("gcp-c3")
    services = {item.name: item for item in stack.all("gcp:projects/service:Service")}
    first = {services.pop("cloudresourcemanager").urn, services.pop("serviceusage").urn}
    assert services
    assert all(first <= {*item.dependencies} for item in services.values())


#: Requests of GKE's own Deployments, CPU and GiB: kube-dns twice, konnectivity, metrics-server, autoscalers (of 1.34,
#: rounded up).
OF_THE_CLUSTER = (1.0, 1.5)


@pytest.mark.parametrize("stack", [name for name in stacks() if "gke" in stack_file_values(name)])
def test_what_runs_at_rest_fits_one_system_node(stack: str) -> None:
    """Otherwise "at rest" is two nodes, and costs twice what the bill says."""
    cpu, gib = (sum(pair) for pair in zip(OF_THE_CLUSTER, NODE.daemons, strict=True))
    for item in recorded(stack).all("kubernetes:apps/v1:"):
        if item.kind in ("Deployment", "StatefulSet"):
            for container in item.inputs["spec"]["template"]["spec"]["containers"]:
                asked = container["resources"]["requests"]
                cpu += int(asked["cpu"].removesuffix("m")) / 1000
                gib += int(asked["memory"].removesuffix("Mi")) / 1024
    has_cpu, has_gib = allocatable(
        machines()[recorded(stack).one("NodePool", "system").inputs["nodeConfig"]["machineType"]]
    )
    assert cpu <= has_cpu
    assert gib <= has_gib


def test_own_buckets_are_read_by_the_dataset_job_alone() -> None:
    values = changed("gcp-a100", dataset={"input": ["gs://my-texts/books", "gs://my-texts/more", "sample"]})
    stack = record("gcp-a100", values)
    (grant,) = [item for item in stack.resources if item.type.endswith(":BucketIAMMember")]
    assert (grant.inputs["bucket"], grant.inputs["role"]) == ("my-texts", "roles/storage.objectViewer")
    # The grant names the Kubernetes account itself, not a Google account that it impersonates.
    number = grant.inputs["member"].split("/")[4]
    assert grant.inputs["member"] == (
        f"principal://iam.googleapis.com/projects/{number}/locations/global/workloadIdentityPools/"
        "your-project.svc.id.goog/subject/ns/trainyard/sa/dataset"
    )
    assert number.isdigit()
    assert [item.name for item in stack.all("gcp:serviceaccount/")] == ["nodes"]
    assert stack.one("Cluster").urn in grant.dependencies, "the pool of principals is made with the first cluster"
    assert not stack.one("ServiceAccount", "dataset").inputs["metadata"].get("annotations")
    dataset = pod(stack, name="dataset")
    assert dataset["serviceAccountName"] == "dataset"
    assert "serviceAccountName" not in pod(stack)
