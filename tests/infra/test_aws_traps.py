"""The traps of running a training on EKS, each by its name, on the recorded graph of the AWS stack.

The numbers are those of the project's list of what users of comparable systems hit; the sentence says what happens to
whoever falls in. What is made earlier is destroyed later, so the order of creation is tested where that of destruction
matters.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.stackfiles import ROOT
from review.recording import Recorded, Recording, record
from tests.infra.recorded import changed, earlier, recorded

STACK = "aws-g4dn"
BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
#: What the provider lets a program wait for, where that is not creation, change and deletion: by its schemas
#: (hashicorp/terraform-provider-aws 5.100.0). It ignores a time that it does not have.
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
    return long.urn in earlier(found, short)


def test_t1_destroy_deletes_no_object_one_by_one(stack: Recording) -> None:
    """Or it waits for, and fails on, objects of a cluster that is going away anyway."""
    for item in stack.all("kubernetes:"):
        assert item.deleted_with == cluster(stack).urn, f"{item.kind} {item.name}"


def test_t1_what_costs_or_blocks_is_never_deleted_with_something_else(stack: Recording) -> None:
    """Or it stays: EKS deletes no cluster that has node groups, and EFS no file system that has mount targets."""
    goes_along = {"Addon", "AccessEntry", "AccessPolicyAssociation", "PodIdentityAssociation"}
    for item in stack.all("aws:"):
        if item.kind in goes_along:
            assert item.deleted_with == cluster(stack).urn
        else:
            assert item.deleted_with == "", f"{item.kind} {item.name} would not be deleted by itself"


def test_t2_objects_come_after_all_nodes_and_so_go_before_them(stack: Recording) -> None:
    """Or a namespace stays in Terminating, because nothing runs its finalizers any more."""
    nodes = {item.urn for item in groups(stack)}
    assert len(nodes) == 4
    for item in stack.all("kubernetes:"):
        assert nodes <= earlier(stack, item), item.name


def test_t3_the_network_plug_in_lives_longer_than_the_nodes(stack: Recording) -> None:
    """Or network interfaces of pods stay behind, and with them security group, subnets and network."""
    for name in BEFORE_NODES:
        for group in groups(stack):
            assert outlives(stack, stack.one("Addon", name), group), name
    role = stack.one("RolePolicyAttachment", "network-AmazonEKS_CNI_Policy")
    for group in groups(stack):
        assert outlives(stack, role, group), "a plug-in without rights gives nothing back"


def test_t3_add_ons_with_pods_come_when_there_are_nodes(stack: Recording) -> None:
    """Or `pulumi up` waits for Deployments that nothing runs, and gives up."""
    for name in AFTER_NODES:
        assert stack.one("NodeGroup", "system").urn in earlier(stack, stack.one("Addon", name))
    assert cluster(stack).inputs["bootstrapSelfManagedAddons"] is False


def test_t3_what_nodes_go_out_by_outlives_them(stack: Recording) -> None:
    """Or nodes that drain reach neither the registry nor AWS' API, and an address in use holds the gateway."""
    way_out = [item for item in stack.resources if item.kind in ("Route", "RouteTableAssociation", "NatGateway")]
    for group in groups(stack):
        for item in way_out:
            assert outlives(stack, item, group), f"{item.kind} {item.name}"
    for item in (*of(stack, "Eip"), *of(stack, "NatGateway")):
        assert outlives(stack, stack.one("InternetGateway"), item)


def test_t3_whoever_names_the_clusters_security_group_goes_before_it(stack: Recording) -> None:
    """Or EKS cannot delete the group, and the network stays because of it."""
    (rule,) = stack.all("aws:vpc/securityGroupIngressRule")
    assert outlives(stack, cluster(stack), rule)
    owned = [item.name for item in of(stack, "SecurityGroup")]
    assert owned == ["storage"], "nodes are in EKS' own group, which goes with the cluster"


def test_t3_network_parts_have_time_to_go(stack: Recording) -> None:
    """Or a destroy gives up while AWS still takes interfaces away."""
    for item in stack.all("aws:ec2/"):
        assert item.timeouts.keys() <= TIMES.get(item.kind, {"create", "update", "delete"}), item.kind
        if item.kind in ("Subnet", "InternetGateway", "SecurityGroup", "NatGateway"):
            assert item.timeouts["delete"] == "30m", f"{item.kind} {item.name}"
    for item in of(stack, "FileSystem") + of(stack, "MountTarget"):
        assert item.timeouts.keys() <= TIMES[item.kind]
    for item in (cluster(stack), *groups(stack)):
        assert (item.timeouts["create"], item.timeouts["delete"]) == ("60m", "60m")


def test_t4_nothing_in_the_cluster_makes_things_outside_of_it(stack: Recording) -> None:
    """Or load balancers and disks that nobody declared stay, are billed, and hold the network."""
    for item in stack.all("kubernetes:"):
        assert item.kind not in ("Ingress", "Gateway")
        if item.kind == "Service":
            assert item.inputs["spec"].get("type", "ClusterIP") == "ClusterIP"
        if item.kind == "PersistentVolumeClaim":
            assert item.inputs["spec"]["storageClassName"] == ""
        if item.kind == "StatefulSet":
            assert "volumeClaimTemplates" not in item.inputs["spec"]


def test_t5_deletion_protection_is_said_and_images_do_not_hold_their_repository(stack: Recording) -> None:
    """Or the first destroy fails."""
    assert cluster(stack).inputs["deletionProtection"] is False
    assert not cluster(stack).protect
    assert all(item.inputs["forceDelete"] is True for item in of(stack, "Repository"))


def test_t5_protection_is_refused_in_the_preview_of_a_destroy() -> None:
    protected = cluster(record(STACK, changed(STACK, cluster={"deletionProtection": True})))
    assert protected.inputs["deletionProtection"] is True
    assert protected.protect


def test_t6_roles_keep_their_rights_until_what_uses_them_is_gone(stack: Recording) -> None:
    """Or a node group ends as DELETE_FAILED."""
    for grant in stack.all("aws:iam/rolePolicy"):
        if grant.name.startswith("nodes-"):
            assert all(outlives(stack, grant, group) for group in groups(stack)), grant.name
        if grant.name.startswith("cluster-"):
            assert outlives(stack, grant, cluster(stack)), grant.name


def test_t7_claims_are_bound_by_name_and_wait_for_their_volume(stack: Recording) -> None:
    """Or a claim is stuck on pv-protection, or binds somebody else's volume."""
    volume, claim = stack.one("PersistentVolume"), stack.one("PersistentVolumeClaim")
    assert claim.inputs["spec"]["volumeName"] == volume.inputs["metadata"]["name"]
    assert outlives(stack, volume, claim)
    assert volume.inputs["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_t8_the_cluster_is_known_at_preview(stack: Recording) -> None:
    """Or a preview in which the kubeconfig is unknown replaces every object."""
    provider = next(item for item in stack.resources if item.type == "pulumi:providers:kubernetes")
    assert provider.inputs["clusterIdentifier"] == "us-east-2/trainyard-aws-g4dn"


def test_t9_no_token_is_in_the_kubeconfig(stack: Recording) -> None:
    """Or it is in the state, and expired 15 minutes later."""
    provider = next(item for item in stack.resources if item.type == "pulumi:providers:kubernetes")
    config = json.loads(provider.inputs["kubeconfig"])
    (user,), (where,) = config["users"], config["clusters"]
    assert set(user["user"]) == {"exec"}
    assert (user["user"]["exec"]["command"], user["user"]["exec"]["args"][:2]) == ("aws", ["eks", "get-token"])
    assert where["cluster"]["certificate-authority-data"]


def test_t10_no_default_provider_and_so_no_stray_object(stack: Recording) -> None:
    """Or objects land in whatever cluster or account the environment points at."""
    for item in stack.resources:
        if item.custom and item.type.startswith(("aws:", "kubernetes:")):
            assert item.provider, f"{item.kind} {item.name} has the default provider"
    text = (ROOT / f"Pulumi.{STACK}.yaml").read_text()
    assert "pulumi:disable-default-providers: [kubernetes, gcp, aws]" in text


def test_t11_what_the_autoscaler_changes_is_no_difference(stack: Recording) -> None:
    """Or the next `pulumi up` takes the nodes away from a training."""
    for group in groups(stack):
        assert "scalingConfig.desiredSize" in group.ignore_changes


def test_t14_making_the_groups_needs_neither_capacity_nor_quota(stack: Recording) -> None:
    """Or `pulumi up` waits for accelerators that a zone does not have."""
    for group in groups(stack):
        if group.name != "system":
            assert group.inputs["scalingConfig"]["minSize"] == group.inputs["scalingConfig"]["desiredSize"] == 0
            assert len(group.inputs["instanceTypes"]) > 1, "one type alone is soon out of Spot capacity"
    assert stack.one("NodeGroup", "system").inputs["capacityType"] == "ON_DEMAND"


def test_t15_the_autoscaler_knows_a_group_that_has_no_nodes(stack: Recording) -> None:
    """Or pods that ask for an accelerator wait for ever."""
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
    """Or the device plugin finds nothing, and no pod is ever placed."""
    for group in groups(stack):
        assert group.inputs["amiType"].endswith("STANDARD" if group.name == "system" else "NVIDIA")
    assert stack.one("DaemonSet").urn in earlier(stack, stack.one("Job", "training"))


def test_t18_accelerators_are_asked_for_by_name_which_a_group_of_none_can_answer(stack: Recording) -> None:
    """Or the autoscaler sees no reason to add a node to an empty group (DRA)."""
    pod = stack.one("Job", "training").inputs["spec"]["template"]["spec"]
    assert "resourceClaims" not in pod
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_t21_a_mount_target_in_every_zone_before_any_pod_and_until_after_the_nodes(stack: Recording) -> None:
    """Or a mount fails or hangs: no target in the zone, none yet, or none any more."""
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


def test_t22_a_training_is_neither_awaited_nor_forgotten(stack: Recording) -> None:
    """Or `pulumi up` hangs until the end of the training, or a refresh trains again."""
    job = stack.one("Job", "training")
    assert job.inputs["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"
    assert "ttlSecondsAfterFinished" not in job.inputs["spec"]
    assert job.inputs["spec"]["activeDeadlineSeconds"] > 0


def test_logs_are_made_before_the_cluster_and_never_again_after_it(stack: Recording) -> None:
    """Or EKS makes the log group by itself, keeps it for ever, and a destroy leaves it."""
    logs = stack.one("LogGroup")
    assert logs.inputs["name"] == f"/aws/eks/{cluster(stack).inputs['name']}/cluster"
    assert logs.inputs["retentionInDays"] == 7
    assert outlives(stack, logs, cluster(stack))
    deny = stack.one("RolePolicy", "cluster-no-log-groups")
    (statement,) = json.loads(deny.inputs["policy"])["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "logs:CreateLogGroup")
    assert outlives(stack, deny, logs), "a line that comes late would bring it back"


def test_the_key_of_the_secrets_outlives_the_cluster(stack: Recording) -> None:
    """Or the control plane cannot read its own Secrets while it is deleted."""
    assert outlives(stack, stack.one("Key"), cluster(stack))
    assert outlives(stack, stack.one("Key"), stack.one("Alias"))


def test_a_zones_gradients_stay_in_it(stack: Recording) -> None:
    """Or traffic between zones costs more than the machines."""
    for group in groups(stack):
        if group.name != "system":
            assert len(group.inputs["subnetIds"]) == 1


def test_storage_and_image_are_off_the_critical_path(stack: Recording) -> None:
    for kind in ("FileSystem", "MountTarget", "Repository"):
        for item in of(stack, kind):
            assert cluster(stack).urn not in earlier(stack, item), f"{kind} {item.name} waits for the cluster"
            assert item.urn not in earlier(stack, cluster(stack)), f"the cluster waits for {kind} {item.name}"


@pytest.mark.parametrize("retain", [False, True])
def test_a_file_system_that_is_kept_stays_and_all_else_of_it_goes(retain: bool) -> None:
    found = record(STACK, changed(STACK, storage={"retain": retain}))
    assert found.one("FileSystem").retain_on_delete is retain
    for item in found.all("aws:"):
        assert not item.retain_on_delete or item.kind == "FileSystem"
    # It can be read later: its key is not the stack's.
    assert "kmsKeyId" not in found.one("FileSystem").inputs


def test_a_file_system_that_exists_is_used_and_never_deleted() -> None:
    found = record(STACK, changed(STACK, storage={"disk": "fs-0123456789abcdef0"}))
    assert not [item for item in found.resources if item.kind in ("FileSystem", "FileSystemPolicy")]
    handle = found.one("PersistentVolume").inputs["spec"]["csi"]["volumeHandle"]
    assert handle.startswith("fs-0123456789abcdef0::fsap-")
    for target in of(found, "MountTarget"):
        assert target.inputs["fileSystemId"] == "fs-0123456789abcdef0"


def test_all_that_is_billed_can_be_found_by_its_tags(stack: Recording) -> None:
    provider = next(item for item in stack.resources if item.type == "pulumi:providers:aws")
    tags: dict[str, Any] = json.loads(provider.inputs["defaultTags"])["tags"]
    assert tags == {"app": "trainyard", "stack": STACK}
