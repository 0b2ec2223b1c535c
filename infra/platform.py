"""Where a stack's cluster comes from. Each kind is imported when it is used: the SDKs of clouds are large."""

from __future__ import annotations

from infra.cluster import Cluster
from infra.config import StackConfig


def cluster_for(config: StackConfig, stack: str) -> Cluster:
    """The cluster that the configuration describes.

    Raises:
        ConfigError: when an existing cluster cannot be used as configured.
    """
    match config.cluster.kind:
        case "gke":
            from infra.gke.stack import gke_cluster

            return gke_cluster(config, stack)
        case "eks":
            from infra.eks.stack import eks_cluster

            return eks_cluster(config, stack)
        case "existing":
            from infra.existing import existing_cluster

            return existing_cluster(config, stack)
