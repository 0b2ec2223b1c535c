"""Announces the accelerators of a node to its kubelet, where the cloud leaves that to us: NVIDIA's device plugin.

The nodes' image has the driver and makes NVIDIA's container runtime the default, so the plugin needs no privileges: it
finds the accelerators through the driver's library, and speaks to the kubelet through a socket.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from workloads.node_daemon import node_daemon
from workloads.pod import environment, resources

NAME = "nvidia-device-plugin"
IMAGE = (
    "nvcr.io/nvidia/k8s-device-plugin:v0.19.3@sha256:d6c456ffe537914357240e6641a40dfb5540822f9d3bee52788da5ec0646c551"
)
#: Where kubelets expect the sockets of device plugins.
SOCKETS = "/var/lib/kubelet/device-plugins"


class DevicePlugin(pulumi.ComponentResource):
    """The DaemonSet, on the nodes that train and nowhere else."""

    def __init__(self, name: str, cluster: Cluster):
        super().__init__(
            "trainyard:workloads:DevicePlugin", name, None, pulumi.ResourceOptions(provider=cluster.provider)
        )
        core, pool = k8s.core.v1, cluster.workers
        plugin = core.ContainerArgs(
            name="plugin",
            image=IMAGE,
            env=environment({"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}),
            resources=resources(cpu=0.05, memory_gib=0.125),
            security_context=core.SecurityContextArgs(
                # The kubelet's folder is root's.
                run_as_user=0,
                allow_privilege_escalation=False,
                read_only_root_filesystem=True,
                capabilities=core.CapabilitiesArgs(drop=["ALL"]),
                seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            ),
            volume_mounts=[core.VolumeMountArgs(name="sockets", mount_path=SOCKETS)],
        )
        pod = core.PodSpecArgs(
            containers=[plugin],
            node_selector=pool.node_selector or None,
            tolerations=list(pool.tolerations),
            # Without it the node is of no use to anybody.
            priority_class_name="system-node-critical",
            automount_service_account_token=False,
            enable_service_links=False,
            volumes=[core.VolumeArgs(name="sockets", host_path=core.HostPathVolumeSourceArgs(path=SOCKETS))],
        )
        node_daemon(NAME, cluster, pod, self)
        self.register_outputs({})
