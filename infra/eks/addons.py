"""EKS's add-ons, in the order in which they and the nodes need each other.

    network plug-in, kube-proxy, pod identity agent, node monitoring agent  ->  nodes  ->  CoreDNS, EFS driver

The first four are DaemonSets: without three of them no node becomes ready, and without the last EKS's node repair sees
no fault of an accelerator (docs.aws.amazon.com/eks/latest/userguide/node-health.html). The others are Deployments,
which are never ready without a node. The reverse order is right too: the network plug-in outlives the nodes, and gives
their network interfaces back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.cluster import NVIDIA_GPU
from infra.eks.identity import PODS, Identity, identity, needed
from infra.eks.scope import Scope
from infra.scope import LONG


def before_nodes(scope: Scope, cluster: aws.eks.Cluster) -> list[pulumi.Resource]:
    agent = _addon("eks-pod-identity-agent", scope, cluster, [])
    rights = needed("pod_addresses", "network")
    looks = [{"Effect": "Allow", "Action": [right for right in rights if ":" in right], "Resource": "*"}]
    policies = [right for right in rights if ":" not in right]
    network = _addon(
        "vpc-cni",
        scope,
        cluster,
        [],
        role=("aws-node", identity("network", scope, PODS, policies=policies, statements={"look": looks})),
        # Its agent, which is off by default, enforces the NetworkPolicies of workloads/workspace.py.
        values={"enableNetworkPolicy": "true"},
    )
    monitor = _addon(
        "eks-node-monitoring-agent",
        scope,
        cluster,
        [],
        # Its DCGM agent tolerates no taint by default (values.yaml of its chart, 1.7.0), and a node with accelerators
        # counts as broken without that agent.
        values={"dcgmAgent": {"tolerations": [{"key": NVIDIA_GPU, "operator": "Exists"}]}},
    )
    return [agent, network, _addon("kube-proxy", scope, cluster, []), monitor]


def after_nodes(scope: Scope, cluster: aws.eks.Cluster, nodes: list[pulumi.Resource]) -> list[pulumi.Resource]:
    """The add-ons whose Deployments run on `nodes`."""
    statements = [{"Effect": "Allow", "Action": needed("efs", "driver"), "Resource": "*"}]
    driver = identity("efs-driver", scope, PODS, statements={"look": statements})
    return [
        _addon("coredns", scope, cluster, nodes),
        _addon("aws-efs-csi-driver", scope, cluster, nodes, role=("efs-csi-controller-sa", driver)),
    ]


def _addon(
    name: str,
    scope: Scope,
    cluster: aws.eks.Cluster,
    after: list[pulumi.Resource],
    role: tuple[str, Identity] | None = None,
    values: Mapping[str, Any] | None = None,
) -> aws.eks.Addon:
    """An add-on in the version that EKS chooses for the cluster's. `role`: (service account, identity)."""
    association = aws.eks.AddonPodIdentityAssociationArgs
    return aws.eks.Addon(
        name,
        cluster_name=cluster.name,
        addon_name=name,
        configuration_values=json.dumps(values) if values else None,
        pod_identity_associations=[association(service_account=role[0], role_arn=role[1].role.arn)] if role else None,
        # Overwrite what an upgrade of EKS, or somebody by hand, has changed.
        resolve_conflicts_on_create="OVERWRITE",
        resolve_conflicts_on_update="OVERWRITE",
        opts=scope.options(
            depends_on=[*after, *(role[1].grants if role else [])],
            timeouts=LONG,
            # EKS deletes its add-ons with the cluster.
            deleted_with=cluster,
        ),
    )
