"""Makes a cluster on AWS, its parts in this order; they are destroyed in the reverse order.

    network -> control plane -> add-ons of nodes -> node groups -> add-ons with pods -> Kubernetes provider
            |                -> policy of kube-system --------------^
            -> mount targets -----------------------^
    log group, key, roles -^
    repository -> image       (beside the cluster: a build takes as long as a control plane)

Kubernetes objects and add-ons are deleted with their cluster, not one by one; node groups before it, because EKS
deletes no cluster that has any; then logs, key, network, file system and repository.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import ETCD_IMAGE, Cluster
from infra.config import StackConfig
from infra.eks import addons, cluster, identity, lookups, network, nodes, registry, storage
from infra.eks.keys import EksConfig
from infra.eks.scope import Scope, provider


def eks_cluster(config: StackConfig, stack: str) -> Cluster:
    """The cluster that a configuration of kind eks describes."""
    eks = config.section(EksConfig)
    aws_provider = provider(config, stack)
    owned = pulumi.ResourceOptions(providers={"aws": aws_provider})
    component = pulumi.ComponentResource("trainyard:infra:EksCluster", config.name, None, owned)
    offers = lookups.offers(config, stack, aws_provider)
    scope = Scope(name=config.name, region=eks.region, zones=tuple(offers), stack=stack, parent=component)
    net = network.create_network(config, scope)
    images = registry.create_registry(config, scope)
    volume = storage.create_storage(config, scope, net)
    control_plane = cluster.create_cluster(config, scope, net)
    door = storage.let_in(scope, volume, cluster.security_group(control_plane))
    parts = addons.Addons(scope, control_plane, lookups.addon_versions(config, aws_provider), eks.version)
    ready = parts.before_nodes()
    groups = nodes.Groups(
        config,
        scope,
        control_plane,
        net,
        identity.for_nodes(scope),
        offers,
        {image: lookups.newest_release(config, image, aws_provider) for image in lookups.PARAMETERS},
        [*ready, *net.way_out, *volume.mounted, door],
    )
    system = nodes.system_group(groups)
    workers = nodes.worker_groups(groups)
    reached = {
        "kubeconfig": cluster.kubeconfig(scope, control_plane),
        # A plain string, known at preview: an unknown one would show every object as replaced.
        "cluster_identifier": f"{scope.region}/{scope.name}",
        "enable_server_side_apply": True,
    }
    early = k8s.Provider("before-nodes", **reached, opts=pulumi.ResourceOptions(parent=component))
    running = parts.after_nodes([system, parts.let_system_start(early)], volume.driver)
    # Pods get the roles of their service accounts when they start.
    reader = identity.bucket_reader(config, scope, control_plane)
    roles = [identity.autoscaler(scope, control_plane), *([reader] if reader else [])]
    if eks.irsa:
        identity.oidc(scope, control_plane)
    kubernetes = k8s.Provider(
        "cluster",
        **reached,
        # Objects are made after the nodes that they run on, and deleted before them.
        opts=pulumi.ResourceOptions(parent=component, depends_on=[system, *workers, *running, *roles]),
    )
    component.register_outputs({"name": control_plane.name})
    return Cluster(
        name=config.name,
        provider=kubernetes,
        workers=nodes.as_scheduled(config),
        storage=volume.shared,
        registry=images,
        builder=config.image.builder or "buildkit",
        buildx=config.image.buildx,
        base_image=config.image.base,
        etcd_image=config.rendezvous.image or ETCD_IMAGE,
        context=scope.name,
        credentials_command=(
            f"aws eks update-kubeconfig --region {scope.region} --name {scope.name} --alias {scope.name}"
        ),
        reader_annotations={} if reader else None,
        autoscaler=nodes.autoscaler(config, scope),
        resource=control_plane,
    )
