"""The managed node groups: one that is always there for what holds a training together, and those of 0 to N nodes that
train, one in each zone.

One a zone, because gradients that cross zones cost 2 cents per GB, which for GPT-2 is soon more than the machines: the
autoscaler is told to fill the first zone, and takes the next when the first has no capacity. A group over several zones
would be spread evenly by its Auto Scaling group.

A Spot machine that is to be taken back is drained by EKS, which turns capacity rebalancing on for such groups
(docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html): no termination handler is needed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from infra.catalog import MACHINES
from infra.cluster import EFA, NVIDIA_GPU, POOL, Autoscaler, WorkerPool
from infra.config import StackConfig
from infra.eks.cluster import security_group
from infra.eks.identity import Identity
from infra.eks.network import Network
from infra.eks.scope import Scope
from infra.machine import Machine, for_pods
from infra.scope import LONG
from infra.sections import NodesConfig

#: Images of EKS: with and without NVIDIA's driver and container runtime.
IMAGE, GPU_IMAGE = "AL2023_x86_64_STANDARD", "AL2023_x86_64_NVIDIA"
ROOT_DEVICE, SYSTEM_DISK_GIB = "/dev/xvda", 50
#: Label by which the autoscaler knows that a node has accelerators that its device plugin has not announced yet.
ACCELERATOR = "k8s.amazonaws.com/accelerator"
#: What a pod gets to save and leave: the notice of a Spot machine comes 120 s before its end, and EKS needs some of it
#: until it evicts. A node that is drained for another reason gives as much.
GRACE = 90
#: The container runtime puts the driver's libraries into containers that say what they use.
DRIVER_ENVIRONMENT = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
#: libfabric's provider. Its huge pages would be a resource that pods ask for; at this size it does as well without.
EFA_ENVIRONMENT = {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
#: Tag of an Auto Scaling group that says what its nodes have beyond what EC2 and EKS tell the autoscaler.
HAS = "k8s.io/cluster-autoscaler/node-template/resources/{resource}"
#: cluster-autoscaler is released for each minor version of Kubernetes.
AUTOSCALER_IMAGES = {
    "1.35": (
        "registry.k8s.io/autoscaling/cluster-autoscaler:v1.35.2"
        "@sha256:aac369dc283927a623deb1af54696efcc722ae79255aa07788422e495bab887d"
    ),
    "1.36": (
        "registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.1"
        "@sha256:461388d03eb5b55db58941ee7a81d9a619dd15302b01cbab9f5a9946715994b4"
    ),
}
#: Of a machine that shuts down without having been drained, seconds for its pods, and the last of them for its own: an
#: eviction that a disruption budget holds up still becomes a SIGTERM.
SHUTDOWN, SHUTDOWN_OWN = 45, 10


@dataclass(frozen=True)
class Groups:
    """What all node groups have in common."""

    config: StackConfig
    scope: Scope
    cluster: aws.eks.Cluster
    network: Network
    nodes: Identity
    after: list[pulumi.Resource]
    """What nodes need, and so has to outlive them."""

    def group(
        self, name: str, zones: list[str], template: aws.ec2.LaunchTemplate, smallest: int, most: int, **how: Any
    ) -> aws.eks.NodeGroup:
        g = aws.eks
        return g.NodeGroup(
            name,
            cluster_name=self.cluster.name,
            node_group_name=name,
            node_role_arn=self.nodes.role.arn,
            subnet_ids=[self.network.subnets[zone].id for zone in zones],
            version=self.cluster.version,
            launch_template=g.NodeGroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(lambda version: str(int(version)))
            ),
            scaling_config=g.NodeGroupScalingConfigArgs(min_size=smallest, desired_size=smallest, max_size=most),
            update_config=g.NodeGroupUpdateConfigArgs(max_unavailable=1),
            node_repair_config=g.NodeGroupNodeRepairConfigArgs(enabled=True),
            opts=self.scope.options(
                depends_on=[*self.nodes.grants, *self.after],
                timeouts=LONG,
                # The autoscaler's; a `pulumi up` must not take nodes away from a training.
                ignore_changes=["scalingConfig.desiredSize"],
                # The name is fixed, so a new group cannot stand beside the old one.
                delete_before_replace=True,
            ),
            **how,
        )

    def template(self, name: str, disk_gib: int, **options: Any) -> aws.ec2.LaunchTemplate:
        t = aws.ec2
        disk = t.LaunchTemplateBlockDeviceMappingEbsArgs(
            volume_type="gp3", volume_size=disk_gib, encrypted="true", delete_on_termination="true"
        )
        return t.LaunchTemplate(
            name,
            name=f"{self.scope.name}-{name}",
            update_default_version=True,
            block_device_mappings=[t.LaunchTemplateBlockDeviceMappingArgs(device_name=ROOT_DEVICE, ebs=disk)],
            metadata_options=t.LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled",
                http_tokens="required",
                # One hop ends on the node: pods, who have identities of their own, do not get at the node's.
                http_put_response_hop_limit=1,
            ),
            # A node group's own tags reach neither machines nor disks.
            tag_specifications=[
                t.LaunchTemplateTagSpecificationArgs(
                    resource_type=kind, tags={**self.scope.tags, **self.scope.named(name)}
                )
                for kind in ("instance", "volume", "network-interface")
            ],
            opts=self.scope.options(),
            **options,
        )


def system_group(groups: Groups) -> aws.eks.NodeGroup:
    """One to a few nodes without accelerators, on demand."""
    eks = groups.config.eks
    assert eks is not None
    return groups.group(
        "system",
        list(groups.network.subnets),
        groups.template("system", SYSTEM_DISK_GIB),
        1,
        eks.system_nodes,
        ami_type=IMAGE,
        capacity_type="ON_DEMAND",
        instance_types=[eks.system_machine_type],
        labels={POOL: "system"},
    )


def worker_groups(groups: Groups) -> list[aws.eks.NodeGroup]:
    """The nodes that train: none until the Job asks, so that making the groups needs neither capacity nor quota."""
    nodes = groups.config.nodes
    assert nodes is not None
    machine = MACHINES[nodes.machine_type]
    options = _options(groups, nodes, machine)
    # Machines in a placement group are in one zone.
    shared = None if nodes.compact_placement else groups.template("workers", nodes.disk_gib, **options)
    zones = worker_zones(groups.config, groups.scope)
    made = [
        groups.group(
            f"workers-{zone}",
            [zone],
            shared or groups.template(f"workers-{zone}", nodes.disk_gib, **options, **_placement(groups.scope, zone)),
            0,
            nodes.max,
            ami_type=GPU_IMAGE,
            capacity_type="SPOT" if nodes.consumption == "spot" else "ON_DEMAND",
            # The first is what the autoscaler takes them for: the smallest.
            instance_types=[machine.name, *nodes.alternatives],
            labels={POOL: "workers", ACCELERATOR: machine.accelerator or ""},
            taints=[aws.eks.NodeGroupTaintArgs(key=key, value=value, effect="NO_SCHEDULE") for key, value in _taints()],
        )
        for zone in zones
    ]
    if nodes.efa:
        for zone, group in zip(zones, made, strict=True):
            _announce(f"efa-{zone}", groups.scope, group, EFA)
    return made


def _announce(name: str, scope: Scope, group: aws.eks.NodeGroup, resource: str) -> None:
    """Tells the autoscaler of one device a node, which it could not know of a group without nodes."""
    aws.autoscaling.Tag(
        name,
        autoscaling_group_name=group.resources[0].autoscaling_groups[0].name.apply(lambda name: name or ""),
        tag=aws.autoscaling.TagTagArgs(key=HAS.format(resource=resource), value="1", propagate_at_launch=False),
        opts=scope.options(),
    )


def worker_zones(config: StackConfig, scope: Scope) -> tuple[str, ...]:
    """Zones that workers may be in, the most wanted first. An Elastic Fabric Adapter does not reach another zone."""
    return scope.zones[:1] if config.nodes is not None and config.nodes.efa else scope.zones


def _taints() -> list[tuple[str, str]]:
    return [(NVIDIA_GPU, "present")]


def _placement(scope: Scope, zone: str) -> Mapping[str, Any]:
    group = aws.ec2.PlacementGroup(
        f"workers-{zone}", name=f"{scope.name}-{zone}", strategy="cluster", opts=scope.options()
    )
    return {"placement": aws.ec2.LaunchTemplatePlacementArgs(group_name=group.name)}


def _options(groups: Groups, nodes: NodesConfig, machine: Machine) -> dict[str, Any]:
    """What the workers' template has beyond every node's."""
    options: dict[str, Any] = {"user_data": _node_configuration(nodes, machine)}
    if nodes.efa:
        eks = groups.config.eks
        options["network_interfaces"] = [
            aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                device_index=0,
                interface_type="efa",
                delete_on_termination="true",
                associate_public_ip_address="true" if eks is not None and eks.public_nodes else None,
                # EKS adds its group by itself only where no interface is spelled out.
                security_groups=[security_group(groups.cluster)],
            )
        ]
    return options


def _node_configuration(nodes: NodesConfig, machine: Machine) -> str:
    """What the machines tell their kubelets (awslabs/amazon-eks-ami, nodeadm); EKS adds the rest."""
    spec: dict[str, Any] = {
        "kubelet": {
            "config": {
                "shutdownGracePeriod": f"{SHUTDOWN}s",
                "shutdownGracePeriodCriticalPods": f"{SHUTDOWN_OWN}s",
            }
        }
    }
    if machine.bundled_ssds if nodes.local_ssds is None else nodes.local_ssds:
        # The machine's own NVMe disks hold images, logs and the pods' scratch.
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    wanted = json.dumps({"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}, indent=2)
    lines = [
        "MIME-Version: 1.0",
        'Content-Type: multipart/mixed; boundary="NODE"',
        "",
        "--NODE",
        "Content-Type: application/node.eks.aws",
        "",
        wanted,
        "",
        "--NODE--",
        "",
    ]
    return base64.b64encode("\n".join(lines).encode()).decode()


def as_scheduled(config: StackConfig) -> WorkerPool:
    """The worker groups as pods see them."""
    nodes, eks = config.nodes, config.eks
    assert nodes is not None
    assert eks is not None
    machine = MACHINES[nodes.machine_type]
    cpu, memory = for_pods(machine)
    return WorkerPool(
        grace_seconds=GRACE,
        node_selector={POOL: "workers"},
        tolerations=tuple(
            k8s.core.v1.TolerationArgs(key=key, operator="Equal", value=value, effect="NoSchedule")
            for key, value in _taints()
        ),
        cpu=cpu,
        memory_gib=memory,
        accelerators=machine.accelerators,
        min_nodes=0,
        max_nodes=nodes.max,
        environment=DRIVER_ENVIRONMENT | (EFA_ENVIRONMENT if nodes.efa else {}),
        devices={EFA: "1"} if nodes.efa else {},
        device_plugin=True,
        metrics_exporter=eks.gpu_metrics,
    )


def autoscaler(config: StackConfig, scope: Scope) -> Autoscaler:
    """What adds and removes nodes."""
    eks, nodes = config.eks, config.nodes
    assert eks is not None
    assert nodes is not None
    return Autoscaler(
        image=AUTOSCALER_IMAGES[eks.version],
        region=scope.region,
        # EKS' Auto Scaling groups are named eks-GROUP-ID.
        priorities=tuple(f"^eks-workers-{zone}-.*" for zone in worker_zones(config, scope)),
        most_nodes=eks.system_nodes + nodes.max,
    )
