"""Gives a shared volume whose root belongs to root to the trainer, once."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.image import ContainerImage
from workloads.layout import DATA
from workloads.pod import TRAINER_ID, labels, resources

NAME = "volume-owner"


class VolumeOwner(pulumi.ComponentResource):
    """A Job with the right to change owners and no other, in a namespace of its own that lets root in."""

    job: k8s.batch.v1.Job

    def __init__(self, name: str, cluster: Cluster, namespace: str, image: ContainerImage):
        super().__init__(
            "trainyard:workloads:VolumeOwner", name, None, pulumi.ResourceOptions(provider=cluster.provider)
        )
        core, volume = k8s.core.v1, cluster.storage.volume
        assert volume is not None
        opts = pulumi.ResourceOptions(parent=self, deleted_with=cluster.resource)
        space = core.Namespace(
            name,
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=namespace, labels={**labels("storage"), "pod-security.kubernetes.io/enforce": "baseline"}
            ),
            opts=opts,
        )
        container = core.ContainerArgs(
            name=NAME,
            image=image.reference,
            # Not recursive: what the trainer writes is the trainer's.
            args=["chown", f"{TRAINER_ID}:{TRAINER_ID}", DATA],
            resources=resources(cpu=0.05, memory_gib=0.1),
            security_context=core.SecurityContextArgs(
                run_as_user=0,
                allow_privilege_escalation=False,
                read_only_root_filesystem=True,
                capabilities=core.CapabilitiesArgs(drop=["ALL"], add=["CHOWN"]),
                seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            ),
            volume_mounts=[core.VolumeMountArgs(name="data", mount_path=DATA)],
        )
        self.job = k8s.batch.v1.Job(
            name,
            metadata=k8s.meta.v1.ObjectMetaArgs(
                namespace=space.metadata.name,
                labels=labels(NAME),
                annotations={"pulumi.com/replaceUnready": "true"},
            ),
            spec=k8s.batch.v1.JobSpecArgs(
                backoff_limit=3,
                template=core.PodTemplateSpecArgs(
                    metadata=k8s.meta.v1.ObjectMetaArgs(labels=labels(NAME)),
                    spec=core.PodSpecArgs(
                        containers=[container],
                        restart_policy="Never",
                        automount_service_account_token=False,
                        enable_service_links=False,
                        # The share itself: the volume of the same source is made after this.
                        volumes=[core.VolumeArgs(name="data", nfs=cluster.storage.nfs)],
                    ),
                ),
            ),
            # A new image is no reason to do it again.
            opts=pulumi.ResourceOptions.merge(
                opts, pulumi.ResourceOptions(ignore_changes=["spec.template.spec.containers[0].image"])
            ),
        )
        self.register_outputs({})
