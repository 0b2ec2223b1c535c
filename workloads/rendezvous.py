"""etcd in the cluster: where the workers of a training find each other, round after round.

One member is enough: the state is about a kilobyte per training, and losing it costs one new round, not the run.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from workloads.namespace import Namespace
from workloads.pod import ETCD_PORT, component, container_security, labels, pod_security, resources

NAME = "etcd"
#: Health and metrics without credentials, apart from the client port.
METRICS_PORT = 2381
#: The data set of one training is about 1 kB; 64 MiB is far more than compaction ever lets it grow to.
QUOTA_BYTES = 64 * 1024 * 1024


class Rendezvous(pulumi.ComponentResource):
    """An etcd with a stable address inside the cluster."""

    endpoint: pulumi.Output[str]
    """host:port of the client API, resolvable in the cluster."""

    def __init__(self, name: str, cluster: Cluster, namespace: Namespace):
        super().__init__(
            "trainyard:workloads:Rendezvous", name, None, pulumi.ResourceOptions(provider=cluster.provider)
        )
        opts = pulumi.ResourceOptions(parent=self, deleted_with=namespace.lifetime)
        metadata = k8s.meta.v1.ObjectMetaArgs(name=NAME, namespace=namespace.name, labels=labels("rendezvous"))
        stateful_set = k8s.apps.v1.StatefulSet(
            name,
            metadata=metadata,
            spec=k8s.apps.v1.StatefulSetSpecArgs(
                replicas=1,
                service_name=NAME,
                # With the default (OrderedReady) a pod that never got ready, such as one with a wrong image, would not
                # be updated either: somebody would have to delete it by hand.
                pod_management_policy="Parallel",
                selector=k8s.meta.v1.LabelSelectorArgs(match_labels=component("rendezvous")),
                template=k8s.core.v1.PodTemplateSpecArgs(
                    metadata=k8s.meta.v1.ObjectMetaArgs(labels=labels("rendezvous")), spec=_pod(cluster.etcd_image)
                ),
            ),
            opts=opts,
        )
        service = k8s.core.v1.Service(
            name,
            metadata=metadata,
            spec=k8s.core.v1.ServiceSpecArgs(
                selector=component("rendezvous"),
                ports=[k8s.core.v1.ServicePortArgs(name="client", port=ETCD_PORT, target_port=ETCD_PORT)],
            ),
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[stateful_set])),
        )
        self.endpoint = pulumi.Output.concat(service.metadata.name, ".", namespace.name, f".svc:{ETCD_PORT}")
        self.register_outputs({"endpoint": self.endpoint})


def _pod(image: str) -> k8s.core.v1.PodSpecArgs:
    core = k8s.core.v1
    client = f"http://0.0.0.0:{ETCD_PORT}"
    arguments = {
        "name": NAME,
        "data-dir": "/var/lib/etcd/data",
        "listen-client-urls": client,
        "advertise-client-urls": f"http://{NAME}:{ETCD_PORT}",
        # Alone: nobody else may connect as a peer.
        "listen-peer-urls": "http://127.0.0.1:2380",
        "initial-advertise-peer-urls": "http://127.0.0.1:2380",
        "initial-cluster": f"{NAME}=http://127.0.0.1:2380",
        "listen-metrics-urls": f"http://0.0.0.0:{METRICS_PORT}",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "quota-backend-bytes": str(QUOTA_BYTES),
    }
    health = core.HTTPGetActionArgs(path="/health", port=METRICS_PORT)
    container = core.ContainerArgs(
        name=NAME,
        image=image,
        # By name: upstream's image and the local node's keep the binary in different folders of the PATH.
        command=["etcd"],
        args=[f"--{flag}={value}" for flag, value in arguments.items()],
        ports=[core.ContainerPortArgs(name="client", container_port=ETCD_PORT)],
        readiness_probe=core.ProbeArgs(http_get=health, period_seconds=2, failure_threshold=3),
        liveness_probe=core.ProbeArgs(
            http_get=health, initial_delay_seconds=15, period_seconds=10, failure_threshold=6
        ),
        resources=resources(cpu=0.05, memory_gib=0.25),
        security_context=container_security(),
        volume_mounts=[core.VolumeMountArgs(name="state", mount_path="/var/lib/etcd")],
    )
    return core.PodSpecArgs(
        containers=[container],
        # Survives a restart of the container; a lost node costs one new rendezvous round.
        volumes=[core.VolumeArgs(name="state", empty_dir=core.EmptyDirVolumeSourceArgs(size_limit="256Mi"))],
        security_context=pod_security(),
        automount_service_account_token=False,
        enable_service_links=False,
        termination_grace_period_seconds=10,
    )
