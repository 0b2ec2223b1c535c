"""What the cluster's nodes need beyond what their cloud puts onto them, and what adds and removes them."""

from __future__ import annotations

import pulumi

from infra.cluster import EFA, Cluster
from workloads.autoscaler import ClusterAutoscaler
from workloads.dcgm import DcgmExporter
from workloads.device_plugin import ELASTIC_FABRIC, NVIDIA, DevicePlugin
from workloads.gpu_driver import GpuDriver


def install(cluster: Cluster) -> list[pulumi.Resource]:
    """What pods with accelerators come after; often nothing."""
    workers = cluster.workers
    if workers.metrics_exporter:
        DcgmExporter("dcgm-exporter", cluster)
    first: list[pulumi.Resource] = [*workers.after]
    if workers.driver_installer:
        first.append(GpuDriver("gpu-driver", cluster, workers.driver_installer))
    if workers.device_plugin:
        first.append(DevicePlugin(NVIDIA, cluster))
    if EFA in workers.devices:
        first.append(DevicePlugin(ELASTIC_FABRIC, cluster))
    if cluster.autoscaler:
        first.append(ClusterAutoscaler("autoscaler", cluster, cluster.autoscaler))
    return first
