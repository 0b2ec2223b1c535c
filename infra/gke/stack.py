"""Makes a cluster on Google Cloud, its parts in this order; they are destroyed in the reverse order.

    services -> network -----> cluster -> system pool -> worker pools -> Kubernetes provider
             -> node identity ----^            ^
             -> disk -------------^   NAT -----'
             -> repository -> image       (beside the cluster: a build takes as long as a control plane)

Kubernetes objects are deleted with their cluster, not one by one; then network, identity, disk and repository.
"""

from __future__ import annotations

from dataclasses import replace

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import ETCD_IMAGE, Cluster
from infra.config import ConfigError, StackConfig
from infra.gke import availability, cluster, identity, network, nodes, registry, services, storage
from infra.gke.keys import GkeConfig, kinds
from infra.gke.scope import Scope, provider


def gke_cluster(config: StackConfig, stack: str) -> Cluster:
    """The cluster that a configuration of kind gke describes.

    Raises:
        ConfigError: its zones do not have the machines.
    """
    gke = config.section(GkeConfig)
    if problems := availability.problems(config):
        raise ConfigError(stack, problems)
    gcp_provider = provider(config, stack)
    owned = pulumi.ResourceOptions(providers={"gcp": gcp_provider})
    component = pulumi.ComponentResource("trainyard:infra:GkeCluster", config.name, None, owned)
    scope = Scope(
        name=config.name,
        project=gke.project,
        region=gke.region,
        zone=gke.zone,
        parent=component,
    )
    enabled = services.enable(config, scope)
    net = network.create_network(scope, enabled)
    node_identity = identity.node_identity(config, scope, enabled)
    images, pull = registry.create_registry(config, scope, node_identity, enabled)
    volume = storage.create_storage(config, scope, net, enabled)
    control_plane = cluster.create_cluster(
        config, scope, net, node_identity, [*node_identity.grants, *volume.before_cluster]
    )
    # Nodes pull etcd's image from the internet.
    system = nodes.system_pool(config, scope, control_plane, node_identity, [net.nat, *pull])
    workers = [nodes.worker_pool(config, kind, scope, control_plane, node_identity, [system]) for kind in kinds(config)]
    reads_buckets = identity.grant_bucket_reader(config, scope, enabled, control_plane)
    kubernetes = k8s.Provider(
        "cluster",
        kubeconfig=cluster.kubeconfig(scope, control_plane),
        # A plain string, known at preview: an unknown one would show every object as replaced.
        cluster_identifier=f"{scope.project}/{scope.zone}/{scope.name}",
        enable_server_side_apply=True,
        # Objects are made after the nodes that they run on, and deleted before them.
        opts=pulumi.ResourceOptions(parent=component, depends_on=[system, *workers]),
    )
    order = nodes.order_pools(config, kubernetes, control_plane, component)
    component.register_outputs({"name": control_plane.name})
    return Cluster(
        name=config.name,
        provider=kubernetes,
        workers=replace(nodes.as_scheduled(config), after=order),
        storage=volume.shared,
        registry=images,
        builder=config.image.builder or "buildkit",
        buildx=config.image.buildx,
        base_image=config.image.base,
        etcd_image=config.rendezvous.image or ETCD_IMAGE,
        context=cluster.context_name(scope),
        credentials_command=(
            f"gcloud container clusters get-credentials {scope.name} --project {scope.project} --zone {scope.zone} "
            "--dns-endpoint"
        ),
        reader_annotations={} if reads_buckets else None,
        resource=control_plane,
    )
