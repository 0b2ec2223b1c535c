"""The resources of the AWS stack: what the nodes are, who may do what, and what of it costs at rest."""

from __future__ import annotations

import base64
import ipaddress
import json
from email import message_from_string
from typing import Any

import pytest

from infra.recording import Recorded, Recording, record
from tests.infra.recorded import changed, earlier, recorded

STACK = "aws-g4dn"
ZONES = ["us-west-2b", "us-west-2c", "us-west-2d", "us-west-2a"]


def stack(**sections: dict[str, Any] | None) -> Recording:
    return record(STACK, changed(STACK, **sections)) if sections else recorded(STACK)


def workers(found: Recording) -> list[Recorded]:
    groups = [item for item in found.resources if item.kind == "NodeGroup" and item.name.startswith("workers-")]
    return sorted(groups, key=lambda item: ZONES.index(item.name.removeprefix("workers-")))


def template(found: Recording, name: str = "workers") -> dict[str, Any]:
    return found.one("LaunchTemplate", name).inputs


def node_configuration(found: Recording, name: str = "workers") -> dict[str, Any]:
    (part,) = message_from_string(base64.b64decode(template(found, name)["userData"]).decode()).get_payload()
    assert part.get_content_type() == "application/node.eks.aws"
    return json.loads(part.get_payload())["spec"]


def statements(found: Recording, policy: str) -> list[dict[str, Any]]:
    return json.loads(found.one("RolePolicy", policy).inputs["policy"])["Statement"]


def pod(found: Recording, kind: str, name: str) -> dict[str, Any]:
    return found.one(kind, name).inputs["spec"]["template"]["spec"]


def test_nothing_with_an_accelerator_exists_at_rest() -> None:
    for group in workers(stack()):
        assert group.inputs["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 4}
        assert group.inputs["capacityType"] == "SPOT"
        assert group.inputs["instanceTypes"] == ["g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge"]
        assert group.inputs["amiType"] == "AL2023_x86_64_NVIDIA"
    system = stack().one("NodeGroup", "system").inputs
    assert system["capacityType"] == "ON_DEMAND"
    assert system["amiType"] == "AL2023_x86_64_STANDARD"
    assert system["scalingConfig"] == {"minSize": 1, "desiredSize": 1, "maxSize": 3}


def test_workers_are_wanted_from_the_zones_in_their_order() -> None:
    """Gradients that cross a zone are billed by the GB, so one zone is filled before the next is tried."""
    groups = workers(stack())
    assert [group.name for group in groups] == [f"workers-{zone}" for zone in ZONES]
    for zone, group in zip(ZONES, groups, strict=True):
        (subnet,) = group.inputs["subnetIds"]
        made = stack().one("Subnet", f"nodes-{zone}")
        assert made.inputs["availabilityZone"] == zone
        assert made.urn in group.dependencies
        assert subnet
    text = stack().one("ConfigMap", "cluster-autoscaler-priorities").inputs["data"]["priorities"]
    ranks = dict(line.split(": ", 1) for line in text.splitlines())
    by_rank = [json.loads(ranks[rank]) for rank in sorted(ranks, key=int, reverse=True)]
    assert by_rank == [*([f"^eks-workers-{zone}-.*"] for zone in ZONES), [".*"]]
    assert (
        "--expander=priority,least-waste" in pod(stack(), "Deployment", "cluster-autoscaler")["containers"][0]["args"]
    )


def test_pods_go_where_they_belong() -> None:
    training = pod(stack(), "Job", "training")
    for group in workers(stack()):
        (taint,) = group.inputs["taints"]
        assert taint["effect"] == "NO_SCHEDULE"
        assert [
            toleration
            for toleration in training["tolerations"]
            if (toleration["key"], toleration.get("value")) == (taint["key"], taint["value"])
        ]
        assert training["nodeSelector"].items() <= group.inputs["labels"].items()
    for kind, name in [("Job", "dataset"), ("StatefulSet", "etcd"), ("Deployment", "cluster-autoscaler")]:
        assert not pod(stack(), kind, name).get("tolerations"), f"{name} could be on a Spot machine"


def test_a_t4_trains_in_fp16_with_what_the_node_has() -> None:
    container = pod(stack(), "Job", "training")["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"model.preset=distil", "train.precision=fp16"} <= set(container["args"])
    assert container["args"][container["args"].index("--nnodes") + 1].startswith("1:")
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    # 120 s after its notice a Spot machine is gone.
    assert 60 <= pod(stack(), "Job", "training")["terminationGracePeriodSeconds"] < 110


def test_every_run_has_a_rendezvous_of_its_own() -> None:
    container = pod(stack(), "Job", "training")["containers"][0]
    (source,) = [item["valueFrom"] for item in container["env"] if item["name"] == "RDZV_ID"]
    assert "controller-uid" in source["fieldRef"]["fieldPath"], (
        "the Job's uid: no two Jobs share it, whatever their name"
    )


def test_the_trainer_takes_every_argument() -> None:
    from trainer.config import load

    arguments = pod(stack(), "Job", "training")["containers"][0]["args"]
    config = load(arguments[arguments.index("--") + 1 :])
    assert config.train.precision == "fp16"
    assert config.model.preset == "distil"


def test_nodes_are_encrypted_and_keep_their_credentials_to_themselves() -> None:
    for name in ("system", "workers"):
        found = template(stack(), name)
        (disk,) = found["blockDeviceMappings"]
        assert disk["ebs"]["encrypted"] == "true"
        assert disk["ebs"]["volumeType"] == "gp3"
        assert disk["ebs"]["deleteOnTermination"] == "true"
        metadata = found["metadataOptions"]
        assert metadata["httpTokens"] == "required"
        assert metadata["httpPutResponseHopLimit"] == 1, "with two, every pod could be the node"
        tagged = {item["resourceType"]: item["tags"] for item in found["tagSpecifications"]}
        for kind in ("instance", "volume", "network-interface"):
            assert tagged[kind]["stack"] == STACK, f"no bill and no search for leftovers would find the {kind}"


def test_local_disks_are_scratch_and_a_shutdown_reaches_the_pods() -> None:
    found = node_configuration(stack())
    assert found["instance"] == {"localStorage": {"strategy": "RAID0"}}
    assert found["kubelet"]["config"]["shutdownGracePeriod"] == "45s"
    assert "instance" not in node_configuration(stack(nodes={"localSsds": 0}))


def test_a_placement_group_is_in_one_zone() -> None:
    assert not [item for item in stack().resources if item.kind == "PlacementGroup"]
    found = stack(nodes={"compactPlacement": True})
    for zone in ZONES:
        group = found.one("PlacementGroup", f"workers-{zone}")
        assert group.inputs["strategy"] == "cluster"
        assert template(found, f"workers-{zone}")["placement"] == {"groupName": group.inputs["name"]}
        assert (
            found.one("LaunchTemplate", f"workers-{zone}").urn in found.one("NodeGroup", f"workers-{zone}").dependencies
        )


def test_larger_sizes_have_an_elastic_fabric_adapter_in_one_zone() -> None:
    assert "networkInterfaces" not in template(stack())
    found = stack(nodes={"machineType": "g4dn.8xlarge", "alternatives": ["g4dn.16xlarge"], "efa": True})
    (interface,) = template(found)["networkInterfaces"]
    assert interface["interfaceType"] == "efa"
    assert interface["securityGroups"], "EKS adds its group only where no interface is spelled out"
    assert [group.name for group in workers(found)] == ["workers-us-west-2b"], "it does not reach another zone"
    # From the node to NCCL: announced, asked for, known to the autoscaler before there is a node.
    training = pod(found, "Job", "training")["containers"][0]
    assert training["resources"]["limits"]["vpc.amazonaws.com/efa"] == "1"
    assert {"name": "FI_PROVIDER", "value": "efa"} in training["env"]
    assert pod(found, "DaemonSet", "efa-device-plugin")["nodeSelector"] == {"trainyard/pool": "workers"}
    tag = found.one("Tag").inputs
    assert tag["autoscalingGroupName"].startswith("eks-workers-us-west-2b-")
    assert tag["tag"] == {
        "key": "k8s.io/cluster-autoscaler/node-template/resources/vpc.amazonaws.com/efa",
        "value": "1",
        "propagateAtLaunch": False,
    }


def test_private_nodes_go_out_through_one_nat_gateway_and_to_s3_past_it() -> None:
    found = stack()
    (nat,) = [item for item in found.resources if item.kind == "NatGateway"]
    assert nat.urn in earlier(found, found.one("NodeGroup", "system"))
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
    # Nobody is let in all the same: no rule names an address.
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


def test_another_zone_is_no_change_of_the_control_plane() -> None:
    """EKS keeps the zones that it was made with."""

    def subnets(zones: list[str]) -> set[str]:
        found = stack(eks={"zones": zones})
        return found.one("Cluster").dependencies & {item.urn for item in found.all("aws:ec2/subnet")}

    two, four = subnets(ZONES[3:] + ZONES[:1]), subnets(ZONES)
    assert len(two) == 2
    assert two == four


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
    assert groups["Resource"] == "arn:aws:eks:us-west-2:123456789012:nodegroup/trainyard-aws-g4dn/*", (
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
    assert found.one("PodIdentityAssociation", "reader").urn in earlier(found, dataset), "or its pods get no role"
    assert "serviceAccountName" not in pod(found, "Job", "training")


def test_an_oidc_provider_is_an_option() -> None:
    assert not [item for item in stack().resources if item.kind == "OpenIdConnectProvider"]
    found = stack(eks={"irsa": True}).one("OpenIdConnectProvider").inputs
    assert found["url"].startswith("https://oidc.eks.us-west-2.amazonaws.com/id/")
    assert found["clientIdLists"] == ["sts.amazonaws.com"]


def test_the_file_system_is_encrypted_entered_by_one_door_and_by_the_trainer() -> None:
    found = stack()
    assert found.one("FileSystem").inputs["encrypted"] is True
    (rule,) = found.all("aws:vpc/securityGroupIngressRule")
    assert (rule.inputs["fromPort"], rule.inputs["toPort"], rule.inputs["ipProtocol"]) == (2049, 2049, "tcp")
    assert rule.inputs["referencedSecurityGroupId"].startswith("sg-")
    assert not {"cidrIpv4", "cidrIpv6", "prefixListId"} & rule.inputs.keys()
    point = found.one("AccessPoint").inputs
    assert point["posixUser"] == {"uid": 1000, "gid": 1000}
    assert point["rootDirectory"]["creationInfo"] == {"ownerUid": 1000, "ownerGid": 1000, "permissions": "0750"}
    (allow,) = json.loads(found.one("FileSystemPolicy").inputs["policy"])["Statement"]
    assert "elasticfilesystem:ClientRootAccess" not in allow["Action"]
    assert allow["Condition"]["Bool"]["aws:SecureTransport"] == "true"
    volume = found.one("PersistentVolume").inputs["spec"]
    assert volume["csi"]["volumeHandle"].startswith("fs-")
    assert "::fsap-" in volume["csi"]["volumeHandle"]
    assert volume["mountOptions"] == ["tls"]


def test_the_image_is_built_beside_the_cluster_into_immutable_tags() -> None:
    found = stack()
    image = found.one("Image", "trainer")
    assert found.one("Cluster").urn not in earlier(found, image)
    repositories = {item.name: item.inputs for item in found.resources if item.kind == "Repository"}
    for repository in repositories.values():
        assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
        assert repository["forceDelete"] is True
    assert repositories["images"]["imageTagMutability"] == "IMMUTABLE"
    # The cache is a tag that changes: never in a repository whose tags do not.
    (tag,) = image.inputs["tags"]
    cache = image.inputs["cacheTo"][0]["registry"]["ref"]
    server = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
    assert tag.rsplit(":", 1)[0] == f"{server}/{repositories['images']['name']}"
    assert cache.rsplit(":", 1)[0] == f"{server}/{repositories['cache']['name']}"
    assert repositories["cache"]["imageTagMutability"] == "MUTABLE"
    (login,) = image.inputs["registries"]
    assert login["address"] == server
    assert login["password"]["4dabf18193072939515e22adb298388d"], "the token is a secret of the state"
    for policy in (item for item in found.resources if item.kind == "LifecyclePolicy"):
        assert [rule["selection"]["tagStatus"] for rule in json.loads(policy.inputs["policy"])["rules"]] == [
            "untagged",
            "any",
        ]


def test_a_prebuilt_image_needs_no_repository() -> None:
    found = stack(image={"builder": "prebuilt", "ref": f"ghcr.io/you/trainer@sha256:{'0' * 64}"})
    assert not [item for item in found.resources if item.kind in ("Repository", "Image")]


def test_the_add_ons_that_need_rights_have_a_role_of_their_own() -> None:
    for name, account in [("vpc-cni", "aws-node"), ("aws-efs-csi-driver", "efs-csi-controller-sa")]:
        (association,) = stack().one("Addon", name).inputs["podIdentityAssociations"]
        assert association["serviceAccount"] == account
    assert json.loads(stack().one("Addon", "vpc-cni").inputs["configurationValues"]) == {"enableNetworkPolicy": "true"}


def test_the_device_plugin_runs_where_accelerators_are_and_nowhere_else() -> None:
    plugin = pod(stack(), "DaemonSet", "nvidia-device-plugin")
    assert plugin["nodeSelector"] == {"trainyard/pool": "workers"}
    assert [item["key"] for item in plugin["tolerations"]] == ["nvidia.com/gpu"]
    assert plugin["priorityClassName"] == "system-node-critical"
    assert plugin["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not [item for item in stack().resources if item.name == "dcgm-exporter"]
    exporter = pod(stack(eks={"gpuMetrics": True}), "DaemonSet", "dcgm-exporter")
    assert exporter["nodeSelector"] == plugin["nodeSelector"]


def test_the_outputs_are_what_a_person_needs_next() -> None:
    outputs = stack().outputs
    assert outputs["cluster"] == "trainyard-aws-g4dn"
    assert outputs["credentialsCommand"] == (
        "aws eks update-kubeconfig --region us-west-2 --name trainyard-aws-g4dn --alias trainyard-aws-g4dn"
    )
    assert outputs["context"] == "trainyard-aws-g4dn"
    assert outputs["storageAddress"].endswith(".efs.us-west-2.amazonaws.com:/trainyard")
    for command in ("watchCommand", "logsCommand", "tensorboardCommand", "sampleCommand"):
        assert "--context trainyard-aws-g4dn " in outputs[command]
