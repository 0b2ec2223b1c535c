"""What the cluster on Google Cloud is set to, where its own defaults cost a training."""

from __future__ import annotations

import json

import pytest

from infra.catalog import MACHINES
from infra.machine import DAEMONS, allocatable
from infra.recording import record, stack_file_values, stacks
from tests.infra.recorded import changed, recorded


def test_a_node_with_accelerators_outlives_the_back_off_of_a_pod_that_was_lost() -> None:
    """OPTIMIZE_UTILIZATION removes it after a minute or two, and another may not be had."""
    profiles = [recorded(stack).one("Cluster").inputs["clusterAutoscaling"] for stack in ("gcp-a100", "gcp-c3")]
    assert [profile["autoscalingProfile"] for profile in profiles] == ["BALANCED", "OPTIMIZE_UTILIZATION"]


def test_many_connections_to_one_host_find_ports_on_the_way_out() -> None:
    nat = recorded("gcp-a100").one("RouterNat").inputs
    assert nat["enableDynamicPortAllocation"] is True
    # The API refuses both together.
    assert nat["enableEndpointIndependentMapping"] is False
    assert nat["minPortsPerVm"] == 64
    assert nat["maxPortsPerVm"] == 2**15


@pytest.mark.parametrize(("driver", "secure"), [("managed", True), ("daemonset", False)])
def test_every_node_boots_securely_but_those_with_a_driver_of_ours(driver: str, secure: bool) -> None:
    stack = record("gcp-a100", changed("gcp-a100", nodes={"gpuDriver": driver}))
    booted = {
        item.name: item.inputs["nodeConfig"]["shieldedInstanceConfig"] for item in stack.all("gcp:container/nodeP")
    }
    assert booted["system"]["enableSecureBoot"] is True
    assert booted["workers"]["enableSecureBoot"] is secure


def test_the_clusters_credentials_are_the_providers() -> None:
    """gcloud's own login may be another account, and in CI there is none."""
    provider = next(item for item in recorded("gcp-c3").resources if item.type == "pulumi:providers:kubernetes")
    (user,) = json.loads(provider.inputs["kubeconfig"])["users"]
    assert user["user"]["exec"]["args"] == ["--use_application_default_credentials"]


def test_the_apis_by_which_all_others_are_read_come_first() -> None:
    stack = recorded("gcp-c3")
    services = {item.name: item for item in stack.all("gcp:projects/service:Service")}
    first = {services.pop("cloudresourcemanager").urn, services.pop("serviceusage").urn}
    assert services
    assert all(first <= item.dependencies for item in services.values())


#: What GKE's own Deployments ask for, CPU and GiB: kube-dns twice, konnectivity, metrics-server, autoscalers (of 1.34,
#: rounded up).
OF_THE_CLUSTER = (1.0, 1.5)


@pytest.mark.parametrize("stack", [name for name in stacks() if "gke" in stack_file_values(name)])
def test_what_runs_at_rest_fits_one_system_node(stack: str) -> None:
    """Or "at rest" is two nodes, and costs twice what the bill says."""
    cpu, gib = (sum(pair) for pair in zip(OF_THE_CLUSTER, DAEMONS["gcp"], strict=True))
    for item in recorded(stack).all("kubernetes:apps/v1:"):
        if item.kind in ("Deployment", "StatefulSet"):
            for container in item.inputs["spec"]["template"]["spec"]["containers"]:
                asked = container["resources"]["requests"]
                cpu += int(asked["cpu"].removesuffix("m")) / 1000
                gib += int(asked["memory"].removesuffix("Mi")) / 1024
    has_cpu, has_gib = allocatable(
        MACHINES[recorded(stack).one("NodePool", "system").inputs["nodeConfig"]["machineType"]]
    )
    assert cpu <= has_cpu
    assert gib <= has_gib
