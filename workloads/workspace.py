"""The stack's part of a cluster: what all of its workloads are given."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.image import ContainerImage
from workloads.namespace import Namespace
from workloads.pod import SharedVolume


@dataclass(frozen=True)
class Workspace:
    """Where the pods of a stack run, and what each of them has."""

    cluster: Cluster
    namespace: Namespace
    image: ContainerImage
    """The trainer's."""
    claim: k8s.core.v1.PersistentVolumeClaim
    """The shared volume."""

    @property
    def volume(self) -> SharedVolume:
        return SharedVolume(self.claim.metadata.name.apply(str), self.cluster.storage.access_mode == "ReadWriteOnce")

    def component(self) -> pulumi.ResourceOptions:
        """For a component of workloads: its objects are made by the cluster's provider."""
        return pulumi.ResourceOptions(provider=self.cluster.provider)

    def owned(self, by: pulumi.Resource) -> pulumi.ResourceOptions:
        """For an object in the namespace, with which it is deleted."""
        return pulumi.ResourceOptions(parent=by, deleted_with=self.namespace.lifetime)
