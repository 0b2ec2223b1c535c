"""The shared volume: a file system on EFS, entered through an access point that belongs to the trainer.

It does not depend on the cluster, and is made while that is. The nodes wait for the mount targets, and pods for nodes:
what is mounted has to outlive them, or a destroy would pull the volume away under pods that save a last checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from infra.cluster import SharedStorage, static_volume
from infra.config import StackConfig
from infra.eks.network import Network
from infra.eks.scope import MOUNT, PART, Scope

NFS = 2049
#: uid and gid of the trainer in its image; workloads/pod.py has it for pods.
OWNER = 1000
FOLDER = "/trainyard"


@dataclass(frozen=True)
class Storage:
    shared: SharedStorage
    group: aws.ec2.SecurityGroup
    mounted: list[pulumi.Resource]
    """What the nodes mount."""


def build(config: StackConfig, scope: Scope, network: Network) -> Storage:
    given = config.storage.disk
    made = None if given else _file_system(config, scope)
    system: pulumi.Input[str] = given or (made.id if made else "")
    group = aws.ec2.SecurityGroup(
        "storage",
        name=f"{scope.name}-storage",
        description="NFS from the nodes of the cluster",
        vpc_id=network.vpc.id,
        tags=scope.named("storage"),
        opts=scope.options(timeouts=PART),
    )
    # One in each zone, in the subnet of the nodes: a node finds the one of its own zone by name.
    targets = [
        aws.efs.MountTarget(
            f"data-{zone}",
            file_system_id=system,
            subnet_id=subnet.id,
            security_groups=[group.id],
            opts=scope.options(timeouts=MOUNT),
        )
        for zone, subnet in network.subnets.items()
    ]
    point = aws.efs.AccessPoint(
        "data",
        file_system_id=system,
        # Whoever writes through it is the trainer, and the folder is the trainer's from the start.
        posix_user=aws.efs.AccessPointPosixUserArgs(uid=OWNER, gid=OWNER),
        root_directory=aws.efs.AccessPointRootDirectoryArgs(
            path=FOLDER,
            creation_info=aws.efs.AccessPointRootDirectoryCreationInfoArgs(
                owner_uid=OWNER, owner_gid=OWNER, permissions="0750"
            ),
        ),
        tags=scope.named("data"),
        opts=scope.options(),
    )
    mounted: list[pulumi.Resource] = [*targets, point]
    if made is not None:
        mounted.append(_policy(scope, made))
    source = k8s.core.v1.CSIPersistentVolumeSourceArgs(
        driver="efs.csi.aws.com", volume_handle=pulumi.Output.concat(system, "::", point.id)
    )
    shared = static_volume(
        config.storage.size_gib,
        # Encrypted on the way: the driver's tunnel, which is always on (its mount option `tls` is deprecated).
        csi=source,
        address=pulumi.Output.concat(system, f".efs.{scope.region}.amazonaws.com:", FOLDER),
    )
    return Storage(shared, group, mounted)


def _file_system(config: StackConfig, scope: Scope) -> aws.efs.FileSystem:
    return aws.efs.FileSystem(
        "data",
        # AWS' own key for EFS: a key of the stack's would be gone when the file system is kept.
        encrypted=True,
        performance_mode="generalPurpose",
        throughput_mode=config.storage.throughput,
        tags=scope.named("data"),
        opts=scope.options(retain_on_delete=config.storage.retain),
    )


def _policy(scope: Scope, system: aws.efs.FileSystem) -> aws.efs.FileSystemPolicy:
    """In through a mount target and encrypted, or not at all; not as root.

    Of who mounts without `iam` EFS knows no more than that: its documents use the condition AccessPointArn for roles
    alone (docs.aws.amazon.com/efs/latest/ug/access-points-iam-policy.html), and the driver's add-on gives its nodes'
    part no role (aws-efs-csi-driver issue 1759). That only the cluster's nodes reach a target is the security group's
    business (let_in), and who writes is the access point's.
    """

    def document(file_system: str) -> str:
        everybody = {"Principal": {"AWS": "*"}, "Resource": file_system}
        allow = {
            **everybody,
            "Effect": "Allow",
            "Action": ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"],
            "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}},
        }
        deny = {
            **everybody,
            "Effect": "Deny",
            "Action": "*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
        return json.dumps({"Version": "2012-10-17", "Statement": [allow, deny]})

    return aws.efs.FileSystemPolicy(
        "data", file_system_id=system.id, policy=system.arn.apply(document), opts=scope.options()
    )


def let_in(scope: Scope, storage: Storage, nodes: pulumi.Input[str]) -> aws.vpc.SecurityGroupIngressRule:
    """NFS from one security group, that of the nodes, and from nowhere else."""
    return aws.vpc.SecurityGroupIngressRule(
        "nfs",
        security_group_id=storage.group.id,
        referenced_security_group_id=nodes,
        ip_protocol="tcp",
        from_port=NFS,
        to_port=NFS,
        description="NFS from the nodes",
        opts=scope.options(),
    )
