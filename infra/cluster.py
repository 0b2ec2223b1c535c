"""The contract between what a cloud bills (infra/) and what runs on any cluster (workloads/).

A new cloud is one new folder that returns a `Cluster`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

#: Resource name of NVIDIA's accelerators, as the device plugin registers them.
NVIDIA_GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class WorkerPool:
    """The nodes that train, as a scheduler sees them."""

    node_selector: dict[str, str]
    """Labels that a worker's node must have; empty: any node."""
    tolerations: tuple[k8s.core.v1.TolerationArgs, ...] = ()
    """For the pool's taints."""
    cpu: float | None = None
    """Allocatable CPU of one node, cores; None: not known."""
    memory_gib: float | None = None
    """Allocatable memory of one node, GiB; None: not known."""
    accelerators: int = 0
    """nvidia.com/gpu of one node."""
    min_nodes: int = 0
    max_nodes: int | None = None
    """Range of the autoscaler; None: fixed, not ours."""


@dataclass(frozen=True, kw_only=True)
class SharedStorage:
    """The shared volume: one that this program declares, or one that a StorageClass makes for the claim."""

    size_gib: int
    access_mode: str
    volume: k8s.core.v1.PersistentVolumeSpecArgs | None = None
    """Specification of the volume to declare (see `static_volume`); None: `class_name` provides it."""
    class_name: str | None = None
    """StorageClass; None without a volume: the cluster's default class."""
    local_folder: str | None = None
    """Where the machine that runs Pulumi sees the volume; None: it does not."""


def static_volume(
    size_gib: int,
    *,
    local_folder: str | None = None,
    host_path: k8s.core.v1.HostPathVolumeSourceArgs | None = None,
    nfs: k8s.core.v1.NFSVolumeSourceArgs | None = None,
    csi: k8s.core.v1.CSIPersistentVolumeSourceArgs | None = None,
) -> SharedStorage:
    """Shared storage on a volume that exists already: a directory, an NFS export or a CSI volume."""
    volume = k8s.core.v1.PersistentVolumeSpecArgs(
        capacity={"storage": f"{size_gib}Gi"},
        access_modes=["ReadWriteMany"],
        # No class: no provisioner touches it, and only a claim that names it binds.
        storage_class_name="",
        # Destroying the stack must not erase a model; who owns the storage decides that.
        persistent_volume_reclaim_policy="Retain",
        host_path=host_path,
        nfs=nfs,
        csi=csi,
    )
    return SharedStorage(size_gib=size_gib, access_mode="ReadWriteMany", volume=volume, local_folder=local_folder)


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Where images are pushed to and pulled from."""

    address: pulumi.Input[str]
    """host[:port][/path], without a scheme."""
    insecure: bool = False
    """Plain HTTP: a registry on this machine."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Kubernetes cluster that is ready for workloads."""

    name: str
    provider: k8s.Provider
    workers: WorkerPool
    storage: SharedStorage
    registry: Registry | None
    """None: the images are prebuilt."""
    builder: str
    """Image builder that suits this cluster: buildkit, buildah or prebuilt."""
    base_image: str | None = None
    """Base of the trainer's Dockerfile; None: the Dockerfile's own default."""
    etcd_image: str
    resource: pulumi.Resource | None = None
    """The cluster that this stack owns: objects in it are deleted with it. None: the cluster outlives the stack."""
