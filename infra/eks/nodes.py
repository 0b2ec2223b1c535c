"""The managed node groups: a permanent system group for what holds a training together, and in each zone a worker group
of 0 to N nodes.

Each zone has its own group, because gradients that cross zones cost 2 cents per GB, which for GPT-2 is soon more than
the machines: the autoscaler fills the first zone, and takes the next when the first has no capacity. An Auto Scaling
group over several zones would spread its nodes evenly.

EKS drains a Spot machine that is to be taken back, because it turns capacity rebalancing on for such groups
(docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html): no termination handler is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from infra.cluster import EFA, NVIDIA_GPU, POOL, Autoscaler, WorkerPool
from infra.config import StackConfig
from infra.eks import templates
from infra.eks.cluster import security_group
from infra.eks.identity import OWNER, Identity
from infra.eks.keys import GROUP_LIMIT, SYSTEM_DISK_GIB, EksConfig, EksNodes, versions
from infra.eks.lookups import GPU_IMAGE, IMAGE
from infra.eks.machines import regions
from infra.eks.network import Network
from infra.eks.scope import Scope
from infra.facts import load
from infra.machine import for_pods
from infra.scope import LONG

#: Value of the taint that keeps pods without accelerators off the nodes that have them.
TAINT = "present"
#: Label by which the autoscaler knows that a node has accelerators that its device plugin has not announced yet.
ACCELERATOR = "k8s.amazonaws.com/accelerator"
#: Seconds that a pod gets to save and exit: a Spot machine's notice comes 120 s before its end, and EKS needs some of
#: them before it evicts. A drain for another reason gives as much; at an unannounced shutdown the image's kubelet gives
#: 120 s.
GRACE = 90
#: The container runtime mounts the driver's libraries into containers that name the capabilities they use.
DRIVER_ENVIRONMENT = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
#: libfabric's provider, without huge pages: pods would have to request them, and at this size it does as well without.
EFA_ENVIRONMENT = {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
INTERCONNECT = load(Path(__file__).parent / "interconnect.yaml")


@dataclass(frozen=True)
class Groups:
    """What all node groups have in common."""

    config: StackConfig
    scope: Scope
    cluster: aws.eks.Cluster
    network: Network
    nodes: Identity
    offers: Mapping[str, tuple[str, ...]]
    """Zone -> the workers' machine types that it offers."""
    releases: Mapping[str, str | None]
    """Type of image -> its release; None: the nodes keep theirs."""
    after: list[pulumi.Resource]
    """What nodes need, and so must outlive them."""

    def group(
        self,
        name: str,
        zones: Sequence[str],
        template: aws.ec2.LaunchTemplate,
        image: str,
        size: range,
        update: str = "DEFAULT",
        **how: Any,
    ) -> aws.eks.NodeGroup:
        """`size`: minimum to maximum number of nodes; the group starts with the minimum. `update`: MINIMAL ends old
        nodes, then starts new ones; DEFAULT the other way round."""
        g = aws.eks
        return g.NodeGroup(
            name,
            cluster_name=self.cluster.name,
            node_group_name=name,
            node_role_arn=self.nodes.role.arn,
            subnet_ids=[self.network.subnets[zone].id for zone in zones],
            version=self.cluster.version,
            ami_type=image,
            release_version=self.releases[image],
            launch_template=g.NodeGroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(lambda version: str(int(version)))
            ),
            scaling_config=g.NodeGroupScalingConfigArgs(min_size=size[0], desired_size=size[0], max_size=size[-1]),
            update_config=g.NodeGroupUpdateConfigArgs(max_unavailable=1, update_strategy=update),
            node_repair_config=g.NodeGroupNodeRepairConfigArgs(enabled=True),
            opts=self.scope.options(
                depends_on=[*self.nodes.grants, *self.after],
                timeouts=LONG,
                # The autoscaler sets it; a `pulumi up` must not take nodes away from a training. A group that is made
                # again, whose nodes are gone, begins with the least, and the autoscaler adds what pods wait for.
                ignore_changes=["scalingConfig.desiredSize"],
                # The name is fixed, so a new group cannot stand beside the old one.
                delete_before_replace=True,
            ),
            **how,
        )


def system_group(groups: Groups) -> aws.eks.NodeGroup:
    """One to a few nodes without accelerators, on demand."""
    eks = groups.config.section(EksConfig)
    return groups.group(
        "system",
        regions()[eks.region].home,
        templates.launch_template("system", groups.scope, SYSTEM_DISK_GIB),
        IMAGE,
        range(1, eks.system_nodes + 1),
        capacity_type="ON_DEMAND",
        instance_types=[eks.system_machine_type],
        labels={POOL: "system"},
    )


def worker_groups(groups: Groups) -> list[pulumi.Resource]:
    """The groups of nodes that train. They are empty until the Job asks: making them needs neither capacity nor quota.

    With a fallback each zone has a second group, of the lowest priority. Pods see no difference, so that an elastic
    training runs on both at once. The autoscaler turns to it when no Spot group delivers: it reads an Auto Scaling
    group's failed activities, withdraws its request and skips the group for some minutes
    (cluster-autoscaler, cloudprovider/aws/auto_scaling_groups.go: isNodeGroupAvailable).
    """
    nodes, machine = groups.config.section(EksNodes), groups.config.machine
    what = groups.config, groups.scope, security_group(groups.cluster)
    shared = None if nodes.compact_placement else templates.worker_template("workers", *what)
    made: list[pulumi.Resource] = []
    for zone in worker_zones(groups.config, groups.scope):
        template = shared or templates.worker_template(f"workers-{zone}", *what)
        # The autoscaler takes every node for the first type, the smallest. The fallback's groups have no other, because
        # machines that stand in for Spot are paid in full.
        kinds = {"workers": ("SPOT" if nodes.consumption == "spot" else "ON_DEMAND", list(groups.offers[zone]))}
        if nodes.fallback == "on_demand":
            kinds["fallback"] = ("ON_DEMAND", [groups.offers[zone][0]])
        for kind, (capacity, types) in kinds.items():
            group = groups.group(
                f"{kind}-{zone}",
                [zone],
                template,
                GPU_IMAGE,
                range(max(GROUP_LIMIT, nodes.max) + 1),
                # DEFAULT needs up to two more machines in each group, whatever its size, and fails where there are none
                # (docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html).
                update="MINIMAL",
                # A training at its minimum of workers allows no eviction, and EKS would give up after 15 minutes, and
                # the `up` fail (managed-node-groups.html). Forced, the training resumes from its checkpoint.
                force_update_version=True,
                capacity_type=capacity,
                instance_types=types,
                labels={POOL: "workers", ACCELERATOR: machine.accelerator or ""},
                taints=[aws.eks.NodeGroupTaintArgs(key=NVIDIA_GPU, value=TAINT, effect="NO_SCHEDULE")],
            )
            made.append(group)
            if nodes.efa:
                _announce(f"efa-{zone}" if kind == "workers" else f"efa-{kind}-{zone}", groups.scope, group)
    return made


def _announce(name: str, scope: Scope, group: aws.eks.NodeGroup) -> None:
    """Tell the autoscaler that each node has one adapter, which it cannot see in a group without nodes."""
    aws.autoscaling.Tag(
        name,
        autoscaling_group_name=group.resources[0].autoscaling_groups[0].name.apply(lambda name: name or ""),
        tag=aws.autoscaling.TagTagArgs(
            key=f"{OWNER}/node-template/resources/{EFA}", value="1", propagate_at_launch=False
        ),
        opts=scope.options(),
    )


def worker_zones(config: StackConfig, scope: Scope) -> tuple[str, ...]:
    """Zones of the workers, the preferred first. An Elastic Fabric Adapter does not reach another zone."""
    return scope.zones[:1] if config.section(EksNodes).efa else scope.zones


def as_scheduled(config: StackConfig) -> WorkerPool:
    """The worker groups as pods see them."""
    nodes, eks, machine = config.section(EksNodes), config.section(EksConfig), config.machine
    cpu, memory = for_pods(machine)
    return WorkerPool(
        grace_seconds=GRACE,
        node_selector={POOL: "workers"},
        tolerations=(k8s.core.v1.TolerationArgs(key=NVIDIA_GPU, operator="Equal", value=TAINT, effect="NoSchedule"),),
        cpu=cpu,
        memory_gib=memory,
        accelerators=machine.accelerators,
        max_nodes=nodes.max,
        environment=DRIVER_ENVIRONMENT | (EFA_ENVIRONMENT if nodes.efa else INTERCONNECT["nccl"]),
        # The slowest type that may come.
        network_gbit=min(INTERCONNECT["gbit_per_second"][name] for name in nodes.machine_types),
        devices={EFA: "1"} if nodes.efa else {},
        adapter_plugin=eks.efa_plugin,
        device_plugin=True,
        metrics_exporter=eks.gpu_metrics,
    )


def autoscaler(config: StackConfig, scope: Scope) -> Autoscaler:
    """Settings of the cluster-autoscaler."""
    eks, nodes = config.section(EksConfig), config.section(EksNodes)
    return Autoscaler(
        image=versions()[eks.version]["autoscaler"],
        flags={
            "cloud-provider": "aws",
            # EKS tags the Auto Scaling groups of its node groups.
            "node-group-auto-discovery": f"asg:tag={OWNER}/enabled,{OWNER}/{scope.name}",
        },
        environment={"AWS_REGION": scope.region},
        # EKS's Auto Scaling groups are named eks-GROUP-ID.
        priorities=tuple(
            f"^eks-{kind}-{zone}-.*"
            for kind in ("workers", *(["fallback"] if nodes.fallback == "on_demand" else []))
            for zone in worker_zones(config, scope)
        ),
        most_nodes=eks.system_nodes + nodes.max,
    )
