"""The stack's part of a cluster: its namespace, and what all of its workloads are given.

Restricted Pod Security, and no traffic but what the training needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.config import TrainingConfig
from infra.image import ContainerImage
from trainer.contract import ETCD_PORT, STORE_PORT
from workloads.objects import labels, metadata, select
from workloads.pod import SharedVolume

#: Pod Security level, pinned: an upgrade of the cluster does not change what is admitted. A server older than this uses
#: its latest.
POD_SECURITY = {"level": "restricted", "version": "v1.33"}


class Namespace(pulumi.ComponentResource):
    """The namespace and its network policies. Everything namespaced is deleted with it (or with its cluster)."""

    name: pulumi.Output[str]
    resource: k8s.core.v1.Namespace
    lifetime: pulumi.Resource
    """What `deleted_with` of every namespaced object points at: deleting that deletes the objects, one by one is not
    needed."""

    def __init__(self, name: str, cluster: Cluster, training: TrainingConfig, depends_on: list[pulumi.Resource]):
        """`name` is the namespace's name; `depends_on` must outlive it, such as the volume that its claim binds."""
        super().__init__("trainyard:workloads:Namespace", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        enforced = {
            f"pod-security.kubernetes.io/{mode}": POD_SECURITY["level"] for mode in ("enforce", "audit", "warn")
        }
        self.resource = k8s.core.v1.Namespace(
            name,
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=name,
                labels={
                    **labels("namespace"),
                    **enforced,
                    "pod-security.kubernetes.io/enforce-version": POD_SECURITY["version"],
                },
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=depends_on, deleted_with=cluster.resource),
        )
        self.name = self.resource.metadata.name.apply(str)
        self.lifetime = cluster.resource or self.resource
        for policy_name, spec in _policies(training).items():
            k8s.networking.v1.NetworkPolicy(
                policy_name,
                metadata=metadata("network-policy", self.name, policy_name),
                spec=spec,
                opts=pulumi.ResourceOptions(parent=self, deleted_with=self.lifetime),
            )
        self.register_outputs({"name": self.name})


@dataclass(frozen=True)
class Workspace:
    """Where the pods of a stack run, and what each of them has."""

    cluster: Cluster
    namespace: Namespace
    image: ContainerImage
    """The trainer's."""
    claim: k8s.core.v1.PersistentVolumeClaim
    """The shared volume."""

    @property
    def volume(self) -> SharedVolume:
        return SharedVolume(self.claim.metadata.name.apply(str), self.cluster.storage.access_mode == "ReadWriteOnce")

    def component(self) -> pulumi.ResourceOptions:
        """For a component of workloads: its objects are made by the cluster's provider."""
        return pulumi.ResourceOptions(provider=self.cluster.provider)

    def owned(self, by: pulumi.Resource) -> pulumi.ResourceOptions:
        """For an object in the namespace, with which it is deleted."""
        return pulumi.ResourceOptions(parent=by, deleted_with=self.namespace.lifetime)


def _policies(training: TrainingConfig) -> dict[str, k8s.networking.v1.NetworkPolicySpecArgs]:
    """Deny all, then allow: DNS for all; trainers among themselves, to etcd and as far as their figures go; the dataset
    Job out to the web.

    They hold where the network plug-in enforces them (GKE Dataplane V2, EKS VPC CNI with its policy agent, Calico,
    Cilium, the local node with `up --policies`). Storage is mounted by the node, and port-forward enters through the
    kubelet: neither needs a rule.
    """
    net = k8s.networking.v1
    everyone = k8s.meta.v1.LabelSelectorArgs()
    trainer, etcd, dataset = (select(name) for name in ("trainer", "rendezvous", "dataset"))
    dns = [net.NetworkPolicyPortArgs(port=53, protocol=protocol) for protocol in ("UDP", "TCP")]
    # One of the two is there.
    client = [net.NetworkPolicyPortArgs(port=port, protocol="TCP") for port in (ETCD_PORT, STORE_PORT)]
    web = [net.NetworkPolicyPortArgs(port=port, protocol="TCP") for port in (80, 443)]
    to_etcd = net.NetworkPolicyEgressRuleArgs(to=[net.NetworkPolicyPeerArgs(pod_selector=etcd)], ports=client)
    # All ports: gloo, NCCL and the TCPStore listen on ephemeral ones.
    peers = [net.NetworkPolicyPeerArgs(pod_selector=trainer)]
    egress, ingress = [net.NetworkPolicyEgressRuleArgs(to=peers), to_etcd], [_from(peers)]
    if training.metrics.wandb_project:
        # Denied, wandb waits a minute at each start of a worker and is left out. No policy can name its server.
        egress.append(net.NetworkPolicyEgressRuleArgs(ports=[net.NetworkPolicyPortArgs(port=443, protocol="TCP")]))
    if scraped := training.metrics.prometheus_port:
        # Whoever scrapes runs in a namespace of its own, or on the node.
        ingress.append(_from(None, [net.NetworkPolicyPortArgs(port=scraped, protocol="TCP")]))
    return {
        "default-deny": net.NetworkPolicySpecArgs(pod_selector=everyone, policy_types=["Ingress", "Egress"]),
        "allow-dns": net.NetworkPolicySpecArgs(
            pod_selector=everyone, policy_types=["Egress"], egress=[net.NetworkPolicyEgressRuleArgs(ports=dns)]
        ),
        "trainers": net.NetworkPolicySpecArgs(
            pod_selector=trainer,
            policy_types=["Ingress", "Egress"],
            ingress=ingress,
            egress=egress,
        ),
        # Whoever writes there can end the training, though not run code in it (trainer/elastic/rendezvous_state.py).
        "rendezvous": net.NetworkPolicySpecArgs(
            pod_selector=etcd,
            policy_types=["Ingress"],
            ingress=[_from(peers, client)],
        ),
        "dataset": net.NetworkPolicySpecArgs(
            pod_selector=dataset, policy_types=["Egress"], egress=[net.NetworkPolicyEgressRuleArgs(ports=web)]
        ),
    }


def _from(
    peers: list[k8s.networking.v1.NetworkPolicyPeerArgs] | None,
    ports: list[k8s.networking.v1.NetworkPolicyPortArgs] | None = None,
) -> k8s.networking.v1.NetworkPolicyIngressRuleArgs:
    return k8s.networking.v1.NetworkPolicyIngressRuleArgs(from_=peers, ports=ports)
