"""Puts a cluster on Azure together: resource group -> registry, cluster -> worker pool -> Kubernetes provider."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import ETCD_IMAGE, POOL, Cluster, Registry, SharedStorage, WorkerPool
from infra.config import StackConfig
from infra.machine import for_pods
from infra.sections import NodesConfig
from tests.infra.aks.keys import AksConfig


def aks_cluster(config: StackConfig, stack: str) -> Cluster:
    """The cluster that a configuration of kind aks describes."""
    aks, nodes = config.section(AksConfig), config.section(NodesConfig)
    cpu, memory = for_pods(config.machine)

    def make(type_: str, name: str, after: list[pulumi.Resource], **inputs: Any) -> pulumi.CustomResource:
        options = pulumi.ResourceOptions(depends_on=after)
        return pulumi.CustomResource(f"azure-native:{type_}", name, {"name": config.name, **inputs}, options)

    group = make("resources:ResourceGroup", "group", [], location=aks.location)
    registry = make("containerregistry:Registry", "registry", [group], sku={"name": "Basic"}, loginServer=None)
    cluster = make("containerservice:ManagedCluster", "cluster", [group], systemSize=aks.system_machine_type)
    pool = make("containerservice:AgentPool", "workers", [cluster], vmSize=nodes.machine_type, minCount=0)
    return Cluster(
        name=config.name,
        provider=k8s.Provider("cluster", context=config.name, opts=pulumi.ResourceOptions(depends_on=[pool])),
        workers=WorkerPool(
            node_selector={POOL: "workers"}, cpu=cpu, memory_gib=memory, accelerators=1, max_nodes=nodes.max
        ),
        storage=SharedStorage(
            size_gib=config.storage.size_gib, access_mode="ReadWriteMany", class_name="azurefile-csi-premium"
        ),
        registry=Registry(address=vars(registry)["loginServer"], compression="zstd"),
        builder="buildkit",
        etcd_image=ETCD_IMAGE,
        context=config.name,
        resource=cluster,
    )
