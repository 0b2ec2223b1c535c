"""An NFS server in the cluster: shares a disk, which attaches to one node at a time, with all nodes.

nfs-ganesha serves from user space, NFS 4 only: one port, no port mapper, no lock daemon. Volumes name the IP address of
its Service, because the node that mounts a volume does not ask the cluster's DNS.

The export admits nodes, by their addresses, and no pod. No network policy can do that: on GKE's Dataplane V2, which is
Cilium, a range of addresses matches neither nodes nor pods (cilium issues 20550 and 9209), so one for the nodes would
stop every mount. The policy closes what NFS does not need: all other ports, and all that the server could connect to.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster, ServedDisk, SharedStorage, static_volume, volume_spec
from infra.image import ContainerImage
from trainer.contract import TRAINER_ID
from workloads.objects import (
    STORAGE_PRIORITY,
    make_claim,
    make_deployment,
    make_policy,
    make_priority_class,
    make_service,
    metadata,
    ports,
    select,
)
from workloads.pod import STAYS, environment, resources

NAME = "nfs-server"
PORT = 2049
#: The export, in the tree that clients see.
EXPORT = "/data"
#: Seconds after a restart in which clients reclaim their open files and everything else waits.
GRACE_SECONDS = 30
#: hard: while the server restarts, processes wait instead of failing. noatime: access times would be writes.
MOUNT_OPTIONS = ["nfsvers=4.1", "hard", "noatime"]
#: Needed to serve other users' files from user space: to change owners, and to open files without a path.
CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "SETGID", "SETUID"]


class NfsServer(pulumi.ComponentResource):
    """The server. It needs rights that the training's pods must not have, and so another namespace."""

    storage: SharedStorage
    """The volume that it makes."""

    def __init__(self, cluster: Cluster, space: k8s.core.v1.Namespace, image: ContainerImage):
        super().__init__("trainyard:workloads:NfsServer", NAME, None, pulumi.ResourceOptions(provider=cluster.provider))
        disk, size_gib = cluster.storage.disk, cluster.storage.size_gib
        assert disk is not None
        opts = pulumi.ResourceOptions(parent=self, deleted_with=cluster.resource)
        make_policy(f"{NAME}-serve", space.metadata.name.apply(str), select(NAME), opts, ingress=[(None, ports(PORT))])
        claim = _disk_claim(space, disk, size_gib, opts)
        settings = k8s.core.v1.ConfigMap(
            NAME,
            metadata=metadata(NAME, space.metadata.name),
            data={"ganesha.conf": configuration(disk.clients)},
            opts=opts,
        )
        described = metadata(NAME, space.metadata.name, NAME)
        priority = make_priority_class(NAME, STORAGE_PRIORITY, cluster, space.metadata.name, self)
        k8s.policy.v1.PodDisruptionBudget(
            NAME,
            metadata=described,
            # No drain may evict the server: while its disk moves, a minute or two, every worker stands still. An
            # upgrade of GKE's nodes waits for it an hour at most, the deletion of a node pool not at all. One that does
            # not serve may go: by default it would keep its node for ever (kubernetes/enhancements KEP-3017).
            spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(
                max_unavailable=0, unhealthy_pod_eviction_policy="AlwaysAllow", selector=select(NAME)
            ),
            opts=opts,
        )
        pod = _pod(image.reference, claim.metadata.name, settings.metadata.name, priority)
        # A new size makes a new pod: mounting the grown disk again grows its file system.
        noted = {"trainyard/disk-gib": str(size_gib), **STAYS}
        # Recreate: the disk is attached to one node at a time.
        server = make_deployment(NAME, described, pod, opts, noted, strategy="Recreate")
        after_server = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[server]))
        service = make_service(NAME, NAME, described, ("nfs", PORT), after_server)
        address = service.spec.cluster_ip.apply(str)
        self.storage = static_volume(
            size_gib,
            nfs=k8s.core.v1.NFSVolumeSourceArgs(server=address, path=EXPORT),
            mount_options=MOUNT_OPTIONS,
            address=pulumi.Output.concat(address, ":", EXPORT),
        )
        self.register_outputs({"address": address})


def _disk_claim(
    space: k8s.core.v1.Namespace,
    disk: ServedDisk,
    size_gib: int,
    opts: pulumi.ResourceOptions,
) -> k8s.core.v1.PersistentVolumeClaim:
    """Claim the disk as a static volume: no provisioner makes it, so Pulumi owns what is billed."""
    opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=True))
    mode = "ReadWriteOnce"
    described = metadata("storage", name=pulumi.Output.concat(space.metadata.name, "-disk"))
    volume = k8s.core.v1.PersistentVolume(
        NAME, metadata=described, spec=volume_spec(size_gib, mode, csi=disk.source), opts=opts
    )
    claimed = metadata("storage", space.metadata.name, "disk", {"pulumi.com/skipAwait": "true"})
    # A claim on a volume without a StorageClass cannot grow: it asks for 1 GiB and gets the whole volume.
    return make_claim(NAME, claimed, mode, 1, opts, volume)


def configuration(clients: tuple[str, ...]) -> str:
    """ganesha.conf: one export, whose files the trainer owns, for the addresses of the clients and the probe alone.

    All other clients are told that there is no such export.
    """
    addresses = ", ".join(("127.0.0.1", *clients))
    form = Template(Path(__file__).with_suffix(".conf").read_text())
    return form.substitute(port=PORT, grace=GRACE_SECONDS, export=EXPORT, owner=TRAINER_ID, clients=addresses)


def _pod(
    image: pulumi.Output[str], claim: pulumi.Input[str], settings: pulumi.Input[str], priority: pulumi.Input[str]
) -> k8s.core.v1.PodSpecArgs:
    core = k8s.core.v1
    listening = core.TCPSocketActionArgs(port=PORT)
    container = core.ContainerArgs(
        name=NAME,
        image=image,
        env=environment({"OWNER": str(TRAINER_ID)}),
        ports=[core.ContainerPortArgs(name="nfs", container_port=PORT)],
        # List the export as a client does: a server whose export has failed still listens.
        startup_probe=core.ProbeArgs(
            exec_=core.ExecActionArgs(command=["nfs-ls", f"nfs://127.0.0.1{EXPORT}/?version=4"]),
            period_seconds=2,
            timeout_seconds=5,
            failure_threshold=60,
        ),
        readiness_probe=core.ProbeArgs(tcp_socket=listening, period_seconds=3),
        # Two minutes: a restart makes every client wait out the grace period.
        liveness_probe=core.ProbeArgs(tcp_socket=listening, period_seconds=20, failure_threshold=6),
        # Its cache of file attributes grows with the number of files, not with their size.
        resources=resources(cpu=0.5, memory_gib=2),
        security_context=core.SecurityContextArgs(
            run_as_user=0,
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=core.CapabilitiesArgs(drop=["ALL"], add=CAPABILITIES),
            # containerd's profile forbids name_to_handle_at without CAP_SYS_ADMIN, and NFS names files by such
            # handles.
            seccomp_profile=core.SeccompProfileArgs(type="Unconfined"),
        ),
        volume_mounts=[
            core.VolumeMountArgs(name="disk", mount_path="/disk"),
            core.VolumeMountArgs(name="settings", mount_path="/etc/ganesha", read_only=True),
            core.VolumeMountArgs(name="run", mount_path="/run"),
            core.VolumeMountArgs(name="run", mount_path="/tmp", sub_path="tmp"),
        ],
    )
    return core.PodSpecArgs(
        containers=[container],
        volumes=[
            core.VolumeArgs(
                name="disk", persistent_volume_claim=core.PersistentVolumeClaimVolumeSourceArgs(claim_name=claim)
            ),
            core.VolumeArgs(name="settings", config_map=core.ConfigMapVolumeSourceArgs(name=settings)),
            core.VolumeArgs(name="run", empty_dir=core.EmptyDirVolumeSourceArgs(medium="Memory", size_limit="64Mi")),
        ],
        priority_class_name=priority,
        # No name server: ganesha would ask it for the name of each client that it does not admit, for seconds.
        dns_policy="None",
        dns_config=core.PodDNSConfigArgs(nameservers=["127.0.0.1"]),
        automount_service_account_token=False,
        enable_service_links=False,
        termination_grace_period_seconds=30,
    )
