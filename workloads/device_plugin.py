"""Announces devices of a node to its kubelet, where the cloud leaves that to us: NVIDIA's accelerators, and on AWS the
Elastic Fabric Adapters between nodes.

The nodes' image has the drivers and makes NVIDIA's container runtime the default, so a plugin needs no privileges: it
finds its devices through the driver, and speaks to the kubelet through a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from workloads.node_daemon import node_daemon, worker_pod
from workloads.pod import environment, resources

#: Where kubelets expect the sockets of device plugins.
SOCKETS = "/var/lib/kubelet/device-plugins"


@dataclass(frozen=True, kw_only=True)
class Plugin:
    name: str
    image: str
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    """Of the node, beside the kubelet's: volume -> path."""
    host_network: bool = False


NVIDIA = Plugin(
    name="nvidia-device-plugin",
    image=(
        "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"
        "@sha256:d6c456ffe537914357240e6641a40dfb5540822f9d3bee52788da5ec0646c551"
    ),
    environment={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"},
)
ELASTIC_FABRIC = Plugin(
    name="efa-device-plugin",
    image="public.ecr.aws/eks/aws-efa-k8s-device-plugin:v0.5.20",
    folders={"adapters": "/dev/infiniband"},
    # It asks the machine which adapters it has, and one hop is all that the machine answers over.
    host_network=True,
)


class DevicePlugin(pulumi.ComponentResource):
    """The DaemonSet, on the nodes that train and nowhere else."""

    def __init__(self, plugin: Plugin, cluster: Cluster):
        super().__init__(
            "trainyard:workloads:DevicePlugin", plugin.name, None, pulumi.ResourceOptions(provider=cluster.provider)
        )
        core, folders = k8s.core.v1, {"sockets": SOCKETS, **plugin.folders}
        container = core.ContainerArgs(
            name="plugin",
            image=plugin.image,
            env=environment(dict(plugin.environment)) or None,
            resources=resources(cpu=0.05, memory_gib=0.125),
            security_context=core.SecurityContextArgs(
                # The kubelet's folder is root's.
                run_as_user=0,
                allow_privilege_escalation=False,
                read_only_root_filesystem=True,
                capabilities=core.CapabilitiesArgs(drop=["ALL"]),
                seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            ),
            volume_mounts=[core.VolumeMountArgs(name=name, mount_path=path) for name, path in folders.items()],
        )
        pod = worker_pod(
            cluster.workers,
            container,
            folders,
            # Without it the node is of no use to anybody.
            priority_class_name="system-node-critical",
            host_network=plugin.host_network or None,
        )
        node_daemon(plugin.name, cluster, pod, self)
        self.register_outputs({})
