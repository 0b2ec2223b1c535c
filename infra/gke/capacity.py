"""Where the nodes that train come from when there are none: in which ways, in which order, in which zones.

One node pool a way, and a ComputeClass that orders them: GKE's autoscaler takes the first pool that can grow, and
leaves one that has just failed alone for some minutes. It holds for pools that we make, without auto-creation, if
each has the class's label and taint (cloud.google.com/kubernetes-engine/docs/concepts/about-custom-compute-classes,
GKE 1.30.3 and newer). A flex-start pool gives up after 15 minutes and passes on
(GoogleCloudPlatform/cluster-autoscaler 7d25050, DefaultFlexStartCapacityCheckWaitTime). Zones are the pools' own:
within a pool the autoscaler takes whichever has machines (location policy ANY). All read 2026-11-22.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp
import pulumi_kubernetes as k8s

from infra.config import StackConfig
from infra.gke.pools import CLASS, kinds, pool_name


def order(
    config: StackConfig, provider: k8s.Provider, cluster: gcp.container.Cluster, parent: pulumi.Resource
) -> tuple[pulumi.Resource, ...]:
    """The class that pods of the training ask for; nothing where the nodes come in one way."""
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
                # Said, because the default has changed with 1.33: no node of another machine type.
                "whenUnsatisfiable": "DoNotScaleUp",
            },
            opts=pulumi.ResourceOptions(parent=parent, provider=provider, deleted_with=cluster),
        ),
    )
