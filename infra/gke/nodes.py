"""The node pools: a permanent system pool for what holds a training together, and worker pools of 0 to N nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp
import pulumi_kubernetes as k8s

from infra.cluster import NVIDIA_GPU, POOL, DriverInstaller, WorkerPool
from infra.config import StackConfig
from infra.facts import load
from infra.gke.cluster import CLOUD_PLATFORM
from infra.gke.identity import NodeIdentity
from infra.gke.keys import (
    CLASS,
    COMPUTE_CLASS,
    FLEX_HOURS,
    SYSTEM_DISK_GIB,
    SYSTEM_DISK_TYPE,
    GkeConfig,
    GkeNodes,
    kinds,
    pool_name,
    zones,
)
from infra.gke.scope import Scope
from infra.machine import Machine, for_pods

#: Seconds that a Spot machine gets after its notice, the last of them for system pods: 120 at most, by default 30, 15
#: (docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms, read 2026-11-28).
SPOT_GRACE, SPOT_GRACE_SYSTEM = 120, 15
#: Grace period of a pod on every node, seconds: a Spot node leaves it 105. A drain grants what the pods ask for, up to
#: an hour (gcloud container node-pools delete, and upgrades).
GRACE = 90
#: GKE's device plugin mounts the driver's libraries there; only NVIDIA's own images search it by themselves.
DRIVER_ENVIRONMENT = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
#: Long enough to replace a pool's nodes: on each, GKE waits up to an hour for a pod whose disruption budget forbids
#: eviction, such as the NFS server's (cloud.google.com/kubernetes-engine/docs/concepts/node-pool-upgrade-strategies).
ROLLED = pulumi.CustomTimeouts(create="60m", update="180m", delete="60m")
INTERCONNECT = load(Path(__file__).parent / "interconnect.yaml")


def system_pool(
    config: StackConfig,
    scope: Scope,
    cluster: gcp.container.Cluster,
    nodes: NodeIdentity,
    after: list[pulumi.Resource],
) -> gcp.container.NodePool:
    """One to a few nodes without accelerators, on demand. It is made first: GKE taints nodes with accelerators only if
    pods have other nodes to run on (terraform-google-kubernetes-engine #703)."""
    gke = config.section(GkeConfig)
    return gcp.container.NodePool(
        "system",
        name="system",
        cluster=cluster.name,
        location=scope.zone,
        node_locations=[scope.zone],
        initial_node_count=1,
        autoscaling=gcp.container.NodePoolAutoscalingArgs(
            total_min_node_count=1, total_max_node_count=gke.system_nodes, location_policy="BALANCED"
        ),
        management=gcp.container.NodePoolManagementArgs(auto_repair=True, auto_upgrade=True),
        upgrade_settings=gcp.container.NodePoolUpgradeSettingsArgs(strategy="SURGE", max_surge=1, max_unavailable=0),
        node_config=gcp.container.NodePoolNodeConfigArgs(
            machine_type=gke.system_machine_type,
            disk_type=SYSTEM_DISK_TYPE,
            disk_size_gb=SYSTEM_DISK_GIB,
            labels={POOL: "system"},
            **_common(nodes),
        ),
        opts=_options(scope, cluster, after),
    )


def worker_pool(
    config: StackConfig,
    kind: str,
    scope: Scope,
    cluster: gcp.container.Cluster,
    nodes: NodeIdentity,
    after: list[pulumi.Resource],
) -> gcp.container.NodePool:
    """Nodes that train, obtained in one of the `kinds`. The pool is empty until the Job asks, so that making it needs
    neither capacity nor quota."""
    name, machine, c = pool_name(config, kind), config.machine, gcp.container
    pool = config.section(GkeNodes).model_copy(update={"consumption": kind})
    flexible = pool.consumption in ("flex_start", "queued")
    return c.NodePool(
        name,
        name=name,
        cluster=cluster.name,
        location=scope.zone,
        node_locations=list(zones(config)),
        initial_node_count=0,
        # Limits for the whole pool, not for each zone; nodes come from any zone with capacity.
        autoscaling=c.NodePoolAutoscalingArgs(
            total_min_node_count=0, total_max_node_count=pool.max, location_policy="ANY"
        ),
        # No repair of a node that is obtained for a limited time: it would be deleted and not come back.
        management=c.NodePoolManagementArgs(auto_repair=not flexible, auto_upgrade=True),
        # A surge node would need more accelerators than those in use. For nodes that live a limited time GKE sets a
        # strategy of its own, which the provider does not take (sets.yaml).
        upgrade_settings=None
        if flexible
        else c.NodePoolUpgradeSettingsArgs(strategy="SURGE", max_surge=0, max_unavailable=1),
        placement_policy=c.NodePoolPlacementPolicyArgs(type="COMPACT") if pool.compact_placement else None,
        queued_provisioning=c.NodePoolQueuedProvisioningArgs(enabled=True) if pool.consumption == "queued" else None,
        node_config=c.NodePoolNodeConfigArgs(
            machine_type=machine.name,
            disk_type=pool.disk_type,
            disk_size_gb=pool.disk_gib,
            spot=pool.consumption == "spot",
            flex_start=flexible or None,
            reservation_affinity=_reservation(pool),
            max_run_duration=_max_run_duration(pool),
            guest_accelerators=_accelerators(pool, machine),
            advanced_machine_features=c.NodePoolNodeConfigAdvancedMachineFeaturesArgs(
                threads_per_core=pool.threads_per_core
            )
            if pool.threads_per_core
            else None,
            ephemeral_storage_local_ssd_config=_scratch(pool, machine),
            kubelet_config=_kubelet(pool, machine),
            labels={POOL: "workers", **_selector(config)},
            taints=[
                c.NodePoolNodeConfigTaintArgs(key=key, value=value, effect="NO_SCHEDULE")
                for key, value in _taints(config)
            ],
            **_common(nodes, own_driver=bool(machine.accelerators) and pool.gpu_driver == "daemonset"),
        ),
        opts=_options(scope, cluster, after),
    )


def order_pools(
    config: StackConfig, provider: k8s.Provider, cluster: gcp.container.Cluster, parent: pulumi.Resource
) -> tuple[pulumi.Resource, ...]:
    """The compute class that the training's pods ask for; none where there is only one way to obtain nodes.

    GKE's autoscaler takes the first of the class's pools that can grow, and skips one that has just failed for some
    minutes. A class may consist of pools that we make, without auto-creation, if each has the class's label and taint
    (cloud.google.com/kubernetes-engine/docs/concepts/about-custom-compute-classes, GKE 1.30.3 and newer). A flex-start
    pool gives up after 15 minutes and passes on (GoogleCloudPlatform/cluster-autoscaler 7d25050,
    DefaultFlexStartCapacityCheckWaitTime). Within a pool the autoscaler takes whichever zone has machines (location
    policy ANY). All read 2026-11-22.
    """
    if len(kinds(config)) == 1:
        return ()
    return (
        k8s.apiextensions.CustomResource(
            "workers",
            api_version="cloud.google.com/v1",
            kind="ComputeClass",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=CLASS),
            spec={
                "priorities": [{"nodepools": [pool_name(config, kind)]} for kind in kinds(config)],
                # Explicit, because the default changed with 1.33: no node of another machine type.
                "whenUnsatisfiable": "DoNotScaleUp",
            },
            opts=pulumi.ResourceOptions(parent=parent, provider=provider, deleted_with=cluster),
        ),
    )


def as_scheduled(config: StackConfig) -> WorkerPool:
    """The worker pool as pods see it."""
    pool, machine = config.section(GkeNodes), config.machine
    cpu, memory = for_pods(machine, pool.threads_per_core)
    by_daemonset = machine.accelerators and pool.gpu_driver == "daemonset"
    return WorkerPool(
        grace_seconds=GRACE,
        node_selector=_selector(config) or {POOL: "workers"},
        tolerations=tuple(
            k8s.core.v1.TolerationArgs(key=key, operator="Equal", value=value, effect="NoSchedule")
            for key, value in _taints(config)
        ),
        cpu=cpu,
        memory_gib=memory,
        accelerators=machine.accelerators,
        max_nodes=pool.max,
        threads_per_core=1 if machine.accelerators else pool.threads_per_core or 2,
        whole_cores=machine.capability is not None,
        capability=machine.capability,
        environment=DRIVER_ENVIRONMENT | INTERCONNECT["nccl"] if machine.accelerators else {},
        network_gbit=INTERCONNECT["gbit_per_second"].get(machine.name),
        driver_installer=_DRIVER_INSTALLER if by_daemonset else None,
        queue_hours=(pool.max_run_hours or FLEX_HOURS) if pool.consumption == "queued" else None,
    )


#: The installer that GKE puts onto every node of Container-Optimized OS, with drivers built for its kernel.
_DRIVER_INSTALLER = DriverInstaller(
    node_label="cloud.google.com/gke-accelerator",
    managed_label="cloud.google.com/gke-gpu-driver-version",
    image="cos-nvidia-installer:fixed",
    host_directory="/home/kubernetes/bin/nvidia",
)


def _selector(config: StackConfig) -> dict[str, str]:
    """The class's label where there are several pools, alone: GKE rejects pods that select more labels of the pools."""
    return {COMPUTE_CLASS: CLASS} if len(kinds(config)) > 1 else {}


def _taints(config: StackConfig) -> list[tuple[str, str]]:
    # GKE adds the taint of accelerators by itself; declared, it is there for certain (cluster-toolkit does the same).
    return [(NVIDIA_GPU, "present") if config.machine.accelerators else (POOL, "workers"), *_selector(config).items()]


def _common(nodes: NodeIdentity, own_driver: bool = False) -> dict[str, Any]:
    """Settings of every node. `own_driver`: a DaemonSet of ours loads a kernel module."""
    c = gcp.container
    return {
        "image_type": "COS_CONTAINERD",
        "service_account": nodes.account.email,
        # IAM decides what the account may do; narrower scopes would only hide it.
        "oauth_scopes": [CLOUD_PLATFORM],
        "gvnic": c.NodePoolNodeConfigGvnicArgs(enabled=True),
        # Containers start while their image streams in.
        "gcfs_config": c.NodePoolNodeConfigGcfsConfigArgs(enabled=True),
        "workload_metadata_config": c.NodePoolNodeConfigWorkloadMetadataConfigArgs(mode="GKE_METADATA"),
        "shielded_instance_config": c.NodePoolNodeConfigShieldedInstanceConfigArgs(
            # GKE's own driver is signed for the node's image (cos.googlesource.com/cos/tools, cos-gpu-installer); one
            # that a DaemonSet of ours loads need not be.
            enable_secure_boot=not own_driver,
            enable_integrity_monitoring=True,
        ),
        "metadata": {"disable-legacy-endpoints": "true"},
    }


def _reservation(pool: GkeNodes) -> gcp.container.NodePoolNodeConfigReservationAffinityArgs | None:
    affinity = gcp.container.NodePoolNodeConfigReservationAffinityArgs
    match pool.consumption:
        case "reservation":
            return affinity(
                consume_reservation_type="SPECIFIC_RESERVATION",
                key="compute.googleapis.com/reservation-name",
                values=[pool.reservation or ""],
            )
        case "on_demand":
            # Nodes use an open reservation that fits: it is paid for anyway.
            return None
        case _:
            return affinity(consume_reservation_type="NO_RESERVATION")


def _max_run_duration(pool: GkeNodes) -> str | None:
    hours = pool.max_run_hours
    if pool.consumption in ("flex_start", "queued"):
        hours = min(hours or FLEX_HOURS, FLEX_HOURS)
    return f"{round(hours * 3600)}s" if hours else None


def _accelerators(
    pool: GkeNodes, machine: Machine
) -> list[gcp.container.NodePoolNodeConfigGuestAcceleratorArgs] | None:
    if not machine.accelerator:
        return None
    version = pool.gpu_driver_version if pool.gpu_driver == "managed" else "INSTALLATION_DISABLED"
    c = gcp.container
    return [
        c.NodePoolNodeConfigGuestAcceleratorArgs(
            type=machine.accelerator,
            count=machine.accelerators,
            gpu_driver_installation_config=c.NodePoolNodeConfigGuestAcceleratorGpuDriverInstallationConfigArgs(
                gpu_driver_version=version
            ),
        )
    ]


def _scratch(
    pool: GkeNodes, machine: Machine
) -> gcp.container.NodePoolNodeConfigEphemeralStorageLocalSsdConfigArgs | None:
    """Local SSDs become the nodes' ephemeral storage: images, /tmp and caches of the pods."""
    count = machine.bundled_ssds if pool.local_ssds is None else pool.local_ssds
    if not count:
        return None
    return gcp.container.NodePoolNodeConfigEphemeralStorageLocalSsdConfigArgs(local_ssd_count=count)


def _kubelet(pool: GkeNodes, machine: Machine) -> gcp.container.NodePoolNodeConfigKubeletConfigArgs:
    spot = pool.consumption == "spot"
    return gcp.container.NodePoolNodeConfigKubeletConfigArgs(
        # Pods that ask for whole CPUs get exclusive cores: oneDNN's threads do not move from core to core.
        cpu_manager_policy="static" if machine.capability else "none",
        insecure_kubelet_readonly_port_enabled="FALSE",
        # Workers save a checkpoint within this time. Other nodes are drained with the pods' own grace period.
        shutdown_grace_period_seconds=SPOT_GRACE if spot else None,
        shutdown_grace_period_critical_pods_seconds=SPOT_GRACE_SYSTEM if spot else None,
    )


def _options(scope: Scope, cluster: gcp.container.Cluster, after: list[pulumi.Resource]) -> pulumi.ResourceOptions:
    return scope.options(
        depends_on=after,
        timeouts=ROLLED,
        # Deleting a cluster deletes its pools.
        deleted_with=cluster,
        # The autoscaler changes it; a difference would replace the pool.
        ignore_changes=["initialNodeCount"],
        # The name is fixed, so a new pool cannot stand beside the old one.
        delete_before_replace=True,
    )
