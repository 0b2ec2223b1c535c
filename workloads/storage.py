"""The one shared volume of a stack: datasets, runs and caches."""

from __future__ import annotations

import dataclasses

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.image import NFS_SERVER, ContainerImage
from workloads.namespace import Namespace
from workloads.nfs import NfsServer
from workloads.pod import labels
from workloads.volume_owner import VolumeOwner

CLAIM = "data"


def served(cluster: Cluster, namespace: str, image: ContainerImage) -> Cluster:
    """The cluster with its shared storage ready to be mounted.

    A disk of one node gets an NFS server, and a share that belongs to root is given to the trainer. Both need rights
    that the training's pods must not have: they are in a namespace beside it, NAMESPACE-storage.
    """
    storage = cluster.storage
    if storage.disk is not None:
        server_image = ContainerImage(NFS_SERVER, cluster, ref=storage.disk.image_ref)
        server = NfsServer("nfs-server", cluster, f"{namespace}-storage", server_image)
        return dataclasses.replace(cluster, storage=server.storage)
    if storage.root_owned:
        owner = VolumeOwner("volume-owner", cluster, f"{namespace}-storage", image)
        return dataclasses.replace(cluster, storage=dataclasses.replace(storage, after=(owner.job,)))
    return cluster


def volume(name: str, cluster: Cluster) -> k8s.core.v1.PersistentVolume | None:
    """The volume that `claim` binds, when the cluster names a source for it; None when a StorageClass makes one.

    It is made before the namespace and goes after it: a bound volume cannot be deleted.
    """
    if cluster.storage.volume is None:
        return None
    return k8s.core.v1.PersistentVolume(
        name,
        metadata=k8s.meta.v1.ObjectMetaArgs(name=name, labels=labels("storage")),
        spec=cluster.storage.volume,
        # The source of a volume is immutable, and so is its name.
        opts=pulumi.ResourceOptions(
            provider=cluster.provider,
            deleted_with=cluster.resource,
            delete_before_replace=True,
            depends_on=list(cluster.storage.after),
        ),
    )


def claim(
    cluster: Cluster, namespace: Namespace, bound_to: k8s.core.v1.PersistentVolume | None
) -> k8s.core.v1.PersistentVolumeClaim:
    """The claim that the pods mount."""
    storage = cluster.storage
    return k8s.core.v1.PersistentVolumeClaim(
        CLAIM,
        metadata=k8s.meta.v1.ObjectMetaArgs(
            name=CLAIM,
            namespace=namespace.name,
            labels=labels("storage"),
            # A class that binds at the first pod (WaitForFirstConsumer) leaves the claim pending until then.
            annotations={"pulumi.com/skipAwait": "true"},
        ),
        spec=k8s.core.v1.PersistentVolumeClaimSpecArgs(
            access_modes=[storage.access_mode],
            # "" asks for a volume without a class: ours. None asks for the cluster's default class.
            storage_class_name="" if bound_to else storage.class_name,
            volume_name=bound_to.metadata.name if bound_to else None,
            resources=k8s.core.v1.VolumeResourceRequirementsArgs(
                requests={"storage": f"{storage.claimed_gib or storage.size_gib}Gi"}
            ),
        ),
        opts=pulumi.ResourceOptions(
            provider=cluster.provider, deleted_with=namespace.lifetime, delete_before_replace=True
        ),
    )
