"""The volume of a GCP stack: its disk, its address, and who may mount it."""

from __future__ import annotations

import ipaddress
import re
from fnmatch import fnmatchcase

import pytest

from review.recording import record
from tests.infra.recorded import changed, recorded


def test_a_disk_that_nodes_have_attached_goes_after_them() -> None:
    stack = recorded("gcp-c3")
    assert stack.one("Disk").urn in stack.earlier(stack.one("Cluster"))


def test_a_disk_is_kept_when_that_is_asked_for_and_can_be_used_again() -> None:
    assert not recorded("gcp-a100").one("Disk").retain_on_delete
    kept = record("gcp-a100", changed("gcp-a100", storage={"retain": True}))
    assert kept.one("Disk").retain_on_delete
    again = record("gcp-a100", changed("gcp-a100", storage={"disk": "trainyard-gcp-a100-data"}))
    assert not [item for item in again.resources if item.kind == "Disk"]
    volume = again.one("PersistentVolume", "nfs-server").inputs["spec"]["csi"]
    assert volume["volumeHandle"] == "projects/your-project/zones/us-central1-a/disks/trainyard-gcp-a100-data"
    made = recorded("gcp-a100").one("PersistentVolume", "nfs-server").inputs["spec"]["csi"]
    assert made["volumeHandle"].endswith("/zones/us-central1-a/disks/trainyard-gcp-a100-data")


def test_a_growing_disk_replaces_no_claim_and_restarts_the_server() -> None:
    grown = record("gcp-a100", changed("gcp-a100", storage={"sizeGib": 2000}))
    for name in ("nfs-server", "data"):
        before = recorded("gcp-a100").one("PersistentVolumeClaim", name).inputs["spec"]
        assert grown.one("PersistentVolumeClaim", name).inputs["spec"] == before
    template = grown.one("Deployment", "nfs-server").inputs["spec"]["template"]
    assert template["metadata"]["annotations"]["trainyard/disk-gib"] == "2000"


def test_the_export_admits_nodes_and_no_pod() -> None:
    """A node connects from its own address, and to a pod of its own from the first address of its pods' /24, which no
    pod has. tests/e2e/test_nfs_server.py tries both, and a pod, with the real server."""
    stack = recorded("gcp-c3")
    subnet = stack.one("Subnetwork").inputs
    nodes = ipaddress.IPv4Network(subnet["ipCidrRange"])
    ranges = {each["rangeName"]: ipaddress.IPv4Network(each["ipCidrRange"]) for each in subnet["secondaryIpRanges"]}
    text = stack.one("ConfigMap", "nfs-server").inputs["data"]["ganesha.conf"]
    clients = re.search(r"Clients = (.*);", text)[1].split(", ")  # pyrefly: ignore[unsupported-operation]

    def admitted(address: ipaddress.IPv4Address) -> bool:
        """As ganesha does: ranges, and patterns over the address's text (support/client_mgr.c, client_match)."""
        of_ranges = (ipaddress.IPv4Network(client) for client in clients if "*" not in client)
        return any(address in each for each in of_ranges) or any(fnmatchcase(str(address), each) for each in clients)

    assert admitted(nodes[2])
    assert admitted(nodes[-2])
    assert stack.one("Cluster").inputs["defaultMaxPodsPerNode"] == 110, "a node has a /24"
    for of_node in list(ranges["pods"].subnets(new_prefix=24))[::50]:
        assert [address for address in of_node if admitted(address)] == [of_node[1]]
    for outside in (ranges["services"], ipaddress.IPv4Network("10.20.0.0/24"), ipaddress.IPv4Network("192.168.1.0/24")):
        assert not [address for address in list(outside)[:300] if admitted(address)]


@pytest.mark.parametrize("storage", [{}, {"kind": "filestore", "sizeGib": 1024}])
def test_pods_beside_the_volume_serve_nfs_and_nothing_else(storage: dict[str, object]) -> None:
    found = record("gcp-c3", changed("gcp-c3", storage=storage))
    policies = [
        item.inputs["spec"]
        for item in found.all("kubernetes:networking.k8s.io/v1:NetworkPolicy")
        if item.inputs["metadata"]["namespace"] == "trainyard-storage"
    ]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    opened = [rule for policy in policies for rule in [*policy.get("ingress", []), *policy.get("egress", [])]]
    assert opened == ([] if storage else [{"ports": [{"port": 2049, "protocol": "TCP"}]}])
