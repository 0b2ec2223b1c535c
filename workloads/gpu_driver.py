"""Installs the accelerators' driver on nodes whose cloud leaves that to us, as a DaemonSet.

The installer is an image that the node has already, with drivers built for its kernel; it runs once a node, before the
device plugin finds anything. Nodes whose driver the cloud installs carry a label, and are left alone: never both.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster, DriverInstaller
from workloads.node_daemon import node_daemon
from workloads.pod import environment

NAME = "gpu-driver"
#: Where the installer has the host's directories.
INSTALL, TOOLS, ROOT = "/usr/local/nvidia", "/build/cos-tools", "/root"
HOST_TOOLS = "/var/lib/cos-tools"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"


class GpuDriver(pulumi.ComponentResource):
    """The DaemonSet; none of its pods exists while there is no node with an accelerator."""

    def __init__(self, name: str, cluster: Cluster, installer: DriverInstaller):
        super().__init__("trainyard:workloads:GpuDriver", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        node_daemon(NAME, cluster, _pod(installer), self)
        self.register_outputs({})


def _pod(installer: DriverInstaller) -> k8s.core.v1.PodSpecArgs:
    core = k8s.core.v1
    directories = {
        "dev": ("/dev", "/dev"),
        "driver": (installer.host_directory, INSTALL),
        "vulkan": (f"{installer.host_directory}/vulkan/icd.d", "/etc/vulkan/icd.d"),
        "root": ("/", ROOT),
        "tools": (HOST_TOOLS, TOOLS),
    }
    install = core.ContainerArgs(
        name="install",
        image=installer.image,
        # It is on the node, in the version that fits its kernel; no registry has it.
        image_pull_policy="Never",
        env=environment(
            {
                "NVIDIA_INSTALL_DIR_HOST": installer.host_directory,
                "NVIDIA_INSTALL_DIR_CONTAINER": INSTALL,
                "VULKAN_ICD_DIR_HOST": f"{installer.host_directory}/vulkan/icd.d",
                "VULKAN_ICD_DIR_CONTAINER": "/etc/vulkan/icd.d",
                "ROOT_MOUNT_DIR": ROOT,
                "COS_TOOLS_DIR_HOST": HOST_TOOLS,
                "COS_TOOLS_DIR_CONTAINER": TOOLS,
            }
        ),
        resources=core.ResourceRequirementsArgs(requests={"cpu": "150m"}),
        # It loads a kernel module.
        security_context=core.SecurityContextArgs(privileged=True),
        volume_mounts=[core.VolumeMountArgs(name=key, mount_path=inside) for key, (_, inside) in directories.items()],
    )
    pause = core.ContainerArgs(
        name="pause", image=PAUSE_IMAGE, resources=core.ResourceRequirementsArgs(requests={"cpu": "1m"})
    )
    needed = [
        core.NodeSelectorRequirementArgs(key=installer.node_label, operator="Exists"),
        core.NodeSelectorRequirementArgs(key=installer.managed_label, operator="DoesNotExist"),
    ]
    return core.PodSpecArgs(
        init_containers=[install],
        containers=[pause],
        priority_class_name="system-node-critical",
        host_network=True,
        host_pid=True,
        automount_service_account_token=False,
        affinity=core.AffinityArgs(
            node_affinity=core.NodeAffinityArgs(
                required_during_scheduling_ignored_during_execution=core.NodeSelectorArgs(
                    node_selector_terms=[core.NodeSelectorTermArgs(match_expressions=needed)]
                )
            )
        ),
        tolerations=[core.TolerationArgs(operator="Exists")],
        volumes=[
            core.VolumeArgs(name=key, host_path=core.HostPathVolumeSourceArgs(path=outside))
            for key, (outside, _) in directories.items()
        ],
    )
