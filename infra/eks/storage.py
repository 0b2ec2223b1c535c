"""The shared volume: a file system on EFS, entered through an access point that belongs to the trainer.

Pods have addresses of the network and share the nodes' security group, so any of them reaches the mount targets. The
file system admits one IAM role, that of the driver's pods on the nodes, and through the access point alone; NFS without
`iam` has no identity and gets nothing.

It does not depend on the cluster, and is made beside it. The nodes depend on the mount targets, and pods on nodes: the
volume must outlive them, or a destroy would take it away from pods that save a last checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from infra.cluster import SharedStorage, static_volume
from infra.config import StackConfig
from infra.eks.identity import PODS, Identity, identity, needed
from infra.eks.keys import EksStorage
from infra.eks.network import Network
from infra.eks.scope import MOUNT, PART, Scope
from trainer.contract import TRAINER_ID

NFS = 2049
FOLDER = "/trainyard"
_POINT = "elasticfilesystem:AccessPointArn"


@dataclass(frozen=True)
class Storage:
    shared: SharedStorage
    driver: Identity
    """Who mounts it: the EFS driver's pod on each node."""
    group: aws.ec2.SecurityGroup
    mounted: list[pulumi.Resource]
    """Resources that the nodes need to mount the volume."""


def create_storage(config: StackConfig, scope: Scope, network: Network) -> Storage:
    given = config.section(EksStorage).disk
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
    # One per zone, in the nodes' subnet: a node finds the one of its own zone by name.
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
        # All access through it is as the trainer, and EFS creates the folder for the trainer.
        posix_user=aws.efs.AccessPointPosixUserArgs(uid=TRAINER_ID, gid=TRAINER_ID),
        root_directory=aws.efs.AccessPointRootDirectoryArgs(
            path=FOLDER,
            creation_info=aws.efs.AccessPointRootDirectoryCreationInfoArgs(
                owner_uid=TRAINER_ID, owner_gid=TRAINER_ID, permissions="0750"
            ),
        ),
        tags=scope.named("data"),
        opts=scope.options(),
    )
    allowed = {"Effect": "Allow", "Action": needed("efs", "mounts")}
    # For a file system of somebody's, which may have a policy that names no role.
    through = point.arn.apply(lambda arn: [{**allowed, "Resource": "*", "Condition": {"StringEquals": {_POINT: arn}}}])
    driver = identity("efs-node", scope, PODS, statements={"mount": through})
    mounted: list[pulumi.Resource] = [*targets, point, *driver.grants]
    if made is not None:
        mounted.append(_policy(scope, made, point, driver))
    source = k8s.core.v1.CSIPersistentVolumeSourceArgs(
        driver="efs.csi.aws.com", volume_handle=pulumi.Output.concat(system, "::", point.id)
    )
    shared = static_volume(
        config.section(EksStorage).size_gib,
        # Encrypted in transit by the driver's tunnel, which is always on (its mount option `tls` is deprecated). iam:
        # mount as the role of the driver's pod (aws-efs-csi-driver's own page on its parameters).
        csi=source,
        mount_options=["iam"],
        address=pulumi.Output.concat(system, f".efs.{scope.region}.amazonaws.com:", FOLDER),
    )
    return Storage(shared, driver, group, mounted)


def _file_system(config: StackConfig, scope: Scope) -> aws.efs.FileSystem:
    return aws.efs.FileSystem(
        "data",
        # With AWS's own key for EFS: the stack would delete its own key, even if the file system stays.
        encrypted=True,
        performance_mode="generalPurpose",
        throughput_mode=config.section(EksStorage).throughput,
        tags=scope.named("data"),
        opts=scope.options(retain_on_delete=config.section(EksStorage).retain),
    )


def _policy(
    scope: Scope, system: aws.efs.FileSystem, point: aws.efs.AccessPoint, driver: Identity
) -> aws.efs.FileSystemPolicy:
    """Admit the driver's role alone, through the access point, encrypted, and not as root.

    The form is that of docs.aws.amazon.com/efs/latest/ug/access-points-iam-policy.html (2026-11-25). A policy replaces
    the default one, which admits every client.
    """

    def document(arns: list[str]) -> str:
        file_system, access_point, role = arns
        allow = {
            "Effect": "Allow",
            "Principal": {"AWS": role},
            "Resource": file_system,
            "Action": needed("efs", "mounts"),
            "Condition": {
                "Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"},
                "StringEquals": {_POINT: access_point},
            },
        }
        deny = {
            "Effect": "Deny",
            "Principal": {"AWS": "*"},
            "Resource": file_system,
            "Action": "*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
        return json.dumps({"Version": "2012-10-17", "Statement": [allow, deny]})

    policy = pulumi.Output.all(system.arn, point.arn, driver.role.arn).apply(document)
    return aws.efs.FileSystemPolicy("data", file_system_id=system.id, policy=policy, opts=scope.options())


def let_in(scope: Scope, storage: Storage, nodes: pulumi.Input[str]) -> aws.vpc.SecurityGroupIngressRule:
    """Let the nodes' security group, which is also that of the pods, reach the mount targets, and nobody else."""
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
