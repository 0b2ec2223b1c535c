"""The traps of EKS; test_traps.py has those of both clouds.

What is created earlier is destroyed later, so tests check the order of creation where that of destruction matters.
"""

from __future__ import annotations

import json

import pytest

from review.recording import Recorded, Recording, record
from tests.infra.recorded import changed, recorded

STACK = "aws-g4dn"
BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
#: Kind -> its timeouts in the provider's schemas (hashicorp/terraform-provider-aws 5.100.0), where they are not create,
#: update and delete. The provider ignores any other timeout.
TIMES = {
    "Vpc": set(),
    "FileSystem": set(),
    "Subnet": {"create", "delete"},
    "SecurityGroup": {"create", "delete"},
    "MountTarget": {"create", "delete"},
    "Eip": {"read", "update", "delete"},
}
AFTER_NODES = ("coredns", "aws-efs-csi-driver")


@pytest.fixture(
    scope="module",
    params=[{}, {"publicNodes": True}, {"irsa": True, "admins": ["arn:aws:iam::123456789012:role/ops"]}],
    ids=["private", "public", "options"],
)
def stack(request: pytest.FixtureRequest) -> Recording:
    return record(STACK, changed(STACK, eks=request.param)) if request.param else recorded(STACK)


def cluster(found: Recording) -> Recorded:
    return found.one("Cluster", "cluster")


def of(found: Recording, kind: str) -> list[Recorded]:
    return [item for item in found.all("aws:") if item.kind == kind]


def groups(found: Recording) -> list[Recorded]:
    return of(found, "NodeGroup")


def outlives(found: Recording, long: Recorded, short: Recorded) -> bool:
    """Whether a destroy deletes `short` before it begins to delete `long`."""
    return long.urn in found.earlier(short)


def test_t1_what_costs_or_blocks_is_never_deleted_with_something_else(stack: Recording) -> None:
    """Otherwise it stays: EKS deletes no cluster with node groups, and EFS no file system with mount targets."""
    goes_along = {"Addon", "AccessEntry", "AccessPolicyAssociation", "PodIdentityAssociation"}
    for item in stack.all("aws:"):
        if item.kind in goes_along:
            assert item.deleted_with == cluster(stack).urn
        else:
            assert item.deleted_with == "", f"{item.kind} {item.name} would not be deleted by itself"


def test_t3_the_network_plug_in_lives_longer_than_the_nodes(stack: Recording) -> None:
    """Otherwise network interfaces of pods stay behind, and with them security group, subnets and network."""
    for name in BEFORE_NODES:
        for group in groups(stack):
            assert outlives(stack, stack.one("Addon", name), group), name
    role = stack.one("RolePolicyAttachment", "network-AmazonEKS_CNI_Policy")
    for group in groups(stack):
        assert outlives(stack, role, group), "a plug-in without rights gives nothing back"


def test_t3_add_ons_with_pods_come_when_there_are_nodes(stack: Recording) -> None:
    """Otherwise `pulumi up` waits for Deployments that nothing runs, and gives up."""
    for name in AFTER_NODES:
        assert stack.one("NodeGroup", "system").urn in stack.earlier(stack.one("Addon", name))
    assert cluster(stack).inputs["bootstrapSelfManagedAddons"] is False


def test_t3_what_nodes_go_out_by_outlives_them(stack: Recording) -> None:
    """Otherwise nodes that drain reach neither the registry nor AWS' API, and an address in use holds the gateway."""
    way_out = [item for item in stack.resources if item.kind in ("Route", "RouteTableAssociation", "NatGateway")]
    for group in groups(stack):
        for item in way_out:
            assert outlives(stack, item, group), f"{item.kind} {item.name}"
    for item in (*of(stack, "Eip"), *of(stack, "NatGateway")):
        assert outlives(stack, stack.one("InternetGateway"), item)


def test_t3_whoever_names_the_clusters_security_group_goes_before_it(stack: Recording) -> None:
    """Otherwise EKS cannot delete the group, and the network stays because of it."""
    (rule,) = stack.all("aws:vpc/securityGroupIngressRule")
    assert outlives(stack, cluster(stack), rule)
    owned = [item.name for item in of(stack, "SecurityGroup")]
    assert owned == ["storage"], "nodes are in EKS' own group, which goes with the cluster"


def test_t3_network_parts_have_time_to_go(stack: Recording) -> None:
    """Otherwise a destroy gives up while AWS still takes interfaces away."""
    for item in stack.all("aws:ec2/"):
        assert item.timeouts.keys() <= TIMES.get(item.kind, {"create", "update", "delete"}), item.kind
        if item.kind in ("Subnet", "InternetGateway", "SecurityGroup", "NatGateway"):
            assert item.timeouts["delete"] == "30m", f"{item.kind} {item.name}"
    for item in of(stack, "FileSystem") + of(stack, "MountTarget"):
        assert item.timeouts.keys() <= TIMES[item.kind]
    for item in (cluster(stack), *groups(stack)):
        assert (item.timeouts["create"], item.timeouts["delete"]) == ("60m", "60m")


def test_t6_roles_keep_their_rights_until_what_uses_them_is_gone(stack: Recording) -> None:
    """Otherwise a node group ends as DELETE_FAILED."""
    for grant in stack.all("aws:iam/rolePolicy"):
        if grant.name.startswith("nodes-"):
            assert all(outlives(stack, grant, group) for group in groups(stack)), grant.name
        if grant.name.startswith("cluster-"):
            assert outlives(stack, grant, cluster(stack)), grant.name


def test_t11_what_the_autoscaler_changes_is_no_difference(stack: Recording) -> None:
    """Otherwise the next `pulumi up` takes the nodes away from a training."""
    for group in groups(stack):
        assert "scalingConfig.desiredSize" in group.ignore_changes


def test_t14_making_the_groups_needs_neither_capacity_nor_quota(stack: Recording) -> None:
    """Otherwise `pulumi up` waits for accelerators that a zone does not have."""
    for group in groups(stack):
        if group.name != "system":
            assert group.inputs["scalingConfig"]["minSize"] == group.inputs["scalingConfig"]["desiredSize"] == 0
            assert len(group.inputs["instanceTypes"]) > 1, "one type alone is soon out of Spot capacity"
    assert stack.one("NodeGroup", "system").inputs["capacityType"] == "ON_DEMAND"


def test_t15_the_autoscaler_knows_a_group_that_has_no_nodes(stack: Recording) -> None:
    """Otherwise pods that ask for an accelerator wait for ever."""
    policy = json.loads(stack.one("RolePolicy", "autoscaler-scale").inputs["policy"])["Statement"]
    allowed = {
        verb for item in policy for verb in ([item["Action"]] if isinstance(item["Action"], str) else item["Action"])
    }
    assert {"eks:DescribeNodegroup", "ec2:DescribeInstanceTypes", "ec2:DescribeLaunchTemplateVersions"} <= allowed
    autoscaler = stack.one("Deployment", "cluster-autoscaler")
    (association,) = [item for item in of(stack, "PodIdentityAssociation") if item.name == "autoscaler"]
    assert outlives(stack, association, autoscaler), "a pod that starts before it has no role"
    account = autoscaler.inputs["spec"]["template"]["spec"]["serviceAccountName"]
    assert association.inputs["serviceAccount"] == account
    for group in groups(stack):
        if group.name != "system":
            assert group.inputs["labels"]["k8s.amazonaws.com/accelerator"] == "nvidia-tesla-t4"


def test_t17_nodes_with_accelerators_have_the_image_with_the_driver(stack: Recording) -> None:
    """Otherwise the device plugin finds nothing, and no pod is ever placed."""
    for group in groups(stack):
        assert group.inputs["amiType"].endswith("STANDARD" if group.name == "system" else "NVIDIA")
    assert stack.one("DaemonSet").urn in stack.earlier(stack.one("Job", "training"))


def test_t21_a_mount_target_in_every_zone_before_any_pod_and_until_after_the_nodes(stack: Recording) -> None:
    """Otherwise a mount fails or hangs: no target in the zone, none yet, or none any more."""
    targets = of(stack, "MountTarget")
    assert {item.name.removeprefix("data-") for item in targets} == {
        item.name.removeprefix("workers-") for item in groups(stack) if item.name != "system"
    }
    for target in targets:
        assert all(outlives(stack, target, group) for group in groups(stack))
        assert outlives(stack, target, stack.one("PersistentVolume"))
    (rule,) = stack.all("aws:vpc/securityGroupIngressRule")
    assert all(outlives(stack, rule, group) for group in groups(stack)), (
        "a last checkpoint is written while nodes drain"
    )
    for target in targets:
        for kind in ("Subnet", "SecurityGroup", "FileSystem"):
            assert [item for item in of(stack, kind) if outlives(stack, item, target)], kind


def test_logs_are_made_before_the_cluster_and_never_again_after_it(stack: Recording) -> None:
    """Otherwise EKS makes the log group by itself, keeps it for ever, and a destroy leaves it."""
    logs = stack.one("LogGroup")
    assert logs.inputs["name"] == f"/aws/eks/{cluster(stack).inputs['name']}/cluster"
    assert logs.inputs["retentionInDays"] == 7
    assert outlives(stack, logs, cluster(stack))
    deny = stack.one("RolePolicy", "cluster-no-log-groups")
    (statement,) = json.loads(deny.inputs["policy"])["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "logs:CreateLogGroup")
    assert outlives(stack, deny, logs), "a line that comes late would bring it back"


def test_the_key_of_the_secrets_outlives_the_cluster(stack: Recording) -> None:
    """Otherwise the control plane cannot read its own Secrets while it is deleted."""
    assert outlives(stack, stack.one("Key"), cluster(stack))
    assert outlives(stack, stack.one("Key"), stack.one("Alias"))


def test_a_zones_gradients_stay_in_it(stack: Recording) -> None:
    """Otherwise traffic between zones costs more than the machines."""
    for group in groups(stack):
        if group.name != "system":
            assert len(group.inputs["subnetIds"]) == 1


def test_storage_and_image_are_off_the_critical_path(stack: Recording) -> None:
    for kind in ("FileSystem", "MountTarget", "Repository"):
        for item in of(stack, kind):
            assert cluster(stack).urn not in stack.earlier(item), f"{kind} {item.name} waits for the cluster"
            assert item.urn not in stack.earlier(cluster(stack)), f"the cluster waits for {kind} {item.name}"


@pytest.mark.parametrize("retain", [False, True])
def test_a_file_system_that_is_kept_stays_and_all_else_of_it_goes(retain: bool) -> None:
    found = record(STACK, changed(STACK, storage={"retain": retain}))
    assert found.one("FileSystem").retain_on_delete is retain
    for item in found.all("aws:"):
        assert not item.retain_on_delete or item.kind == "FileSystem"
    # It stays readable: its key is not the stack's.
    assert "kmsKeyId" not in found.one("FileSystem").inputs


def test_a_file_system_that_exists_is_used_and_never_deleted() -> None:
    found = record(STACK, changed(STACK, storage={"disk": "fs-0123456789abcdef0"}))
    assert not [item for item in found.resources if item.kind in ("FileSystem", "FileSystemPolicy")]
    handle = found.one("PersistentVolume").inputs["spec"]["csi"]["volumeHandle"]
    assert handle.startswith("fs-0123456789abcdef0::fsap-")
    for target in of(found, "MountTarget"):
        assert target.inputs["fileSystemId"] == "fs-0123456789abcdef0"
