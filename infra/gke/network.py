"""The stack's own network: one subnet with ranges for pods and services, and a NAT for nodes without public addresses.

Nothing in it has a public address. Kubernetes makes nothing in it that would outlive the cluster (load balancers, their
firewall rules), so it can be deleted with the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.gke.scope import Scope
from infra.scope import NETWORK

#: Addresses for 4,096 nodes, for the pods of 1,024 nodes (110 pods a node take a /24), and for 4,096 services.
NODES, PODS, SERVICES = "10.0.0.0/20", "10.16.0.0/14", "10.32.0.0/20"
#: Pods of a node, which take a /24 of PODS (cloud.google.com/kubernetes-engine/docs/how-to/flexible-pod-cidr).
PODS_PER_NODE = 110
#: Names of the ranges of the subnet that the cluster takes its addresses from.
PODS_RANGE, SERVICES_RANGE = "pods", "services"
#: The first address of each node's /24, as a pattern. No pod gets it: it is the node's end of its pods' interfaces, and
#: so the address from which a node connects to a pod of its own. GKE's plug-in is ptp with host-local, under Dataplane
#: V2 as well (GoogleCloudPlatform/netd e11d157, netd.yaml and scripts/install-cni.sh; containernetworking/plugins
#: 3d27709, plugins/main/ptp: setupHostVeth; read, and tried with the plug-in itself, 2026-11-25).
NODES_TO_OWN_PODS = "10.1[6-9].*.1"


@dataclass(frozen=True)
class Network:
    network: gcp.compute.Network
    subnet: gcp.compute.Subnetwork
    nat: gcp.compute.RouterNat


def create_network(scope: Scope, after: list[pulumi.Resource]) -> Network:
    network = gcp.compute.Network(
        "network",
        name=scope.name,
        auto_create_subnetworks=False,
        # GKE's gVNIC nodes carry 8,896 bytes a packet; gradients are large.
        mtu=8896,
        opts=scope.options(depends_on=after, timeouts=NETWORK),
    )
    ranges = gcp.compute.SubnetworkSecondaryIpRangeArgs
    subnet = gcp.compute.Subnetwork(
        "subnet",
        name=scope.name,
        region=scope.region,
        network=network.id,
        ip_cidr_range=NODES,
        secondary_ip_ranges=[
            ranges(range_name=PODS_RANGE, ip_cidr_range=PODS),
            ranges(range_name=SERVICES_RANGE, ip_cidr_range=SERVICES),
        ],
        # Nodes reach images and buckets within Google's network, without paying for the NAT.
        private_ip_google_access=True,
        opts=scope.options(timeouts=NETWORK),
    )
    router = gcp.compute.Router(
        "router", name=scope.name, region=scope.region, network=network.id, opts=scope.options(timeouts=NETWORK)
    )
    nat = gcp.compute.RouterNat(
        "nat",
        name=scope.name,
        region=scope.region,
        router=router.name,
        nat_ip_allocate_option="AUTO_ONLY",
        source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
        # Otherwise a VM has 64 ports to one destination: too few for many connections to one data host
        # (cloud.google.com/nat/docs/ports-and-addresses, read 2026-11-22).
        enable_dynamic_port_allocation=True,
        enable_endpoint_independent_mapping=False,
        min_ports_per_vm=64,
        max_ports_per_vm=32_768,
        log_config=gcp.compute.RouterNatLogConfigArgs(enable=True, filter="ERRORS_ONLY"),
        opts=scope.options(depends_on=[subnet], timeouts=NETWORK),
    )
    return Network(network, subnet, nat)
