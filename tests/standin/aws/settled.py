"""What is wrong with an account although every call went well: it would show only when pods run."""

from __future__ import annotations

from collections.abc import Iterator

from . import policies
from .account import Account
from .eks import cluster_group
from .lookups import clusters, node_groups, subnets_by_id

NFS = 2049


def problems(account: Account) -> list[str]:
    """One line each; none: a training could run."""
    return [*_pods_rights(account), *_nfs(account)]


def _pods_rights(account: Account) -> Iterator[str]:
    for cluster in clusters(account):
        name = cluster["name"]
        associations = account.call("eks", "list_pod_identity_associations", clusterName=name)["associations"]
        addons = account.call("eks", "list_addons", clusterName=name)["addons"]
        if associations and "eks-pod-identity-agent" not in addons:
            yield f"cluster {name}: no pod gets its role's credentials without the add-on eks-pod-identity-agent"
        for one in associations:
            described = account.call(
                "eks", "describe_pod_identity_association", clusterName=name, associationId=one["associationId"]
            )
            role = policies.role_name(described["association"]["roleArn"])
            user = f"{one['namespace']}/{one['serviceAccount']}"
            missing = policies.missing(account, role, policies.PODS.get(user, ()))
            if missing:
                yield f"pods of {user} may not {', '.join(missing)} with role {role}"


def _nfs(account: Account) -> Iterator[str]:
    """Nodes reach the mount target of their own zone, which is the only one whose name they resolve."""
    zones = {
        subnet["AvailabilityZoneId"]
        for group in node_groups(account)
        for subnet in subnets_by_id(account, group["subnets"])
    }
    allowed = {cluster["name"]: cluster_group(account, cluster["name"]) for cluster in clusters(account)}
    for system in account.call("efs", "describe_file_systems")["FileSystems"]:
        id_ = system["FileSystemId"]
        targets = account.call("efs", "describe_mount_targets", FileSystemId=id_)["MountTargets"]
        for zone in sorted(zones - {target["AvailabilityZoneId"] for target in targets}):
            yield f"file system {id_}: no mount target in {zone}, where nodes are"
        for target in targets:
            for name, nodes in allowed.items():
                if not _lets_in(account, target["MountTargetId"], nodes):
                    yield f"mount target {target['MountTargetId']}: port {NFS} is closed for the nodes of {name}"


def _lets_in(account: Account, target: str, nodes: str) -> bool:
    ids = account.call("efs", "describe_mount_target_security_groups", MountTargetId=target)["SecurityGroups"]
    for group in account.call("ec2", "describe_security_groups", GroupIds=ids)["SecurityGroups"]:
        for rule in group["IpPermissions"]:
            of_nodes = any(pair["GroupId"] == nodes for pair in rule.get("UserIdGroupPairs", []))
            if of_nodes and rule["FromPort"] <= NFS <= rule["ToPort"]:
                return True
    return False
