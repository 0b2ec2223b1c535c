"""The managed node groups: one that is always there for what holds a training together, and those of 0 to N nodes that
train, one in each zone.

One a zone, because gradients that cross zones cost 2 cents per GB, which for GPT-2 is soon more than the machines: the
autoscaler is told to fill the first zone, and takes the next when the first has no capacity. A group over several zones
would be spread evenly by its Auto Scaling group.

A Spot machine that is to be taken back is drained by EKS, which turns capacity rebalancing on for such groups
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
from infra.eks.asked import GPU_IMAGE, IMAGE
from infra.eks.cluster import security_group
from infra.eks.identity import OWNER, Identity
from infra.eks.machines import regions
from infra.eks.network import Network
from infra.eks.scope import Scope
from infra.eks.section import SYSTEM_DISK_GIB, EksConfig, versions
from infra.machine import for_pods
from infra.needs import load
from infra.scope import LONG
from infra.sections import NodesConfig

#: Limit of a group of workers, nodes, where `nodes.max` is not larger: that is what the autoscaler holds all groups
#: together to. With another limit of a group the provider sends the state's number of nodes, 0, and EKS ends those that
#: train (terraform-provider-aws, internal/service/eks/node_group.go). EKS' default quota was 100 nodes, and is 450 now.
GROUP_LIMIT = 100
#: Value of the taint that keeps pods without accelerators off the nodes that have them.
TAINT = "present"
#: Label by which the autoscaler knows that a node has accelerators that its device plugin has not announced yet.
ACCELERATOR = "k8s.amazonaws.com/accelerator"
#: What a pod gets to save and leave: the notice of a Spot machine comes 120 s before its end, and EKS needs some of it
#: until it evicts. A node that is drained for another reason gives as much, and at a shutdown that nobody announced the
#: image's kubelet gives 120 s.
GRACE = 90
#: The container runtime puts the driver's libraries into containers that say what they use.
DRIVER_ENVIRONMENT = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
#: libfabric's provider. Its huge pages would be a resource that pods ask for; at this size it does as well without.
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
    """Type of image -> its release; None: the one that the nodes have."""
    after: list[pulumi.Resource]
    """What nodes need, and so has to outlive them."""

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
        """`size`: fewest to most nodes; it begins with the fewest. `update`: MINIMAL ends old nodes, then starts
        new ones; DEFAULT the other way round."""
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
                # The autoscaler's; a `pulumi up` must not take nodes away from a training.
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
    """The nodes that train: none until the Job asks, so that making the groups needs neither capacity nor quota.

    With a fallback each zone has a second group, of the lowest priority: pods see no difference, so that an elastic
    training runs on both at once. The autoscaler turns to it when no Spot group delivers: it reads an Auto Scaling
    group's failed activities, gives its request back and leaves the group alone for some minutes
    (cluster-autoscaler, cloudprovider/aws/auto_scaling_groups.go: isNodeGroupAvailable).
    """
    nodes, machine = groups.config.section(NodesConfig), groups.config.machine
    what = groups.config, groups.scope, security_group(groups.cluster)
    shared = None if nodes.compact_placement else templates.worker_template("workers", *what)
    made: list[pulumi.Resource] = []
    for zone in worker_zones(groups.config, groups.scope):
        template = shared or templates.worker_template(f"workers-{zone}", *what)
        # The first type is what the autoscaler takes them for: the smallest. In the fallback's groups there is no
        # other, because what stands in for a Spot machine is paid in full.
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
                # The other way wants up to two machines more in each group, whatever it has, and fails where there are
                # none (docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html).
                update="MINIMAL",
                # A training at its fewest workers lets none be evicted, and EKS would give up after 15 minutes with
                # the `up` (managed-node-groups.html): it resumes from its checkpoint.
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
    """Tells the autoscaler of one adapter a node, which it could not know of a group without nodes."""
    aws.autoscaling.Tag(
        name,
        autoscaling_group_name=group.resources[0].autoscaling_groups[0].name.apply(lambda name: name or ""),
        tag=aws.autoscaling.TagTagArgs(
            key=f"{OWNER}/node-template/resources/{EFA}", value="1", propagate_at_launch=False
        ),
        opts=scope.options(),
    )


def worker_zones(config: StackConfig, scope: Scope) -> tuple[str, ...]:
    """Zones that workers may be in, the most wanted first. An Elastic Fabric Adapter does not reach another zone."""
    return scope.zones[:1] if config.section(NodesConfig).efa else scope.zones


def as_scheduled(config: StackConfig) -> WorkerPool:
    """The worker groups as pods see them."""
    nodes, eks, machine = config.section(NodesConfig), config.section(EksConfig), config.machine
    cpu, memory = for_pods(machine)
    return WorkerPool(
        grace_seconds=GRACE,
        node_selector={POOL: "workers"},
        tolerations=(k8s.core.v1.TolerationArgs(key=NVIDIA_GPU, operator="Equal", value=TAINT, effect="NoSchedule"),),
        cpu=cpu,
        memory_gib=memory,
        accelerators=machine.accelerators,
        min_nodes=0,
        max_nodes=nodes.max,
        environment=DRIVER_ENVIRONMENT | (EFA_ENVIRONMENT if nodes.efa else INTERCONNECT["nccl"]),
        # The slowest of those that may come.
        network_gbit=min(INTERCONNECT["gbit_per_second"][name] for name in (machine.name, *nodes.alternatives)),
        devices={EFA: "1"} if nodes.efa else {},
        device_plugin=True,
        metrics_exporter=eks.gpu_metrics,
    )


def autoscaler(config: StackConfig, scope: Scope) -> Autoscaler:
    """What adds and removes nodes."""
    eks, nodes = config.section(EksConfig), config.section(NodesConfig)
    return Autoscaler(
        image=versions()[eks.version]["autoscaler"],
        flags={
            "cloud-provider": "aws",
            # EKS tags the Auto Scaling groups of its node groups.
            "node-group-auto-discovery": f"asg:tag={OWNER}/enabled,{OWNER}/{scope.name}",
        },
        environment={"AWS_REGION": scope.region},
        # EKS' Auto Scaling groups are named eks-GROUP-ID.
        priorities=tuple(
            f"^eks-{kind}-{zone}-.*"
            for kind in ("workers", *(["fallback"] if nodes.fallback == "on_demand" else []))
            for zone in worker_zones(config, scope)
        ),
        most_nodes=eks.system_nodes + nodes.max,
    )
