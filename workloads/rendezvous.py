"""The rendezvous, where workers meet in every round: an etcd in the cluster.

One member is enough: the state is small (trainer/elastic/rendezvous_state.py), and losing it costs one new round, not
the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from infra.config import RendezvousConfig
from trainer.contract import ETCD_PORT
from workloads.certificates import RendezvousCertificates
from workloads.objects import RENDEZVOUS_PRIORITY, make_priority_class, make_service, metadata, pod_template, select
from workloads.pod import STAYS, container_security, environment, pod_security, resources
from workloads.workspace import Namespace, Workspace

#: Serves health and metrics without credentials, apart from the client port.
METRICS_PORT = 2381
#: etcd keeps every revision until compaction, and refuses every write once it is full (trainer/elastic/etcd.py empties
#: it then). In five minutes the heartbeats of 1,000 workers are 9 MB; a round of 256 is 1 MB and one of 1,000
#: 7 MB (etcd 3.7.3, 2026-11-28), since each worker writes the whole state once.
RETENTION = "5m"
QUOTA_MIB, LARGE_QUOTA_MIB = 64, 256
#: Most workers of all trainings for which the lesser is enough. Another quota makes another pod, and so a new round.
SMALL = 256
#: Where certificates are mounted, in the server's pod and in the trainers'.
CERTIFICATES = "/etc/rendezvous"


@dataclass(frozen=True)
class ClientCertificate:
    """The client certificate of the trainers, as their pods need it."""

    secret: pulumi.Output[str]

    @property
    def volume(self) -> k8s.core.v1.VolumeArgs:
        return _certificates(self.secret)

    @property
    def mount(self) -> k8s.core.v1.VolumeMountArgs:
        return k8s.core.v1.VolumeMountArgs(name="certificates", mount_path=CERTIFICATES, read_only=True)

    @property
    def environment(self) -> dict[str, str]:
        """etcdctl's variables, which the launcher reads as well."""
        files = {"CACERT": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}
        return {f"ETCDCTL_{name}": f"{CERTIFICATES}/{file}" for name, file in files.items()}


class Rendezvous(pulumi.ComponentResource):
    """The pod that keeps the rendezvous state, with a stable address inside the cluster."""

    endpoint: pulumi.Output[str]
    """[https://]host:port for the launcher's --rdzv-endpoint, resolvable in the cluster."""
    client: ClientCertificate | None = None

    def __init__(self, name: str, config: RendezvousConfig, members: int, workspace: Workspace):
        super().__init__("trainyard:workloads:Rendezvous", name, None, workspace.component())
        opts, namespace = workspace.owned(self), workspace.namespace
        priority = make_priority_class("rendezvous", RENDEZVOUS_PRIORITY, workspace.cluster, namespace.name, self)
        server: pulumi.Output[str] | None = None
        if config.tls:
            server, client = self._secrets(name, namespace, opts)
            self.client = ClientCertificate(client)
        quota = QUOTA_MIB if members <= SMALL else LARGE_QUOTA_MIB
        pod = _etcd_pod(name, workspace.cluster.etcd_image, quota, priority, server)
        pod.image_pull_secrets = workspace.pull_secrets
        pod.node_selector = dict(workspace.cluster.node_selector) or None
        stateful_set = k8s.apps.v1.StatefulSet(
            name,
            metadata=metadata("rendezvous", namespace.name, name),
            spec=k8s.apps.v1.StatefulSetSpecArgs(
                replicas=1,
                service_name=name,
                # The default (OrderedReady) never updates a pod that did not get ready, such as one with a wrong image:
                # somebody would have to delete it by hand.
                pod_management_policy="Parallel",
                selector=select("rendezvous"),
                template=pod_template("rendezvous", pod, STAYS),
            ),
            opts=opts,
        )
        # Its pod is ready by now. Pulumi would wait until the addresses have not changed for ten seconds.
        described = metadata("rendezvous", namespace.name, name, {"pulumi.com/skipAwait": "true"})
        after_pod = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[stateful_set]))
        service = make_service(name, "rendezvous", described, ("client", ETCD_PORT), after_pod)
        scheme = "https://" if server is not None else ""
        self.endpoint = pulumi.Output.concat(scheme, service.metadata.name, ".", namespace.name, f".svc:{ETCD_PORT}")
        self.register_outputs({"endpoint": self.endpoint})

    def _secrets(
        self, name: str, namespace: Namespace, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Output[str], pulumi.Output[str]]:
        """Make the server's and the clients' Secret; return their names."""
        suffixes = ("", ".svc", ".svc.cluster.local")
        names = [name, *(pulumi.Output.concat(name, ".", namespace.name, suffix) for suffix in suffixes)]
        made = RendezvousCertificates(f"{name}-certificates", names, pulumi.ResourceOptions(parent=self))

        def secret(who: str, certificate: pulumi.Output[str], key: pulumi.Output[str]) -> pulumi.Output[str]:
            # Auto-named: a new certificate makes a new Secret, and so new pods that mount it.
            resource = k8s.core.v1.Secret(
                f"{name}-{who}",
                metadata=metadata("rendezvous", namespace.name),
                type="kubernetes.io/tls",
                string_data={"ca.crt": made.authority, "tls.crt": certificate, "tls.key": key},
                opts=opts,
            )
            return resource.metadata.name.apply(str)

        return (
            secret("server", made.serverCertificate, made.serverKey),
            secret("client", made.clientCertificate, made.clientKey),
        )


def _certificates(secret: pulumi.Output[str]) -> k8s.core.v1.VolumeArgs:
    # The pod's group may read it, nobody else: the trainer's user is not root.
    source = k8s.core.v1.SecretVolumeSourceArgs(secret_name=secret, default_mode=0o440)
    return k8s.core.v1.VolumeArgs(name="certificates", secret=source)


def _etcd_pod(
    name: str, image: str, quota_mib: int, priority: pulumi.Output[str], server: pulumi.Output[str] | None
) -> k8s.core.v1.PodSpecArgs:
    core = k8s.core.v1
    scheme = "https" if server is not None else "http"
    arguments = {
        "name": name,
        "data-dir": "/var/lib/etcd/data",
        "listen-client-urls": f"{scheme}://0.0.0.0:{ETCD_PORT}",
        "advertise-client-urls": f"{scheme}://{name}:{ETCD_PORT}",
        # A single member: nobody else may connect as a peer.
        "listen-peer-urls": "http://127.0.0.1:2380",
        "initial-advertise-peer-urls": "http://127.0.0.1:2380",
        "initial-cluster": f"{name}=http://127.0.0.1:2380",
        "listen-metrics-urls": f"http://0.0.0.0:{METRICS_PORT}",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": RETENTION,
        "quota-backend-bytes": str(quota_mib << 20),
    }
    # Twice the quota: to give space back, etcd writes its store anew beside the former one.
    folder = core.EmptyDirVolumeSourceArgs(size_limit=f"{2 * quota_mib}Mi")
    volumes = [core.VolumeArgs(name="state", empty_dir=folder)]
    mounts = [core.VolumeMountArgs(name="state", mount_path="/var/lib/etcd")]
    if server is not None:
        arguments |= {
            "cert-file": f"{CERTIFICATES}/tls.crt",
            "key-file": f"{CERTIFICATES}/tls.key",
            "trusted-ca-file": f"{CERTIFICATES}/ca.crt",
            "client-cert-auth": "true",
        }
        volumes.append(_certificates(server))
        mounts.append(core.VolumeMountArgs(name="certificates", mount_path=CERTIFICATES, read_only=True))

    def answers(path: str) -> k8s.core.v1.HTTPGetActionArgs:
        return core.HTTPGetActionArgs(path=path, port=METRICS_PORT)

    container = core.ContainerArgs(
        name="etcd",
        image=image,
        # By name: upstream's image and the local node's keep the binary in different folders of the PATH.
        command=["etcd"],
        args=[f"--{flag}={value}" for flag, value in arguments.items()],
        # The state is lost with the node anyway, and a crash of etcd alone loses nothing that the kernel has: fsync
        # would only limit how many members can send heartbeats. As a variable, since etcd 3.4 refuses unknown flags.
        env=environment({"ETCD_UNSAFE_NO_FSYNC": "true"}),
        ports=[core.ContainerPortArgs(name="client", container_port=ETCD_PORT)],
        # Not /health: a full store fails it until somebody empties it. Restarts do not, and without an address the
        # launchers could not.
        readiness_probe=core.ProbeArgs(http_get=answers("/readyz"), period_seconds=2, failure_threshold=3),
        liveness_probe=core.ProbeArgs(
            http_get=answers("/livez"), initial_delay_seconds=15, period_seconds=10, failure_threshold=6
        ),
        resources=resources(cpu=0.05, memory_gib=0.25),
        security_context=container_security(),
        volume_mounts=mounts,
    )
    # The state survives a restart of the container; a lost node costs one new rendezvous round.
    return core.PodSpecArgs(
        containers=[container],
        volumes=volumes,
        priority_class_name=priority,
        security_context=pod_security(),
        automount_service_account_token=False,
        enable_service_links=False,
        termination_grace_period_seconds=10,
    )
