"""The resources of the AWS stack around its nodes: network, control plane, rights, storage and images."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest

from review.recording import Recording
from tests.infra.eks import ZONES, pod, stack
from trainer.contract import TRAINER_ID


def statements(found: Recording, policy: str) -> list[dict[str, Any]]:
    return json.loads(found.one("RolePolicy", policy).inputs["policy"])["Statement"]


def test_private_nodes_go_out_through_one_nat_gateway_and_to_s3_past_it() -> None:
    found = stack()
    (nat,) = [item for item in found.resources if item.kind == "NatGateway"]
    assert nat.urn in found.earlier(found.one("NodeGroup", "system"))
    endpoint = found.one("VpcEndpoint")
    assert endpoint.inputs["vpcEndpointType"] == "Gateway"
    private = found.one("Route", "private").inputs["routeTableId"]
    assert endpoint.inputs["routeTableIds"] == [private]
    for zone in ZONES:
        assert found.one("Subnet", f"nodes-{zone}").inputs["mapPublicIpOnLaunch"] is False
        assert found.one("RouteTableAssociation", f"nodes-{zone}").inputs["routeTableId"] == private


def test_public_nodes_need_no_nat() -> None:
    found = stack(eks={"publicNodes": True})
    assert not [item for item in found.resources if item.kind in ("NatGateway", "Eip")]
    (route,) = [item for item in found.resources if item.kind == "Route"]
    assert route.inputs["gatewayId"].startswith("igw-")
    for zone in ZONES:
        assert found.one("Subnet", f"nodes-{zone}").inputs["mapPublicIpOnLaunch"] is True
    # Still nobody gets in: no rule names an address.
    for item in found.all("aws:vpc/securityGroup"):
        assert "cidrIpv4" not in item.inputs


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "192.168.0.0/20"])
def test_no_two_subnets_overlap_and_the_order_of_zones_moves_none(cidr: str) -> None:
    def blocks(zones: list[str]) -> dict[str, ipaddress.IPv4Network]:
        found = stack(eks={"vpcCidr": cidr, "zones": zones})
        subnets = [item for item in found.resources if item.kind == "Subnet"]
        return {item.name: ipaddress.IPv4Network(item.inputs["cidrBlock"]) for item in subnets}

    found = blocks(ZONES)
    networks = list(found.values())
    assert all(network.subnet_of(ipaddress.IPv4Network(cidr)) for network in networks)
    assert not any(one.overlaps(other) for at, one in enumerate(networks) for other in networks[at + 1 :])
    assert blocks(ZONES[::-1]) == found
    assert blocks(ZONES[:2]).items() <= found.items()


@pytest.mark.parametrize("zones", [ZONES[2:], ZONES[::-1], ZONES[:1]], ids=["last alone", "backwards", "first alone"])
def test_other_zones_of_workers_change_nothing_that_cannot_move(zones: list[str]) -> None:
    """A cluster cannot change its zones, a subnet its zone, or a node group its subnets."""
    before, after = stack(), stack(eks={"zones": zones})
    fixed = ["nat", *(f"{kind}-{zone}" for kind in ("nodes", "control-plane") for zone in ZONES[:2])]
    assert [after.one("Subnet", name).inputs for name in fixed] == [before.one("Subnet", name).inputs for name in fixed]
    for kind, name in (("Cluster", None), ("NatGateway", None), ("NodeGroup", "system")):
        assert after.one(kind, name).inputs == before.one(kind, name).inputs, kind
    subnets = {item.urn for item in after.all("aws:ec2/subnet")}
    assert {urn.rsplit("::", 1)[1] for urn in after.one("Cluster").dependencies & subnets} == set(fixed[-2:])


def test_the_api_is_reached_by_its_allow_list_and_by_iam_alone() -> None:
    cluster = stack().one("Cluster").inputs
    assert cluster["vpcConfig"]["publicAccessCidrs"] == ["203.0.113.7/32"]
    assert cluster["vpcConfig"]["endpointPrivateAccess"] is True
    assert cluster["accessConfig"]["authenticationMode"] == "API"
    assert cluster["upgradePolicy"] == {"supportType": "STANDARD"}
    arn = "arn:aws:iam::123456789012:role/ops"
    found = stack(eks={"admins": [arn]})
    assert found.one("AccessEntry").inputs["principalArn"] == arn
    policy = found.one("AccessPolicyAssociation").inputs
    assert policy["policyArn"].endswith("AmazonEKSClusterAdminPolicy")


def test_who_previews_may_read_every_object_and_change_none() -> None:
    first, second = "arn:aws:iam::123456789012:role/ci", "arn:aws:iam::123456789012:user/ci"
    found = stack(eks={"viewers": [first, second]})
    policies = {item.name: item.inputs for item in found.resources if item.kind == "AccessPolicyAssociation"}
    assert {name: policy["principalArn"] for name, policy in policies.items()} == {
        "viewer-123456789012-role-ci": first,
        "viewer-123456789012-user-ci": second,
    }
    for policy in policies.values():
        # A refresh reads Secrets and cluster-scoped objects.
        assert policy["policyArn"].endswith("cluster-access-policy/AmazonEKSAdminViewPolicy")
        assert policy["accessScope"] == {"type": "cluster"}
    shifted = stack(eks={"viewers": [second]})
    assert shifted.one("AccessEntry").name == "viewer-123456789012-user-ci", "one that goes moves no other"


def test_secrets_are_encrypted_with_a_key_of_the_stack_unless_refused() -> None:
    key = stack().one("Key").inputs
    assert key["enableKeyRotation"] is True
    assert key["deletionWindowInDays"] == 7
    (config,) = [stack().one("Cluster").inputs["encryptionConfig"]]
    assert config["resources"] == ["secrets"]
    without = stack(eks={"secretsEncryption": False})
    assert "encryptionConfig" not in without.one("Cluster").inputs
    assert not [item for item in without.resources if item.kind == "Key"]


def test_the_autoscaler_changes_groups_of_this_cluster_and_no_others() -> None:
    allowed = statements(stack(), "autoscaler-scale")
    changing = [item for item in allowed if "autoscaling:SetDesiredCapacity" in item["Action"]]
    (change,) = changing
    assert change["Condition"] == {
        "StringEquals": {"aws:ResourceTag/k8s.io/cluster-autoscaler/trainyard-aws-g4dn": "owned"}
    }
    (groups,) = [item for item in allowed if item["Action"] == "eks:DescribeNodegroup"]
    assert groups["Resource"] == "arn:aws:eks:us-east-2:123456789012:nodegroup/trainyard-aws-g4dn/*", (
        "labels and taints of a group without nodes are learnt from it"
    )
    for item in allowed:
        verbs = [item["Action"]] if isinstance(item["Action"], str) else item["Action"]
        reading = all(verb.split(":")[1].startswith(("Describe", "Get", "List")) for verb in verbs)
        assert reading or "Condition" in item


def test_no_pod_and_no_node_has_more_rights_than_its_work_needs() -> None:
    found = stack()
    attached = {item.inputs["policyArn"].rsplit("/", 1)[1] for item in found.resources if "policyArn" in item.inputs}
    assert attached == {
        "AmazonEKSClusterPolicy",
        "AmazonEKSWorkerNodePolicy",
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonEKS_CNI_Policy",
    }
    nodes = found.one("NodeGroup", "system").inputs["nodeRoleArn"].rsplit("/", 1)[1]
    (network,) = [item for item in found.resources if item.inputs.get("policyArn", "").endswith("AmazonEKS_CNI_Policy")]
    assert network.inputs["role"] != nodes, "addresses of pods are the network plug-in's business, not every node's"
    for role in found.all("aws:iam/role:Role"):
        (trust,) = json.loads(role.inputs["assumeRolePolicy"])["Statement"]
        for_pods = trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
        assert trust["Action"] == (["sts:AssumeRole", "sts:TagSession"] if for_pods else ["sts:AssumeRole"])


def test_own_buckets_are_read_by_the_dataset_job_alone() -> None:
    assert not [item for item in stack().resources if item.kind == "ServiceAccount" and item.name == "dataset"]
    found = stack(dataset={"input": ["s3://my-texts/books", "s3://my-texts/more", "sample"]})
    look, read = statements(found, "reader-buckets")
    assert look["Resource"] == ["arn:aws:s3:::my-texts"]
    assert (read["Action"], read["Resource"]) == ("s3:GetObject", ["arn:aws:s3:::my-texts/*"])
    association = found.one("PodIdentityAssociation", "reader").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("trainyard", "dataset")
    dataset = found.one("Job", "dataset")
    assert dataset.inputs["spec"]["template"]["spec"]["serviceAccountName"] == "dataset"
    assert found.one("PodIdentityAssociation", "reader").urn in found.earlier(dataset), "or its pods get no role"
    assert "serviceAccountName" not in pod(found, "Job", "training")


def test_an_oidc_provider_is_an_option() -> None:
    assert not [item for item in stack().resources if item.kind == "OpenIdConnectProvider"]
    found = stack(eks={"irsa": True}).one("OpenIdConnectProvider").inputs
    assert found["url"].startswith("https://oidc.eks.us-east-2.amazonaws.com/id/")
    assert found["clientIdLists"] == ["sts.amazonaws.com"]


def test_the_file_system_is_encrypted_entered_by_one_door_and_by_the_trainer() -> None:
    found = stack()
    assert found.one("FileSystem").inputs["encrypted"] is True
    (rule,) = found.all("aws:vpc/securityGroupIngressRule")
    assert (rule.inputs["fromPort"], rule.inputs["toPort"], rule.inputs["ipProtocol"]) == (2049, 2049, "tcp")
    assert rule.inputs["referencedSecurityGroupId"].startswith("sg-")
    assert not {"cidrIpv4", "cidrIpv6", "prefixListId"} & rule.inputs.keys()
    point = found.one("AccessPoint").inputs
    assert point["posixUser"] == {"uid": TRAINER_ID, "gid": TRAINER_ID}
    assert point["rootDirectory"]["creationInfo"] == {
        "ownerUid": TRAINER_ID,
        "ownerGid": TRAINER_ID,
        "permissions": "0750",
    }
    allow, deny = json.loads(found.one("FileSystemPolicy").inputs["policy"])["Statement"]
    assert allow["Action"] == ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"], "and not as root"
    assert allow["Principal"]["AWS"].endswith(":role/trainyard-aws-g4dn-efs-node")
    assert (deny["Effect"], deny["Action"]) == ("Deny", "*")
    assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    volume = found.one("PersistentVolume").inputs["spec"]
    assert volume["csi"]["volumeHandle"].startswith("fs-")
    assert "::fsap-" in volume["csi"]["volumeHandle"]
    assert volume["mountOptions"] == ["iam"], "the driver's tunnel is always on"


def test_the_image_is_built_beside_the_cluster_and_the_same_content_can_be_pushed_again() -> None:
    found = stack()
    image = found.one("Image", "trainer")
    assert found.one("Cluster").urn not in found.earlier(image)
    repositories = {item.name: item.inputs for item in found.resources if item.kind == "Repository"}
    for repository in repositories.values():
        assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
        assert repository["forceDelete"] is True
    assert repositories["images"]["imageTagMutability"] == "MUTABLE"
    # Old caches go after a day, old images do not.
    (tag,) = image.inputs["tags"]
    cache = dict(part.split("=") for part in image.inputs["cacheTo"][0]["raw"].split(","))["ref"]
    server = "123456789012.dkr.ecr.us-east-2.amazonaws.com"
    assert tag.rsplit(":", 1)[0] == f"{server}/{repositories['images']['name']}"
    assert cache.rsplit(":", 1)[0] == f"{server}/{repositories['cache']['name']}"
    assert repositories["cache"]["imageTagMutability"] == "MUTABLE"
    (login,) = image.inputs["registries"]
    assert login["address"] == server
    assert login["password"]["4dabf18193072939515e22adb298388d"], "the token is a secret of the state"


def test_the_repositories_do_not_fill_up() -> None:
    def rules(name: str) -> list[tuple[int, str, int]]:
        found = json.loads(stack().one("LifecyclePolicy", name).inputs["policy"])["rules"]
        return [
            (rule["rulePriority"], rule["selection"]["tagStatus"], rule["selection"]["countNumber"]) for rule in found
        ]

    assert rules("images") == [(1, "untagged", 7), (2, "tagged", 10)]
    assert rules("cache") == [(1, "untagged", 1)]


def test_a_prebuilt_image_needs_no_repository() -> None:
    found = stack(image={"builder": "prebuilt", "ref": f"ghcr.io/you/trainer@sha256:{'0' * 64}"})
    assert not [item for item in found.resources if item.kind in ("Repository", "Image")]


def test_the_add_ons_that_need_rights_have_a_role_of_their_own() -> None:
    for name, account in [("vpc-cni", "aws-node"), ("aws-efs-csi-driver", "efs-csi-controller-sa")]:
        (association,) = stack().one("Addon", name).inputs["podIdentityAssociations"]
        assert association["serviceAccount"] == account


def test_node_repair_sees_faults_of_accelerators_on_their_tainted_nodes() -> None:
    found = stack()
    agent = found.one("Addon", "eks-node-monitoring-agent")
    (toleration,) = json.loads(agent.inputs["configurationValues"])["dcgmAgent"]["tolerations"]
    for group in (item for item in found.resources if item.kind == "NodeGroup"):
        assert group.inputs["nodeRepairConfig"] == {"enabled": True}
        assert agent.urn in found.earlier(group)
        for taint in group.inputs.get("taints", []):
            assert (toleration["key"], toleration["operator"]) == (taint["key"], "Exists")


def test_what_the_control_plane_logs_is_what_is_asked_for() -> None:
    assert stack().one("Cluster").inputs["enabledClusterLogTypes"] == ["api", "authenticator"]
    assert stack(eks={"logs": ["audit"]}).one("Cluster").inputs["enabledClusterLogTypes"] == ["audit"]


def test_the_outputs_are_what_a_person_needs_next() -> None:
    outputs = stack().outputs
    assert outputs["cluster"] == "trainyard-aws-g4dn"
    assert outputs["credentialsCommand"] == (
        "aws eks update-kubeconfig --region us-east-2 --name trainyard-aws-g4dn --alias trainyard-aws-g4dn"
    )
    assert outputs["context"] == "trainyard-aws-g4dn"
    assert outputs["storageAddress"].endswith(".efs.us-east-2.amazonaws.com:/trainyard")
    for command in ("watchCommand", "logsCommand", "tensorboardCommand"):
        assert "--context trainyard-aws-g4dn " in outputs[command]
