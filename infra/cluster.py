"""The contract between what a cloud bills (infra/) and what runs on any cluster (workloads/).

A new cloud is one new folder that returns a `Cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

#: Resource name of NVIDIA's accelerators, as the device plugin registers them.
NVIDIA_GPU = "nvidia.com/gpu"
#: And of Elastic Fabric Adapters.
EFA = "vpc.amazonaws.com/efa"
#: Label that the workers' pods select, and taint that keeps every other pod off nodes without an accelerator.
POOL = "trainyard/pool"
#: Upstream's image, v3.6.5: 3.6 speaks the v3 API only, which is all the rendezvous needs. By digest: what was reviewed
#: is what runs (policy/).
ETCD_IMAGE = "quay.io/coreos/etcd:v3.6.5@sha256:3397341272b9e0a6f44d7e3fc7c321c6efe6cbe82ce866b9b01d0c704bfc5bf3"
#: Kubernetes service account of the pods that read the user's data, in the stack's namespace.
READER = "dataset"
#: Kubernetes service account of the cluster-autoscaler, in kube-system.
AUTOSCALER = "cluster-autoscaler"


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
    threads_per_core: int = 1
    """Hyperthreads of a core, as far as they count for the number of the trainer's threads."""
    whole_cores: bool = False
    """The kubelet gives a pod that asks for whole CPUs cores of its own: requests have to equal limits."""
    capability: str | None = None
    """Processor flag that every node must have; the trainer looks before it begins."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What containers on these nodes need to find, and to use well, what the nodes provide."""
    network_gbit: float | None = None
    """Gbit/s between two of these nodes, by the cloud's data sheet; None: not known."""
    grace_seconds: int = 30
    """What a pod gets to save and leave, at most: a node that the cloud takes back may give less than others."""
    driver_installer: DriverInstaller | None = None
    """The accelerators' driver comes from a DaemonSet of ours; None: from the nodes' image, or from the cloud."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Other devices of a node, all of which its worker asks for: resource name -> count."""
    device_plugin: bool = False
    """The accelerators are announced by a device plugin of ours; False: by the cloud's."""
    metrics_exporter: bool = False
    """Run an exporter of the accelerators' metrics on these nodes."""
    after: tuple[pulumi.Resource, ...] = ()
    """What has to exist before a pod asks for such a node."""
    queue_hours: float | None = None
    """The nodes come all together, when there is capacity, for this time: pods ask for them with a
    ProvisioningRequest. None: pods just ask."""


@dataclass(frozen=True, kw_only=True)
class DriverInstaller:
    """What the DaemonSet that installs a driver needs to know of the nodes."""

    node_label: str
    """Label of the nodes with an accelerator."""
    managed_label: str
    """Label of the nodes whose driver the cloud installs: left alone."""
    image: str
    """On the node already, with the driver for its kernel."""
    host_directory: str
    """Where device plugin and container runtime look for the driver."""


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
    disk: ServedDisk | None = None
    """A disk of one node that an NFS server in the cluster makes into the volume."""
    address: pulumi.Input[str] | None = None
    """Where the storage is, for people."""
    claimed_gib: int | None = None
    """What the claim asks for; None: `size_gib`. A claim cannot grow with a volume that no class made, so it asks for
    the least there and gets the whole volume."""
    root_owned: bool = False
    """The volume's root belongs to root, and has to be given to the trainer."""
    nfs: k8s.core.v1.NFSVolumeSourceArgs | None = None
    """The export behind `volume`, when it is one."""
    after: tuple[pulumi.Resource, ...] = ()
    """What has to be done before anybody mounts it."""


@dataclass(frozen=True, kw_only=True)
class ServedDisk:
    """A disk, and who may use it over NFS."""

    source: k8s.core.v1.CSIPersistentVolumeSourceArgs
    clients: tuple[str, ...]
    """Address ranges of nodes and pods."""
    image_ref: str | None = None
    """The NFS server's image where it is prebuilt; None: built by the stack."""


def volume_spec(size_gib: int, access_mode: str, **source: Any) -> k8s.core.v1.PersistentVolumeSpecArgs:
    """A volume on what exists already: a directory, an NFS export or a CSI volume."""
    return k8s.core.v1.PersistentVolumeSpecArgs(
        capacity={"storage": f"{size_gib}Gi"},
        access_modes=[access_mode],
        # No class: no provisioner touches it, and only a claim that names it binds.
        storage_class_name="",
        # Destroying the stack must not erase a model; who owns the storage decides that.
        persistent_volume_reclaim_policy="Retain",
        **source,
    )


def static_volume(
    size_gib: int,
    *,
    local_folder: str | None = None,
    host_path: k8s.core.v1.HostPathVolumeSourceArgs | None = None,
    nfs: k8s.core.v1.NFSVolumeSourceArgs | None = None,
    csi: k8s.core.v1.CSIPersistentVolumeSourceArgs | None = None,
    mount_options: list[str] | None = None,
    address: pulumi.Input[str] | None = None,
    root_owned: bool = False,
) -> SharedStorage:
    """Shared storage on a volume that exists already: a directory, an NFS export or a CSI volume."""
    mode = "ReadWriteMany"
    volume = volume_spec(size_gib, mode, host_path=host_path, nfs=nfs, csi=csi, mount_options=mount_options)
    return SharedStorage(
        size_gib=size_gib,
        access_mode=mode,
        volume=volume,
        local_folder=local_folder,
        address=address,
        claimed_gib=None if host_path else 1,
        root_owned=root_owned,
        nfs=nfs,
    )


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Where images are pushed to and pulled from."""

    address: pulumi.Input[str]
    """host[:port][/path], without a scheme."""
    compression: str
    """Of the layers, as the cluster's nodes read them: zstd or gzip (infra/image.yaml)."""
    insecure: bool = False
    """Plain HTTP: a registry on this machine."""
    cache: str = ":cache"
    """What follows an image's name in that of its build cache, whose tag has to be mutable."""
    login: Login | None = None
    """What pushing takes; None: Docker's own credentials of this machine."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """Short-lived credentials of a registry."""

    server: pulumi.Output[str]
    user: pulumi.Output[str]
    password: pulumi.Output[str]
    """Secret."""


@dataclass(frozen=True, kw_only=True)
class Autoscaler:
    """What the cluster-autoscaler needs to know, where the cloud runs none."""

    image: str
    flags: Mapping[str, str]
    """Which cloud it is on, and how it finds the node groups of its cluster."""
    environment: Mapping[str, str]
    priorities: tuple[str, ...]
    """Regular expressions of the names of node groups, the most wanted first."""
    most_nodes: int


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
    buildx: str | None = None
    """Name of the builder that BuildKit's plugin takes; None: its own choice."""
    base_image: str | None = None
    """Base of the trainer's Dockerfile; None: the Dockerfile's own default."""
    etcd_image: str
    context: str
    """Context of the user's kubeconfig that reaches the cluster, for the commands that the stack prints."""
    credentials_command: str | None = None
    """What adds that context to the kubeconfig; None: it is there."""
    reader_annotations: Mapping[str, pulumi.Input[str]] | None = None
    """Annotations that let the service account READER read the user's buckets; None: there are none to read."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that can run the images; empty: all can."""
    shared: bool = False
    """Pods of others run there, which ours must not evict."""
    autoscaler: Autoscaler | None = None
    """None: the cloud adds and removes nodes, or nobody does."""
    resource: pulumi.Resource | None = None
    """The cluster that this stack owns: objects in it are deleted with it. None: the cluster outlives the stack."""
