"""The one shared volume of a stack (datasets, runs, caches), and the pods through which users' machines reach it."""

from __future__ import annotations

import dataclasses

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import READER, Cluster
from infra.config import StackConfig
from infra.image import NFS_SERVER, ContainerImage
from trainer.contract import TRAINER_ID
from workloads.layout import ACCESS_GIB, DATA, VOLUME_ACCESS
from workloads.nfs import NfsServer
from workloads.objects import component, make_claim, make_namespace, make_policy, metadata, pod_template
from workloads.pod import resources, root_security
from workloads.secrets import store_image_pull
from workloads.workspace import Namespace, Workspace

CLAIM, OWNER = "data", "volume-owner"
#: A pod in which a forgotten command runs ends after this time.
ACCESS_SECONDS = 24 * 3600


def serve_storage(cluster: Cluster, config: StackConfig, image: ContainerImage) -> Cluster:
    """Return the cluster with its shared storage ready to mount.

    A single-node disk gets an NFS server; a share that root owns is given to the trainer. Both need rights that the
    training's pods must not have, so they run in a namespace of their own, NAMESPACE-storage. It is one resource for
    both: a stack that goes from one to the other keeps it, and Pulumi makes the new before it deletes the old.
    """
    storage = cluster.storage
    if storage.disk is None and not storage.root_owned:
        return cluster
    opts = pulumi.ResourceOptions(provider=cluster.provider, deleted_with=cluster.resource)
    level = "privileged" if storage.disk else "baseline"
    space = make_namespace("storage", f"{config.cluster.namespace}-storage", "storage", {"enforce": level}, opts)
    # Its pods have no connection but those to a port that one of them serves.
    every = k8s.meta.v1.LabelSelectorArgs()
    make_policy("storage-deny", space.metadata.name.apply(str), every, opts, ingress=[], egress=[])
    if storage.disk is not None:
        server_image = ContainerImage(NFS_SERVER, cluster, ref=storage.disk.image_ref)
        server = NfsServer(cluster, space, server_image)
        return dataclasses.replace(cluster, storage=server.storage)
    where = space.metadata.name.apply(str)
    pull = store_image_pull(f"{OWNER}-image-pull", config, cluster, where, cluster.resource or space)
    owner = VolumeOwner(cluster, space, image, pull)
    return dataclasses.replace(cluster, storage=dataclasses.replace(storage, after=(owner.job,)))


def make_volume(name: str, cluster: Cluster) -> k8s.core.v1.PersistentVolume | None:
    """Make the volume that `claim_volume` binds; None when a StorageClass makes it.

    It is made before the namespace and deleted after it: a bound volume cannot be deleted.
    """
    if cluster.storage.volume is None:
        return None
    return k8s.core.v1.PersistentVolume(
        name,
        metadata=metadata("storage", name=name),
        spec=cluster.storage.volume,
        # The source of a volume is immutable, and so is its name.
        opts=pulumi.ResourceOptions(
            provider=cluster.provider,
            deleted_with=cluster.resource,
            delete_before_replace=True,
            depends_on=list(cluster.storage.after),
        ),
    )


def claim_volume(
    cluster: Cluster, namespace: Namespace, bound_to: k8s.core.v1.PersistentVolume | None
) -> k8s.core.v1.PersistentVolumeClaim:
    """The claim that the pods mount."""
    storage = cluster.storage
    opts = pulumi.ResourceOptions(
        provider=cluster.provider, deleted_with=namespace.lifetime, delete_before_replace=True
    )
    # A class that binds at the first pod (WaitForFirstConsumer) leaves the claim pending until then.
    described = metadata("storage", namespace.name, CLAIM, {"pulumi.com/skipAwait": "true"})
    size_gib = storage.claimed_gib or storage.size_gib
    return make_claim(CLAIM, described, storage.access_mode, size_gib, opts, bound_to, storage.class_name)


class VolumeOwner(pulumi.ComponentResource):
    """Give the trainer a volume whose top folder root owns, once.

    A Job with CAP_CHOWN and no other right, in a namespace that admits root.
    """

    job: k8s.batch.v1.Job

    def __init__(
        self,
        cluster: Cluster,
        space: k8s.core.v1.Namespace,
        image: ContainerImage,
        pull: list[k8s.core.v1.LocalObjectReferenceArgs] | None,
    ):
        super().__init__(
            "trainyard:workloads:VolumeOwner", OWNER, None, pulumi.ResourceOptions(provider=cluster.provider)
        )
        core = k8s.core.v1
        container = core.ContainerArgs(
            name=OWNER,
            image=image.reference,
            # Not recursive: the trainer owns what it writes.
            args=["chown", f"{TRAINER_ID}:{TRAINER_ID}", DATA],
            resources=resources(cpu=0.05, memory_gib=0.1),
            security_context=root_security("CHOWN"),
            volume_mounts=[core.VolumeMountArgs(name="data", mount_path=DATA)],
        )
        pod = core.PodSpecArgs(
            containers=[container],
            image_pull_secrets=pull,
            restart_policy="Never",
            automount_service_account_token=False,
            enable_service_links=False,
            # The share itself: its PersistentVolume is made after this Job.
            volumes=[core.VolumeArgs(name="data", nfs=cluster.storage.nfs)],
        )
        # A new image, or token for it, does not run the Job again.
        once = ["spec.template.spec.containers[0].image", "spec.template.spec.imagePullSecrets"]
        self.job = k8s.batch.v1.Job(
            OWNER,
            metadata=metadata(OWNER, space.metadata.name, annotations={"pulumi.com/replaceUnready": "true"}),
            spec=k8s.batch.v1.JobSpecArgs(backoff_limit=3, template=pod_template(OWNER, pod)),
            opts=pulumi.ResourceOptions(parent=self, deleted_with=cluster.resource, ignore_changes=once),
        )
        self.register_outputs({})


def declare_volume_access(workspace: Workspace) -> k8s.core.v1.PodTemplate:
    """Declare the PodTemplate of the pods in which `trainyard run`, `upload`, `fetch` and others run (cli/pods.py).

    A template costs nothing and runs nothing. Declared here, it has what every pod of the stack has (the image by
    digest, the restricted security context, the claim), and it shows in previews and snapshots. Its pods may do what
    the dataset Job may: reach the web, and read the buckets that the stack may read. They wait for commands, and end
    when none has come for some minutes (trainer/volume.py).
    """
    cluster, namespace = workspace.cluster, workspace.namespace
    container = workspace.container(
        VOLUME_ACCESS,
        ["python", "-m", "trainer.volume", "wait"],
        resources(cpu=0.1, memory_gib=ACCESS_GIB),
        termination_message_policy="FallbackToLogsOnError",
    )
    pod = workspace.pod(
        container,
        service_account_name=READER if cluster.reader_annotations is not None else None,
        restart_policy="Never",
        active_deadline_seconds=ACCESS_SECONDS,
        termination_grace_period_seconds=2,
    )
    return k8s.core.v1.PodTemplate(
        VOLUME_ACCESS,
        metadata=metadata(VOLUME_ACCESS, namespace.name, VOLUME_ACCESS),
        template=k8s.core.v1.PodTemplateSpecArgs(
            # The dataset Job's labels, for its network policy.
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=component("dataset")),
            spec=pod,
        ),
        opts=pulumi.ResourceOptions(provider=cluster.provider, deleted_with=namespace.lifetime),
    )
