"""The stack's part of a cluster: its namespace, and what every workload gets.

The namespace enforces restricted Pod Security and allows only the traffic that the training needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.config import StackConfig
from infra.facts import load
from infra.image import ContainerImage
from infra.sections import PRIVATE
from infra.training_rules import web_servers
from trainer.contract import ETCD_PORT
from workloads.objects import Peers, make_namespace, make_policy, ports, select
from workloads.pod import (
    TRAINER_ENVIRONMENT,
    beside_others,
    container_security,
    environment,
    pod_security,
    trainer_mounts,
)

#: Pinned, so that a cluster upgrade does not change what is admitted. An older API server uses its latest version.
POD_SECURITY = {**dict.fromkeys(("enforce", "audit", "warn"), "restricted"), "enforce-version": "v1.33"}


class Namespace(pulumi.ComponentResource):
    """The namespace and its network policies. Everything namespaced is deleted with it (or with its cluster)."""

    name: pulumi.Output[str]
    resource: k8s.core.v1.Namespace
    lifetime: pulumi.Resource
    """`deleted_with` of every namespaced object: deleting this resource deletes them all."""

    def __init__(self, config: StackConfig, cluster: Cluster, depends_on: list[pulumi.Resource]):
        """`depends_on` must outlive it, such as the volume that its claim binds."""
        name = config.cluster.namespace
        super().__init__("trainyard:workloads:Namespace", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        opts = pulumi.ResourceOptions(parent=self, depends_on=depends_on, deleted_with=cluster.resource)
        self.resource = make_namespace(name, name, "namespace", POD_SECURITY, opts)
        self.name = self.resource.metadata.name.apply(str)
        self.lifetime = cluster.resource or self.resource
        opts = pulumi.ResourceOptions(parent=self, deleted_with=self.lifetime)
        for policy_name, (pods, ingress, egress) in _policies(config).items():
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
    pull_secrets: list[k8s.core.v1.LocalObjectReferenceArgs] | None = None
    """`image_pull_secrets` of a pod, for a private registry."""

    @property
    def on_one_node(self) -> bool:
        """Whether only one node at a time can mount the shared volume."""
        return self.cluster.storage.access_mode == "ReadWriteOnce"

    @property
    def nodes(self) -> dict[str, Any]:
        """Options of a pod: the nodes where it may mount the shared volume."""
        if not self.on_one_node:
            return {"node_selector": dict(self.cluster.node_selector) or None}
        # The first pod fixes the one node, so the workers must fit there as well.
        pool = self.cluster.workers
        return {"node_selector": pool.node_selector or None, "tolerations": list(pool.tolerations) or None}

    def container(
        self,
        name: str,
        args: Sequence[pulumi.Input[str]],
        needs: k8s.core.v1.ResourceRequirementsArgs,
        variables: Mapping[str, str] | None = None,
        sources: Sequence[k8s.core.v1.EnvVarArgs] = (),
        **options: Any,
    ) -> k8s.core.v1.ContainerArgs:
        """A container of the trainer's image, with the volume unless `options` say otherwise. `sources`: variables
        whose values the cluster fills in."""
        options.setdefault("volume_mounts", trainer_mounts())
        return k8s.core.v1.ContainerArgs(
            name=name,
            image=self.image.reference,
            # Arguments only: the image's entry point is an init, which hands SIGTERM on as PID 1.
            args=list(args),
            env=[*environment(TRAINER_ENVIRONMENT | dict(variables or {})), *sources],
            resources=needs,
            security_context=container_security(),
            **options,
        )

    def pod(
        self,
        container: k8s.core.v1.ContainerArgs,
        token: bool = False,
        volumes: Sequence[k8s.core.v1.VolumeArgs] = (),
        **options: Any,
    ) -> k8s.core.v1.PodSpecArgs:
        """A pod of the trainer's image; `options` are what one kind of pod adds.

        Only a pod that calls the cluster's API gets its account's `token`. `volumes` come on top of the shared one,
        /tmp, and a /dev/shm larger than the runtime's 64 MB (it counts as the container's memory).
        """
        core = k8s.core.v1
        claim = core.PersistentVolumeClaimVolumeSourceArgs(claim_name=self.claim.metadata.name.apply(str))
        return core.PodSpecArgs(
            containers=[container],
            volumes=[
                core.VolumeArgs(name="data", persistent_volume_claim=claim),
                core.VolumeArgs(name="tmp", empty_dir=core.EmptyDirVolumeSourceArgs()),
                core.VolumeArgs(name="shm", empty_dir=core.EmptyDirVolumeSourceArgs(medium="Memory")),
                *volumes,
            ],
            affinity=beside_others() if self.on_one_node else None,
            image_pull_secrets=self.pull_secrets,
            security_context=pod_security(),
            automount_service_account_token=token,
            enable_service_links=False,
            **self.nodes | options,
        )

    def component(self) -> pulumi.ResourceOptions:
        """Options of a component: the cluster's provider makes its objects."""
        return pulumi.ResourceOptions(provider=self.cluster.provider)

    def owned(self, by: pulumi.Resource) -> pulumi.ResourceOptions:
        """Options of an object in the namespace, with which it is deleted."""
        return pulumi.ResourceOptions(parent=by, deleted_with=self.namespace.lifetime)


#: Addresses inside of a cluster, a network or a machine; the rest is the internet. At 168.63.129.16 Azure's host gives
#: a node's settings (basecamp/surfguard pull 6, read 2026-11-29). RFC 1122, 3927, 4291, 6052, 8215.
INNER = {
    "0.0.0.0/0": (
        *(cidr for cidr in PRIVATE if ":" not in cidr),
        "0.0.0.0/8",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
    ),
    "::/0": (*(cidr for cidr in PRIVATE if ":" in cidr), "::1/128", "fe80::/10", "64:ff9b::/96", "64:ff9b:1::/48"),
}
#: GKE's metadata server, which gives the Job's service account its token (Dataplane V2: this address and port).
#: EKS's pods get theirs from STS, an address of the internet. https://cloud.google.com/kubernetes-engine/docs/how-to/
#: network-policy#network-policy-and-workload-identity, 2026-11.
READERS_TOKEN = {"gke": ("169.254.169.254/32", (80,)), "eks": ("169.254.170.23/32", (80,))}


def _internet(config: StackConfig) -> list[Peers]:
    """The internet's web servers, private ones that the stack names, and what a bucket's reader needs.

    So an address that redirects to another inner one is not followed there.
    """
    net, trainings = k8s.networking.v1, config.each_training
    blocks = [net.IPBlockArgs(cidr=every, except_=list(inner)) for every, inner in INNER.items()]
    own = sorted({cidr for each in trainings for cidr in each.dataset.private_servers})
    blocks += [net.IPBlockArgs(cidr=cidr) for cidr in own]
    web = sorted({80, 443} | {port for each in trainings for _, _, port in web_servers(each)})
    found: list[Peers] = [([net.NetworkPolicyPeerArgs(ip_block=block) for block in blocks], ports(*web))]
    if token := READERS_TOKEN.get(config.cluster.kind):
        address, numbers = token
        found.append(([net.NetworkPolicyPeerArgs(ip_block=net.IPBlockArgs(cidr=address))], ports(*numbers)))
    return found


def _dns(own: Sequence[str]) -> list[Peers]:
    """The cluster's name servers (dns.yaml), and those at the addresses `own`, in CIDR notation."""
    net, select_by = k8s.networking.v1, k8s.meta.v1.LabelSelectorArgs
    found: list[Peers] = []
    for port, servers in load(Path(__file__).with_name("dns.yaml")).items():
        peers = [
            net.NetworkPolicyPeerArgs(
                namespace_selector=select_by(match_labels={"kubernetes.io/metadata.name": each["namespace"]}),
                pod_selector=select_by(match_labels=each["labels"]) if each["labels"] else None,
            )
            for each in servers["pods"]
        ]
        addresses = [*servers["addresses"], *own]
        peers += [net.NetworkPolicyPeerArgs(ip_block=net.IPBlockArgs(cidr=cidr)) for cidr in addresses]
        found.append((peers, ports(int(port), protocols=("UDP", "TCP"))))
    return found


def _policies(
    config: StackConfig,
) -> dict[str, tuple[k8s.meta.v1.LabelSelectorArgs, Sequence[Peers] | None, Sequence[Peers] | None]]:
    """Policies by name: (pods, who may connect to them, where they may connect). All else is denied.

    All reach the cluster's name servers, and so, by names that those look up elsewhere, any of these can tell something
    to the world. Trainers reach each other and the rendezvous, and with wandb any server's port 443; the dataset Job
    reaches the internet's web servers, and inside only `dataset.privateServers`. The network plug-in has to enforce
    them (GKE Dataplane V2, EKS VPC CNI with its policy agent, Calico, Cilium, the local node with `up --policies`). The
    node mounts the storage, and port-forward enters through the kubelet: neither needs a rule.
    """
    everyone = k8s.meta.v1.LabelSelectorArgs()
    trainer, etcd, dataset = (select(name) for name in ("trainer", "rendezvous", "dataset"))
    client = ports(ETCD_PORT)
    # All ports: gloo, NCCL and the TCPStore listen on ephemeral ones.
    ingress: list[Peers] = [(trainer, None)]
    egress: list[Peers] = [(trainer, None), (etcd, client)]
    metrics = [each.training.metrics for each in config.each_training]
    if any(each.wandb_project for each in metrics):
        # If denied, wandb delays each start of a worker by a minute and is left out. No policy can name its server.
        egress.append((None, ports(443)))
    if scraped := sorted({each.prometheus_port for each in metrics} - {0}):
        # The scraper runs in another namespace, or on the node.
        ingress.append((None, ports(*scraped)))
    return {
        "default-deny": (everyone, [], []),
        "allow-dns": (everyone, None, _dns(config.cluster.dns)),
        "trainers": (trainer, ingress, egress),
        # A writer there can end the training but not run code in it (trainer/elastic/rendezvous_state.py).
        "rendezvous": (etcd, [(trainer, client)], None),
        "dataset": (dataset, None, _internet(config)),
    }
