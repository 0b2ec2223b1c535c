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
#: Resource name of Elastic Fabric Adapters.
EFA = "vpc.amazonaws.com/efa"
#: Label of the node pools, which the workers' pods select; as a taint, it keeps other pods off the workers' nodes that
#: have no accelerator.
POOL = "trainyard/pool"
#: Upstream's image, v3.6.5: 3.6 speaks the v3 API only, which is all the rendezvous needs. By digest: what was reviewed
#: is what runs (review/policy.py). 3.6.16 and 3.7.3 are out (2026-11-28); their digests are to be asked.
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
    """Tolerations of the pool's taints."""
    cpu: float | None = None
    """Allocatable CPU of one node, cores; None: not known."""
    memory_gib: float | None = None
    """Allocatable memory of one node, GiB; None: not known."""
    accelerators: int = 0
    """nvidia.com/gpu of one node."""
    max_nodes: int | None = None
    """The autoscaler's limit; None: the number of nodes is fixed, and not ours."""
    threads_per_core: int = 1
    """Hyperthreads per core that count for the trainer's number of threads."""
    whole_cores: bool = False
    """The kubelet gives exclusive cores to a pod that asks for whole CPUs: requests must equal limits."""
    capability: str | None = None
    """CPU flag that every node must have; the trainer checks it at start."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with which containers find the nodes' drivers and make good use of their network."""
    network_gbit: float | None = None
    """Gbit/s between two of these nodes, by the cloud's data sheet; None: not known."""
    grace_seconds: int = 30
    """Seconds that a pod gets at most to save and exit; a node that the cloud takes back may give less than others."""
    driver_installer: DriverInstaller | None = None
    """DaemonSet of ours that installs the accelerators' driver; None: the nodes' image or the cloud provides it."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Other devices of a node, all of which its worker asks for: resource name -> count."""
    adapter_plugin: str | None = None
    """Image of the device plugin that announces the nodes' Elastic Fabric Adapters; None: they have none."""
    device_plugin: bool = False
    """Whether our device plugin announces the accelerators; False: the cloud's does."""
    metrics_exporter: bool = False
    """Run an exporter of the accelerators' metrics on these nodes."""
    after: tuple[pulumi.Resource, ...] = ()
    """Resources that must exist before a pod asks for such a node."""
    queue_hours: float | None = None
    """Hours for which the nodes come, all together, once there is capacity: pods ask for them with a
    ProvisioningRequest. None: pods need no such request."""


@dataclass(frozen=True, kw_only=True)
class DriverInstaller:
    """What the DaemonSet that installs a driver needs to know of the nodes."""

    node_label: str
    """Label of the nodes with an accelerator."""
    managed_label: str
    """Label of the nodes whose driver the cloud installs, which the DaemonSet leaves alone."""
    image: str
    """Installer that every node has already, with the driver for its kernel."""
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
    """The volume's path on the machine that runs Pulumi; None: not visible there."""
    disk: ServedDisk | None = None
    """A disk of one node that an NFS server in the cluster serves as the volume."""
    address: pulumi.Input[str] | None = None
    """The storage's address, for display."""
    claimed_gib: int | None = None
    """Size that the claim asks for; None: `size_gib`. A claim on a static volume cannot grow with it, so it asks for
    the minimum and gets the whole volume."""
    root_owned: bool = False
    """Whether the volume's root folder belongs to root and must be given to the trainer."""
    nfs: k8s.core.v1.NFSVolumeSourceArgs | None = None
    """The export behind `volume`, when it is one."""
    after: tuple[pulumi.Resource, ...] = ()
    """Resources that must exist before anyone mounts it."""


@dataclass(frozen=True, kw_only=True)
class ServedDisk:
    """A disk, and who may use it over NFS."""

    source: k8s.core.v1.CSIPersistentVolumeSourceArgs
    clients: tuple[str, ...]
    """Address ranges, and patterns of addresses, from which nodes connect. Pods' addresses are not among them."""
    image_ref: str | None = None
    """The NFS server's image where it is prebuilt; None: built by the stack."""


def volume_spec(size_gib: int, access_mode: str, **source: Any) -> k8s.core.v1.PersistentVolumeSpecArgs:
    """A volume on existing storage: a directory, an NFS export or a CSI volume."""
    return k8s.core.v1.PersistentVolumeSpecArgs(
        capacity={"storage": f"{size_gib}Gi"},
        access_modes=[access_mode],
        # Without a class no provisioner touches it, and only a claim that names it binds to it.
        storage_class_name="",
        # Destroying the stack must not erase a model: the owner of the storage decides that.
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
    """Shared storage on a directory, an NFS export or a CSI volume that exists already."""
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
    """Compression of layers that the cluster's nodes can read: zstd or gzip (image.yaml)."""
    insecure: bool = False
    """Plain HTTP: a registry on this machine."""
    cache: str = ":cache"
    """Suffix that makes an image's name that of its build cache, whose tag must be mutable."""
    login: Login | None = None
    """Credentials for a push; None: the builder's own on this machine."""
    authfile: str | None = None
    """File with buildah's credentials for a push (containers-auth.json); None: its own."""


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
    """Command-line flags: the cloud, and how to find the cluster's node groups."""
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
    """Command that adds that context to the kubeconfig; None: it is there."""
    reader_annotations: Mapping[str, pulumi.Input[str]] | None = None
    """Annotations that let the service account READER read the user's buckets; None: there are none to read."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that can run the images; empty: all can."""
    shared: bool = False
    """Whether others run pods there, which ours must not evict."""
    autoscaler: Autoscaler | None = None
    """None: the cloud adds and removes nodes, or nobody does."""
    resource: pulumi.Resource | None = None
    """The cluster that this stack owns: objects in it are deleted with it. None: the cluster outlives the stack."""
