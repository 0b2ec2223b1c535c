"""Node software that the cloud does not install: drivers, device plugins, metrics, the autoscaler.

All but the autoscaler are DaemonSets in kube-system, on the nodes that train and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster, DriverInstaller, WorkerPool
from workloads.autoscaler import NAMESPACE, ClusterAutoscaler
from workloads.objects import GONE_AT_ONCE, metadata, pod_template, select
from workloads.pod import environment, resources, root_security

#: Where kubelets expect the sockets of device plugins.
SOCKETS = "/var/lib/kubelet/device-plugins"
NVIDIA_PLUGIN_IMAGE = (
    "nvcr.io/nvidia/k8s-device-plugin:v0.19.3@sha256:d6c456ffe537914357240e6641a40dfb5540822f9d3bee52788da5ec0646c551"
)
EXPORTER_IMAGE = (
    "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-distroless"
    "@sha256:e9030b4fca0c8f110032f3b151b030e7e9db56604b407cf79631e1a3218b35e0"
)
EXPORTER_PORT = 9400
#: Where the kubelet says which pod has which accelerator.
POD_RESOURCES = "/var/lib/kubelet/pod-resources"

#: Where the driver's installer mounts the host's directories.
INSTALL, TOOLS, ROOT = "/usr/local/nvidia", "/build/cos-tools", "/root"
HOST_TOOLS = "/var/lib/cos-tools"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"


def install_node_software(cluster: Cluster) -> list[pulumi.Resource]:
    """Install it; return what pods with accelerators must wait for, often nothing."""
    workers = cluster.workers
    if workers.metrics_exporter:
        scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(EXPORTER_PORT)}
        NodeDaemon("DcgmExporter", "dcgm-exporter", cluster, _exporter_pod(workers), scraped)
    first: list[pulumi.Resource] = [*workers.after]
    if workers.driver_installer:
        first.append(NodeDaemon("GpuDriver", "gpu-driver", cluster, _driver_pod(workers.driver_installer)))
    if workers.device_plugin:
        pod = _device_plugin_pod(
            workers,
            NVIDIA_PLUGIN_IMAGE,
            {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"},
        )
        first.append(NodeDaemon("DevicePlugin", "nvidia-device-plugin", cluster, pod))
    if plugin := workers.adapter_plugin:
        # Host network: the plugin asks the metadata service for the machine's adapters, which answers over one hop.
        pod = _device_plugin_pod(workers, plugin, {}, {"adapters": "/dev/infiniband"}, host_network=True)
        first.append(NodeDaemon("DevicePlugin", "efa-device-plugin", cluster, pod))
    if cluster.autoscaler:
        first.append(ClusterAutoscaler("autoscaler", cluster, cluster.autoscaler))
    return first


class NodeDaemon(pulumi.ComponentResource):
    """One DaemonSet. `annotations` are its pods'."""

    def __init__(
        self,
        kind: str,
        name: str,
        cluster: Cluster,
        pod: k8s.core.v1.PodSpecArgs,
        annotations: Mapping[str, str] | None = None,
    ):
        super().__init__(f"trainyard:workloads:{kind}", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        k8s.apps.v1.DaemonSet(
            name,
            # Not waited for: while it has no node, it has no pod.
            metadata=metadata(name, NAMESPACE, name, GONE_AT_ONCE),
            spec=k8s.apps.v1.DaemonSetSpecArgs(selector=select(name), template=pod_template(name, pod, annotations)),
            opts=pulumi.ResourceOptions(parent=self, deleted_with=cluster.resource),
        )
        self.register_outputs({})


def _worker_pod(
    pool: WorkerPool, container: k8s.core.v1.ContainerArgs, folders: Mapping[str, str], **options: Any
) -> k8s.core.v1.PodSpecArgs:
    """A DaemonSet's pod, for the nodes of the pool alone. `folders`: name of the volume -> path on the node."""
    return k8s.core.v1.PodSpecArgs(
        containers=[container],
        node_selector=pool.node_selector or None,
        tolerations=list(pool.tolerations),
        automount_service_account_token=False,
        enable_service_links=False,
        volumes=_host_volumes(folders),
        **options,
    )


def _host_volumes(folders: Mapping[str, str]) -> list[k8s.core.v1.VolumeArgs]:
    core = k8s.core.v1
    return [
        core.VolumeArgs(name=name, host_path=core.HostPathVolumeSourceArgs(path=path)) for name, path in folders.items()
    ]


def _exporter_pod(pool: WorkerPool) -> k8s.core.v1.PodSpecArgs:
    """NVIDIA's DCGM exporter: metrics of the accelerators for Prometheus, where the cloud gathers none.

    Port 9400 of each node's pod: utilisation, memory, power, temperature, errors, with the pod that uses each
    accelerator.
    """
    core = k8s.core.v1
    variables = {
        "DCGM_EXPORTER_LISTEN": f":{EXPORTER_PORT}",
        "DCGM_EXPORTER_KUBERNETES": "true",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        # Go before 1.25 takes as many threads as the node has, and each a share of memory (pytorch/ci-infra#1018).
        "GOMAXPROCS": "2",
    }
    health = core.HTTPGetActionArgs(path="/health", port=EXPORTER_PORT)
    exporter = core.ContainerArgs(
        name="exporter",
        image=EXPORTER_IMAGE,
        env=environment(variables),
        ports=[core.ContainerPortArgs(name="metrics", container_port=EXPORTER_PORT)],
        readiness_probe=core.ProbeArgs(http_get=health, initial_delay_seconds=30, period_seconds=10),
        # It uses 400 to 510 MiB, and a limit of 512 ended half of those beside eight accelerators
        # (NVIDIA/dcgm-exporter#609, pytorch/ci-infra#1011, read 2026-11-28).
        resources=core.ResourceRequirementsArgs(
            requests={"cpu": "100m", "memory": "512Mi"}, limits={"memory": "1024Mi"}
        ),
        # Reading the counters of the accelerators' units takes CAP_SYS_ADMIN.
        security_context=root_security("SYS_ADMIN", read_only=None),
        volume_mounts=[core.VolumeMountArgs(name="pods", mount_path=POD_RESOURCES, read_only=True)],
    )
    return _worker_pod(pool, exporter, {"pods": POD_RESOURCES})


def _device_plugin_pod(
    pool: WorkerPool,
    image: str,
    variables: Mapping[str, str],
    folders: Mapping[str, str] | None = None,
    host_network: bool | None = None,
) -> k8s.core.v1.PodSpecArgs:
    """A device plugin: announces a node's devices to its kubelet, where the cloud leaves that to us.

    The nodes' image has the drivers and makes NVIDIA's container runtime the default, so a plugin needs no privileges:
    it finds its devices through the driver and talks to the kubelet through a socket.
    """
    core, mounted = k8s.core.v1, {"sockets": SOCKETS, **(folders or {})}
    container = core.ContainerArgs(
        name="plugin",
        image=image,
        env=environment(variables) or None,
        resources=resources(cpu=0.05, memory_gib=0.125),
        # Root owns the kubelet's folder.
        security_context=root_security(),
        volume_mounts=[core.VolumeMountArgs(name=name, mount_path=path) for name, path in mounted.items()],
    )
    # Without the plugin nothing can use the node's devices.
    return _worker_pod(pool, container, mounted, priority_class_name="system-node-critical", host_network=host_network)


def _driver_pod(installer: DriverInstaller) -> k8s.core.v1.PodSpecArgs:
    """Install the accelerators' driver on nodes whose cloud leaves that to us.

    The installer's image is on the node already, with drivers built for its kernel. It runs once per node, before the
    device plugin finds anything. Nodes whose driver the cloud installs carry a label and are left alone.
    """
    core = k8s.core.v1
    vulkan = f"{installer.host_directory}/vulkan/icd.d"
    directories = {
        "dev": ("/dev", "/dev"),
        "driver": (installer.host_directory, INSTALL),
        "vulkan": (vulkan, "/etc/vulkan/icd.d"),
        "root": ("/", ROOT),
        "tools": (HOST_TOOLS, TOOLS),
    }
    variables = {
        "NVIDIA_INSTALL_DIR_HOST": installer.host_directory,
        "NVIDIA_INSTALL_DIR_CONTAINER": INSTALL,
        "VULKAN_ICD_DIR_HOST": vulkan,
        "VULKAN_ICD_DIR_CONTAINER": "/etc/vulkan/icd.d",
        "ROOT_MOUNT_DIR": ROOT,
        "COS_TOOLS_DIR_HOST": HOST_TOOLS,
        "COS_TOOLS_DIR_CONTAINER": TOOLS,
    }
    install = core.ContainerArgs(
        name="install",
        image=installer.image,
        # The node has the image in the version for its kernel; no registry has it.
        image_pull_policy="Never",
        env=environment(variables),
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
    nodes = core.NodeSelectorArgs(node_selector_terms=[core.NodeSelectorTermArgs(match_expressions=needed)])
    return core.PodSpecArgs(
        init_containers=[install],
        containers=[pause],
        priority_class_name="system-node-critical",
        host_network=True,
        host_pid=True,
        automount_service_account_token=False,
        affinity=core.AffinityArgs(
            node_affinity=core.NodeAffinityArgs(required_during_scheduling_ignored_during_execution=nodes)
        ),
        tolerations=[core.TolerationArgs(operator="Exists")],
        volumes=_host_volumes({key: outside for key, (outside, _) in directories.items()}),
    )
