"""What nodes with accelerators need beyond what their cloud puts onto them."""

from __future__ import annotations

import pulumi

from infra.cluster import Cluster
from workloads.gpu_driver import GpuDriver


def install(cluster: Cluster) -> list[pulumi.Resource]:
    """What pods with accelerators come after; often nothing."""
    installer = cluster.workers.driver_installer
    return [GpuDriver("gpu-driver", cluster, installer)] if installer else []
