"""Metrics of the accelerators for Prometheus, where the cloud gathers none: NVIDIA's DCGM exporter.

Port 9400 of each node's pod: utilisation, memory, power, temperature, errors, with the pod that uses each accelerator.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from workloads.node_daemon import node_daemon, worker_pod
from workloads.pod import environment, resources

NAME = "dcgm-exporter"
IMAGE = (
    "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-distroless"
    "@sha256:e9030b4fca0c8f110032f3b151b030e7e9db56604b407cf79631e1a3218b35e0"
)
PORT = 9400
#: Where the kubelet says which pod has which accelerator.
POD_RESOURCES = "/var/lib/kubelet/pod-resources"


class DcgmExporter(pulumi.ComponentResource):
    """The DaemonSet, on the nodes that train and nowhere else."""

    def __init__(self, name: str, cluster: Cluster):
        super().__init__(
            "trainyard:workloads:DcgmExporter", name, None, pulumi.ResourceOptions(provider=cluster.provider)
        )
        core = k8s.core.v1
        exporter = core.ContainerArgs(
            name="exporter",
            image=IMAGE,
            env=environment(
                {
                    "DCGM_EXPORTER_LISTEN": f":{PORT}",
                    "DCGM_EXPORTER_KUBERNETES": "true",
                    "NVIDIA_VISIBLE_DEVICES": "all",
                    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                }
            ),
            ports=[core.ContainerPortArgs(name="metrics", container_port=PORT)],
            readiness_probe=core.ProbeArgs(
                http_get=core.HTTPGetActionArgs(path="/health", port=PORT), initial_delay_seconds=30, period_seconds=10
            ),
            resources=resources(cpu=0.1, memory_gib=0.5),
            # Counters of the accelerators' units are the administrator's alone.
            security_context=core.SecurityContextArgs(
                run_as_user=0,
                allow_privilege_escalation=False,
                capabilities=core.CapabilitiesArgs(drop=["ALL"], add=["SYS_ADMIN"]),
                seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            ),
            volume_mounts=[core.VolumeMountArgs(name="pods", mount_path=POD_RESOURCES, read_only=True)],
        )
        pod = worker_pod(cluster.workers, exporter, {"pods": POD_RESOURCES})
        node_daemon(NAME, cluster, pod, self, {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT)})
        self.register_outputs({})
