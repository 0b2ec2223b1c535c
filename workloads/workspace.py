"""The stack's part of a cluster: its namespace, and what every workload gets.

The namespace enforces restricted Pod Security and allows only the traffic that the training needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.config import TrainingConfig
from infra.image import ContainerImage
from trainer.contract import ETCD_PORT, STORE_PORT
from workloads.objects import Peers, make_namespace, make_policy, ports, select
from workloads.pod import SharedVolume

#: Pinned, so that a cluster upgrade does not change what is admitted. An older API server uses its latest version.
POD_SECURITY = {**dict.fromkeys(("enforce", "audit", "warn"), "restricted"), "enforce-version": "v1.33"}


class Namespace(pulumi.ComponentResource):
    """The namespace and its network policies. Everything namespaced is deleted with it (or with its cluster)."""

    name: pulumi.Output[str]
    resource: k8s.core.v1.Namespace
    lifetime: pulumi.Resource
    """`deleted_with` of every namespaced object: deleting this resource deletes them all."""

    def __init__(self, name: str, cluster: Cluster, training: TrainingConfig, depends_on: list[pulumi.Resource]):
        """`name` is the namespace's name; `depends_on` must outlive it, such as the volume that its claim binds."""
        super().__init__("trainyard:workloads:Namespace", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        opts = pulumi.ResourceOptions(parent=self, depends_on=depends_on, deleted_with=cluster.resource)
        self.resource = make_namespace(name, name, "namespace", POD_SECURITY, opts)
        self.name = self.resource.metadata.name.apply(str)
        self.lifetime = cluster.resource or self.resource
        opts = pulumi.ResourceOptions(parent=self, deleted_with=self.lifetime)
        for policy_name, (pods, ingress, egress) in _policies(training).items():
            make_policy(policy_name, self.name, pods, opts, ingress=ingress, egress=egress)
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
    image_pull: k8s.core.v1.Secret | None = None
    """Credentials of a private registry."""

    @property
    def pull_secrets(self) -> list[k8s.core.v1.LocalObjectReferenceArgs] | None:
        """`image_pull_secrets` of a pod."""
        if self.image_pull is None:
            return None
        return [k8s.core.v1.LocalObjectReferenceArgs(name=self.image_pull.metadata.name)]

    @property
    def volume(self) -> SharedVolume:
        claim, pool = self.claim.metadata.name.apply(str), self.cluster.workers
        if self.cluster.storage.access_mode == "ReadWriteOnce":
            # The first pod fixes the node, so the workers must fit there as well.
            return SharedVolume(claim, True, pool.node_selector, pool.tolerations)
        return SharedVolume(claim, False, self.cluster.node_selector)

    def component(self) -> pulumi.ResourceOptions:
        """Options of a component: the cluster's provider makes its objects."""
        return pulumi.ResourceOptions(provider=self.cluster.provider)

    def owned(self, by: pulumi.Resource) -> pulumi.ResourceOptions:
        """Options of an object in the namespace, with which it is deleted."""
        return pulumi.ResourceOptions(parent=by, deleted_with=self.namespace.lifetime)


def _policies(
    training: TrainingConfig,
) -> dict[str, tuple[k8s.meta.v1.LabelSelectorArgs, Sequence[Peers] | None, Sequence[Peers] | None]]:
    """Policies by name: (pods, who may connect to them, where they may connect). All else is denied.

    DNS is allowed for all. Trainers reach each other, the rendezvous and their metrics exporters; the dataset Job
    reaches the web. The network plug-in has to enforce them (GKE Dataplane V2, EKS VPC CNI with its policy agent,
    Calico, Cilium, the local node with `up --policies`). The node mounts the storage, and port-forward enters through
    the kubelet: neither needs a rule.
    """
    everyone = k8s.meta.v1.LabelSelectorArgs()
    trainer, etcd, dataset = (select(name) for name in ("trainer", "rendezvous", "dataset"))
    # The rendezvous listens on one of the two.
    client = ports(ETCD_PORT, STORE_PORT)
    # 5353: OpenShift's DNS pods listen there, and its network checks packets behind the Service's address.
    dns = ports(53, 5353, protocols=("UDP", "TCP"))
    # All ports: gloo, NCCL and the TCPStore listen on ephemeral ones.
    ingress: list[Peers] = [(trainer, None)]
    egress: list[Peers] = [(trainer, None), (etcd, client)]
    if training.metrics.wandb_project:
        # If denied, wandb delays each start of a worker by a minute and is left out. No policy can name its server.
        egress.append((None, ports(443)))
    if scraped := training.metrics.prometheus_port:
        # The scraper runs in another namespace, or on the node.
        ingress.append((None, ports(scraped)))
    return {
        "default-deny": (everyone, [], []),
        "allow-dns": (everyone, None, [(None, dns)]),
        "trainers": (trainer, ingress, egress),
        # A writer there can end the training but not run code in it (trainer/elastic/rendezvous_state.py).
        "rendezvous": (etcd, [(trainer, client)], None),
        "dataset": (dataset, None, [(None, ports(80, 443))]),
    }
