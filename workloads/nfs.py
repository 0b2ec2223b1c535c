"""An NFS server in the cluster: makes a disk, which one node has at a time, into a volume that all of them share.

nfs-ganesha serves from user space, NFS 4 only: one port, no port mapper, no lock daemon. Its address is its
Service's, handed on as an Output: the node that mounts the volume does not ask the cluster's DNS.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster, ServedDisk, SharedStorage, static_volume, volume_spec
from infra.image import ContainerImage
from workloads.objects import (
    STORAGE_PRIORITY,
    make_claim,
    make_deployment,
    make_namespace,
    make_priority_class,
    make_service,
    metadata,
    select,
)
from workloads.pod import STAYS, TRAINER_ID, environment, resources

NAME = "nfs-server"
PORT = 2049
#: The export, in the tree that clients see.
EXPORT = "/data"
#: Seconds after a restart in which clients claim back what they had open, and everything else waits.
GRACE_SECONDS = 30
#: Hard: a restart of the server makes processes wait, not fail. No access times: they are writes.
MOUNT_OPTIONS = ["nfsvers=4.1", "hard", "noatime"]
#: What serving other users' files from user space takes: their ownership, and files without a path.
CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "SETGID", "SETUID"]


class NfsServer(pulumi.ComponentResource):
    """The server, in a namespace of its own: it needs rights that the training's pods must not have."""

    storage: SharedStorage
    """The volume that it makes."""

    def __init__(self, name: str, cluster: Cluster, namespace: str, image: ContainerImage):
        """`namespace` is the name of the one that it makes."""
        super().__init__("trainyard:workloads:NfsServer", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        disk, size_gib = cluster.storage.disk, cluster.storage.size_gib
        assert disk is not None
        opts = pulumi.ResourceOptions(parent=self, deleted_with=cluster.resource)
        space = make_namespace(name, namespace, "storage", {"enforce": "privileged"}, opts)
        claim = _disk_claim(name, namespace, space, disk, size_gib, opts)
        text = configuration(disk.clients)
        settings = k8s.core.v1.ConfigMap(
            name,
            metadata=metadata(NAME, space.metadata.name),
            data={"ganesha.conf": text},
            opts=opts,
        )
        described = metadata(NAME, space.metadata.name, NAME)
        priority = make_priority_class(NAME, STORAGE_PRIORITY, cluster, namespace, self)
        k8s.policy.v1.PodDisruptionBudget(
            name,
            metadata=described,
            # No drain takes it: while it moves, which takes its disk a minute or two, every worker stands still. An
            # upgrade of GKE's nodes waits an hour for it at most, the deletion of a node pool not at all.
            spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(max_unavailable=0, selector=select(NAME)),
            opts=opts,
        )
        pod = _pod(image.reference, claim.metadata.name, settings.metadata.name, priority)
        # A disk that has grown is mounted anew, which makes its file system grow.
        noted = {"trainyard/disk-gib": str(size_gib), **STAYS}
        # Recreate: the disk is attached to one node at a time.
        server = make_deployment(name, NAME, described, pod, opts, noted, strategy="Recreate")
        after_server = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[server]))
        service = make_service(name, NAME, described, ("nfs", PORT), after_server)
        address = service.spec.cluster_ip.apply(str)
        self.storage = static_volume(
            size_gib,
            nfs=k8s.core.v1.NFSVolumeSourceArgs(server=address, path=EXPORT),
            mount_options=MOUNT_OPTIONS,
            address=pulumi.Output.concat(address, ":", EXPORT),
        )
        self.register_outputs({"address": address})


def _disk_claim(
    name: str,
    namespace: str,
    space: k8s.core.v1.Namespace,
    disk: ServedDisk,
    size_gib: int,
    opts: pulumi.ResourceOptions,
) -> k8s.core.v1.PersistentVolumeClaim:
    """The disk as a volume of the cluster: made here, never by a provisioner, so that Pulumi owns what is billed."""
    opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=True))
    mode = "ReadWriteOnce"
    described = metadata("storage", name=f"{namespace}-disk")
    volume = k8s.core.v1.PersistentVolume(
        name, metadata=described, spec=volume_spec(size_gib, mode, csi=disk.source), opts=opts
    )
    claimed = metadata("storage", space.metadata.name, "disk", {"pulumi.com/skipAwait": "true"})
    # A claim cannot grow with a volume that no class made: it asks for the least, and gets the volume.
    return make_claim(name, claimed, mode, 1, opts, volume)


def configuration(clients: tuple[str, ...]) -> str:
    """ganesha.conf: one export, every file the trainer's whoever writes it, for the clients' addresses alone (and the
    probe's)."""
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
        # A client's own look: a server whose export has failed listens as well.
        startup_probe=core.ProbeArgs(
            exec_=core.ExecActionArgs(command=["nfs-ls", f"nfs://127.0.0.1{EXPORT}/?version=4"]),
            period_seconds=2,
            timeout_seconds=5,
            failure_threshold=60,
        ),
        readiness_probe=core.ProbeArgs(tcp_socket=listening, period_seconds=3),
        # Wide: a restart makes every client wait out the grace period.
        liveness_probe=core.ProbeArgs(tcp_socket=listening, period_seconds=20, failure_threshold=6),
        # Its cache of file attributes grows with the number of files, not with their size.
        resources=resources(cpu=0.5, memory_gib=2),
        security_context=core.SecurityContextArgs(
            run_as_user=0,
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=core.CapabilitiesArgs(drop=["ALL"], add=CAPABILITIES),
            # containerd's profile lets no container without CAP_SYS_ADMIN ask for a file's handle (name_to_handle_at),
            # which is how NFS names files.
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
        automount_service_account_token=False,
        enable_service_links=False,
        termination_grace_period_seconds=30,
    )
