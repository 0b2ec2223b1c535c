"""What exists already in an emulated AWS: the stack itself, the remains of an earlier one, somebody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jmespath

from infra.eks.doctor import checks, leftovers
from infra.eks.doctor.aws_client import Amazon
from infra.eks.proof import Aws
from review.recording import record
from tests.fixtures_google import remember
from tests.infra.doctor.conftest import NAME, REGION, STACK, TRUST, client, config, only, problems
from tests.infra.recorded import changed, recorded


def cluster(**tags: str) -> None:
    client("eks").create_cluster(
        name=NAME,
        roleArn="arn:aws:iam::123456789012:role/cluster",
        resourcesVpcConfig={"subnetIds": []},
        tags=tags,
    )


def test_a_stack_that_is_up_clashes_with_nothing(here: Amazon) -> None:
    cluster(app="trainyard", stack=STACK)
    client("ecr").create_repository(repositoryName=NAME)
    assert [item.level for item in leftovers.checks(here, config(), STACK)] == ["ok"]


def test_a_cluster_of_somebody_else_has_the_name(here: Amazon) -> None:
    cluster(stack="other")
    finding = only(problems(leftovers.checks(here, config(), STACK)))
    assert (finding.subject, finding.text) == ("cluster", f"{NAME} exists already, and is not of this stack")


def test_who_creates_the_cluster_is_no_admin_a_second_time(here: Amazon) -> None:
    """EKS answers 409 for the second entry, when the cluster is up and billed."""
    assert here.identity.endswith(":user/moto")
    other, me = "arn:aws:iam::123456789012:role/moto", "arn:aws:iam::123456789012:user/team/moto"
    stack = config(eks={"admins": [other, me]})
    finding = only(problems(leftovers.checks(here, stack, STACK)))
    assert (finding.subject, finding.fix.split("--path ")[1]) == ("eks.admins", "'eks.admins[1]'")
    session = replace(here, identity="arn:aws:sts::123456789012:assumed-role/moto/me")
    assert "'eks.admins[0]'" in only(problems(leftovers.checks(session, stack, STACK))).fix
    cluster(app="trainyard", stack=STACK)
    assert problems(leftovers.checks(here, stack, STACK)) == [], "who runs a later `pulumi up` may be in the list"


def test_what_an_earlier_stack_left_and_would_stop_this_one(here: Amazon) -> None:
    assert [item.level for item in leftovers.checks(here, config(), STACK)] == ["ok"]
    client("logs").create_log_group(logGroupName=f"/aws/eks/{NAME}/cluster")
    client("ecr").create_repository(repositoryName=f"{NAME}/trainyard/trainer")
    client("iam").create_role(RoleName=f"{NAME}-cluster", AssumeRolePolicyDocument=TRUST)
    client("ec2").create_launch_template(LaunchTemplateName=f"{NAME}-system", LaunchTemplateData={})
    key = client("kms").create_key()["KeyMetadata"]["KeyId"]
    client("kms").create_alias(AliasName=f"alias/{NAME}", TargetKeyId=key)
    found = problems(leftovers.checks(here, config(), STACK))
    assert [item.subject for item in found] == ["log group", "repository", "role", "launch template", "key"]
    assert found[0].fix == f"aws logs delete-log-group --region us-east-1 --log-group-name /aws/eks/{NAME}/cluster"


def test_what_an_up_that_failed_has_made_is_the_stacks_own(here: Amazon, tmp_path: Path) -> None:
    """Whoever deleted it as the doctor advised would break the next `pulumi up`."""
    tags = [{"ResourceType": kind, "Tags": TAGS} for kind in ("vpc", "natgateway")]
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tags[:1])["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    nat = ec2.create_nat_gateway(SubnetId=subnet, TagSpecifications=tags[1:])["NatGateway"]["NatGatewayId"]
    system = client("efs").create_file_system(CreationToken="new", Tags=TAGS)["FileSystemId"]
    client("ecr").create_repository(repositoryName=f"{NAME}/trainyard/trainer")
    client("ec2").create_launch_template(LaunchTemplateName=f"{NAME}-system", LaunchTemplateData={})
    subjects = [item.subject for item in leftovers.checks(here, config(), STACK)]
    assert subjects == ["repository", "launch template", "file system", "leftovers"], "the state has nothing"
    named = {"id": "lt-1", "inputs": {"name": f"{NAME}-system"}}
    arn = f"arn:aws:ec2:us-east-1:123456789012:vpc/{vpc}"
    with_ids = [{"id": made} for made in (f"{NAME}/trainyard/trainer", nat, system)]
    remember(tmp_path, named, {"outputs": {"arn": arn}}, *with_ids)
    finding = only(list(leftovers.checks(here, config(), STACK)))
    assert (finding.level, finding.subject) == ("ok", "names")
    assert "an earlier `pulumi up`" in finding.text


def test_the_names_looked_for_are_those_that_the_stack_takes() -> None:
    taken = {str(item.inputs.get("name", "")) for item in recorded(STACK).all("aws:")}
    assert {row["name"] for row in leftovers.fixed(NAME, "")} <= taken


def test_what_a_stack_whose_name_begins_alike_has_is_not_left_over(here: Amazon) -> None:
    """Role by role of all that a stack makes, and a template as the provider tags it."""
    made = record(STACK, changed(STACK, dataset={"input": ["s3://bucket/texts"]})).all("aws:iam/role:")
    roles = [item.inputs["name"] for item in made]
    (row,) = [row for row in leftovers.fixed(NAME, "") if row["what"] == "role"]
    assert all(f"'{name}'" in row["fix"] for name in roles)
    for name, stack in ((NAME, STACK), (f"{NAME}-smoke", f"{STACK}-smoke")):
        tags = [{"Key": "app", "Value": "trainyard"}, {"Key": "stack", "Value": stack}]
        spec = [{"ResourceType": "launch-template", "Tags": tags}]
        client("ec2").create_launch_template(
            LaunchTemplateName=f"{name}-system", LaunchTemplateData={}, TagSpecifications=spec
        )
        client("ecr").create_repository(repositoryName=f"{name}/trainyard/trainer")
        client("logs").create_log_group(logGroupName=f"/aws/eks/{name}/cluster")
        for role in roles:
            client("iam").create_role(RoleName=role.replace(NAME, name), AssumeRolePolicyDocument=TRUST)
    _, left = Aws("", lambda _: here).leftovers(config(), STACK)
    assert sorted(left) == sorted(
        [
            f"launch template {NAME}-system",
            f"log group /aws/eks/{NAME}/cluster",
            f"repository {NAME}/trainyard/trainer",
            *(f"role {name}" for name in roles),
        ]
    )


def test_a_stack_is_told_from_one_whose_name_it_begins(here: Amazon) -> None:
    """What the doctor and the proof list is deleted by hand: here the other stack is trainyard-aws."""
    placed = {"consumption": "on_demand", "fallback": "none", "alternatives": [], "compactPlacement": True}
    every = ({"dataset": {"input": ["s3://texts/corpus"]}}, {"nodes": placed})
    declared = [item for changes in every for item in record(STACK, changed(STACK, **changes)).all("aws:")]
    roles, templates = (
        {item.inputs["name"] for item in declared if item.kind == kind} for kind in ("Role", "LaunchTemplate")
    )
    assert f"{NAME}-reader" in roles
    assert f"{NAME}-workers-use2-az1" in templates
    for name in templates:
        client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData={})
    for name, expected in ((NAME, (roles, templates)), ("trainyard-aws", (set(), set()))):
        lists = {row["kind"]: row for row in leftovers.rows("lists", NAME=name, STACK="")}
        answer = {"Roles": [{"RoleName": role} for role in roles]}
        filters = [{"Name": key, "Values": values} for key, values in lists["launch template"]["filters"].items()]
        found = here.ask("ec2", "describe_launch_templates", Filters=filters)
        assert (
            set(jmespath.search(lists["role"]["found"], answer)),
            set(jmespath.search(lists["launch template"]["found"], found)),
        ) == expected
        fix = next(row["fix"] for row in leftovers.fixed(name, REGION) if row["what"] == "role")
        assert f'"{lists["role"]["found"]}"' in fix


TAGS = [{"Key": "app", "Value": "trainyard"}, {"Key": "stack", "Value": STACK}]


def test_what_has_the_stacks_tags_is_listed(here: Amazon) -> None:
    tags = [{"ResourceType": "vpc", "Tags": TAGS}]
    made = client("ec2").create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tags)["Vpc"]["VpcId"]
    as_kms = [{"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in TAGS]
    key = client("kms").create_key(Tags=as_kms)["KeyMetadata"]
    client("kms").schedule_key_deletion(KeyId=key["KeyId"], PendingWindowInDays=7)
    finding = only(list(leftovers.checks(here, config(), STACK)))
    assert finding.subject == "leftovers"
    assert finding.text.startswith(f"1 with the tags of stack aws-g4dn, whose cluster is not there: vpc/{made} ")


def test_a_file_system_that_was_kept_is_offered_back(here: Amazon) -> None:
    made = client("efs").create_file_system(CreationToken="kept", Tags=TAGS)["FileSystemId"]
    finding = only(list(leftovers.checks(here, config(), STACK)))
    assert f"--path storage.disk {made}" in finding.fix
    again = config(storage={"disk": made})
    assert only(list(leftovers.checks(here, again, STACK))).level == "ok"
    assert only(list(checks._file_system(here, again, STACK))).text == f"{made} is there"


def test_a_file_system_that_is_not_there_or_is_somebody_elses(here: Amazon) -> None:
    missing = config(storage={"disk": "fs-0123456789abcdef0"})
    assert only(list(checks._file_system(here, missing, STACK))).text == "does not exist in us-east-1"
    made = client("efs").create_file_system(CreationToken="theirs")["FileSystemId"]
    subnet = client("ec2").describe_subnets()["Subnets"][0]
    client("efs").create_mount_target(FileSystemId=made, SubnetId=subnet["SubnetId"])
    finding = only(list(checks._file_system(here, config(storage={"disk": made}), STACK)))
    assert finding.text == f"is mounted in {subnet['VpcId']}; EFS lets one network mount it"
