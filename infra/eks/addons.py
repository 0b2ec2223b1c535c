"""EKS's add-ons, in the order in which they and the nodes need each other.

    network plug-in, kube-proxy, pod identity agent, node monitoring agent  ->  nodes  ->  CoreDNS, EFS driver
    policy that lets kube-system's pods start ------------------------------------------^

The first four are DaemonSets: without three of them no node becomes ready, and without the last EKS's node repair sees
no fault of an accelerator (docs.aws.amazon.com/eks/latest/userguide/node-health.html). The others are Deployments,
which are never ready without a node. The reverse order is right too: the network plug-in outlives the nodes, and gives
their network interfaces back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from infra.cluster import NVIDIA_GPU
from infra.eks.identity import PODS, Identity, identity, needed, pod_identity
from infra.eks.scope import Scope
from infra.scope import LONG

NETWORK, PROXY, AGENT, MONITOR = "vpc-cni", "kube-proxy", "eks-pod-identity-agent", "eks-node-monitoring-agent"
DNS, EFS = "coredns", "aws-efs-csi-driver"
NAMES = (NETWORK, PROXY, AGENT, MONITOR, DNS, EFS)
#: Add-ons whose restart disturbs pods: a volume of the EFS driver stands still while its pod on the node, through which
#: it is mounted, is replaced. They move when the nodes do, at a new version of Kubernetes.
DISTURBING = (EFS,)
#: Tag with the version of Kubernetes for which the version of such an add-on was chosen.
CHOSEN_FOR = "kubernetes-version"
SYSTEM = "kube-system"


@dataclass(frozen=True)
class Addons:
    scope: Scope
    cluster: aws.eks.Cluster
    versions: Mapping[str, str]
    """Add-on -> its version; the others keep the one that they have, at first EKS's choice."""
    kubernetes: str
    """The cluster's version."""

    def before_nodes(self) -> list[pulumi.Resource]:
        rights = needed("pod_addresses", "network")
        looks = [{"Effect": "Allow", "Action": [right for right in rights if ":" in right], "Resource": "*"}]
        policies = [right for right in rights if ":" not in right]
        network = self._addon(
            NETWORK,
            [],
            ("aws-node", identity("network", self.scope, PODS, policies=policies, statements={"look": looks})),
            # Its agent, which is off by default, enforces the NetworkPolicies of workloads/workspace.py. strict: from a
            # pod's first packet on; by default a pod may connect anywhere until its policies have arrived, and keeps
            # those connections (amazon-vpc-cni-k8s b521883, README, 2026-11-25).
            {"enableNetworkPolicy": "true", "env": {"NETWORK_POLICY_ENFORCING_MODE": "strict"}},
        )
        monitor = self._addon(
            MONITOR,
            [],
            # Its DCGM agent tolerates no taint by default (values.yaml of its chart, 1.7.0), and a node with
            # accelerators counts as broken without that agent.
            values={"dcgmAgent": {"tolerations": [{"key": NVIDIA_GPU, "operator": "Exists"}]}},
        )
        return [self._addon(AGENT, []), network, self._addon(PROXY, []), monitor]

    def after_nodes(self, nodes: list[pulumi.Resource], driver: Identity) -> list[pulumi.Resource]:
        """The add-ons whose Deployments run on `nodes`. `driver`: who mounts the volume on each of them."""
        statements = [{"Effect": "Allow", "Action": needed("efs", "driver"), "Resource": "*"}]
        controller = identity("efs-driver", self.scope, PODS, statements={"look": statements})
        # Not of the add-on, which takes roles for its controller alone (aws-efs-csi-driver issue 1759).
        mounts = pod_identity("efs-node", self.scope, self.cluster, SYSTEM, "efs-csi-node-sa", driver)
        return [
            self._addon(DNS, nodes),
            self._addon(EFS, [*nodes, mounts], ("efs-csi-controller-sa", controller)),
        ]

    def let_system_start(self, kubernetes: k8s.Provider) -> pulumi.Resource:
        """Allow kube-system's own pods all traffic: strict mode denies all to a pod that no policy selects.

        CoreDNS and the EFS driver are never ready without it. Pods of the host's network, which most DaemonSets there
        have, need no policy.
        """
        net = k8s.networking.v1
        return net.NetworkPolicy(
            "system",
            metadata=k8s.meta.v1.ObjectMetaArgs(name="trainyard-system", namespace=SYSTEM),
            spec=net.NetworkPolicySpecArgs(
                pod_selector=k8s.meta.v1.LabelSelectorArgs(),
                policy_types=["Ingress", "Egress"],
                ingress=[net.NetworkPolicyIngressRuleArgs()],
                egress=[net.NetworkPolicyEgressRuleArgs()],
            ),
            opts=pulumi.ResourceOptions(parent=self.scope.parent, provider=kubernetes, deleted_with=self.cluster),
        )

    def _addon(
        self,
        name: str,
        after: list[pulumi.Resource],
        role: tuple[str, Identity] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> aws.eks.Addon:
        """`role`: (service account, identity)."""
        association = aws.eks.AddonPodIdentityAssociationArgs
        roles = [association(service_account=role[0], role_arn=role[1].role.arn)] if role else None
        return aws.eks.Addon(
            name,
            cluster_name=self.cluster.name,
            addon_name=name,
            addon_version=self.versions.get(name),
            tags={CHOSEN_FOR: self.kubernetes} if name in DISTURBING else None,
            configuration_values=json.dumps(values) if values else None,
            pod_identity_associations=roles,
            # Overwrite what an upgrade of EKS, or somebody by hand, has changed.
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            opts=self.scope.options(
                depends_on=[*after, *(role[1].grants if role else [])],
                timeouts=LONG,
                # Without a version of ours it keeps the one that it has, and the tag of that.
                ignore_changes=None if name in self.versions else ["tags"],
                # EKS deletes its add-ons with the cluster.
                deleted_with=self.cluster,
            ),
        )
