"""The doctor against an emulated AWS: what it finds, what to do, what it cannot see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from botocore.awsrequest import AWSResponse

from cli.__main__ import main
from infra.eks.doctor import aws_client, checks
from infra.eks.doctor.aws_client import Amazon, NoAnswer, connect
from infra.eks.keys import EksConfig, EksNodes
from infra.features import features_of
from infra.stackfiles import stack_file_values
from review.recording import record
from tests.infra.doctor.conftest import (
    NAME,
    REGION,
    SECRET,
    STACK,
    TRUST,
    Cloud,
    Found,
    Raw,
    client,
    config,
    only,
    problems,
)
from tests.infra.recorded import changed


def test_nothing_stands_in_the_way_of_an_account_that_has_all(found: Found) -> None:
    assert found("problem", "warning", "unchecked") == []


@pytest.mark.parametrize("version", ["UNSUPPORTED", "EXTENDED_SUPPORT"])
def test_a_version_that_eks_has_left_behind(cloud: Cloud, found: Found, version: str) -> None:
    cloud.versions = {"1.35": version, "1.36": "STANDARD_SUPPORT", "1.9": "STANDARD_SUPPORT"}
    finding = only(found("problem"))
    assert finding.key == "Kubernetes 1.35"
    assert finding.fix == "pulumi config set --stack aws-g4dn --path eks.version 1.36"


def test_the_end_of_support_is_said_in_time(cloud: Cloud, found: Found) -> None:
    cloud.supported_until = "2020-01-01T00:00:00Z"
    assert "leaves standard support on 2020-01-01" in only(found("warning")).text


def test_a_region_that_is_switched_off(found: Found) -> None:
    stack = config(eks={"region": "ap-east-1", "zones": ["ape1-az1"]})
    finding = only(found("problem", stack=stack))
    assert (finding.key, finding.text) == ("region ap-east-1", "is switched off in this account")
    assert finding.fix.startswith("aws account enable-region --region-name ap-east-1")


def test_zones_that_an_account_has_not(found: Found) -> None:
    stack = config(eks={"region": "us-east-2", "zones": ["use2-az1", "use2-az5"]})
    finding = only([item for item in found("problem", stack=stack) if item.key.startswith("zone ")])
    assert (finding.key, finding.text) == ("zone use2-az5", "is not a zone of us-east-2 in your account")
    assert "--path 'eks.zones[1]'" in finding.fix


def offered(here: Amazon, machine_type: str, *alternatives: str, **changes: Any) -> list[tuple[str, str, str]]:
    """(level, subject, text) for the workers' machines, and for the system's where something is wrong with them."""
    stack = config(nodes={"machineType": machine_type, "alternatives": list(alternatives)}, eks=changes)
    eks = stack.section(EksConfig)
    found = [*checks._workers(here, eks, stack.section(EksNodes).machine_types), *checks._system(here, eks)]
    return [(item.level, item.key, item.text) for item in found if item.key != "m6i.large" or item.level != "ok"]


def test_machines_that_zones_lack(here: Amazon) -> None:
    """moto's list of offers is AWS's of some day: use1-az3 has no g5, us-west-1 no g6. `pulumi up` leaves such a zone
    out (test_eks_zones.py), and fails where none is left."""
    assert offered(here, "g5.xlarge", zones=["use1-az3", "use1-az1"]) == [
        ("ok", "g5.xlarge", "is offered by use1-az1"),
    ]
    others = "use1-az1, use1-az2, use1-az4, use1-az5, use1-az6"
    assert offered(here, "g5.xlarge", zones=["use1-az3"]) == [
        ("problem", "g5.xlarge", f"is not offered by use1-az3; in us-east-1 by {others}")
    ]
    west = {"region": "us-west-1", "zones": ["usw1-az1"]}
    assert offered(Amazon(here.session, "us-west-1"), "g6.xlarge", **west) == [
        ("problem", "g6.xlarge", "is not offered by usw1-az1; in us-west-1 by none at all")
    ]


def test_a_machine_that_others_stand_in_for_and_a_system_machine_that_nothing_does(here: Amazon) -> None:
    pairs = [("use1-az1", "g5.2xlarge"), ("use1-az1", "m6i.large"), ("use1-az4", "m6i.large")]

    def answer(request: Any, **_: Any) -> AWSResponse:
        items = "".join(
            f"<item><location>{zone}</location><instanceType>{name}</instanceType></item>"
            for zone, name in pairs
            if name in unquote(request.body.decode() if isinstance(request.body, bytes) else request.body)
        )
        text = f"<R><instanceTypeOfferingSet>{items}</instanceTypeOfferingSet></R>"
        return AWSResponse(request.url, 200, {}, Raw(text.encode()))  # pyrefly: ignore[bad-argument-type]

    # pyrefly: ignore[bad-argument-type]
    here.session.events.register_first("before-send.ec2.DescribeInstanceTypeOfferings", answer)
    assert offered(here, "g5.xlarge", "g5.2xlarge", zones=["use1-az1"]) == [
        ("warning", "g5.xlarge", "is not offered by use1-az1; in us-east-1 by none at all"),
        ("ok", "g5.2xlarge", "is offered by use1-az1"),
        ("problem", "m6i.large", "is not offered by use1-az2; in us-east-1 by use1-az1, use1-az4"),
    ]
    (system,) = checks._system(here, config().section(EksConfig))
    assert system.fix.startswith("pulumi config set --path eks.systemMachineType TYPE "), "home zones cannot be chosen"


def test_missing_rights_are_named(cloud: Cloud, here: Amazon) -> None:
    cloud.denied = {"eks:DeleteCluster", "ec2:DeleteSubnet"}
    assert only(problems(checks.rights(here))).text.endswith(":user/moto lacks ec2:DeleteSubnet, eks:DeleteCluster")


def test_each_policy_that_is_missing_has_its_command_for_a_user_or_a_role(cloud: Cloud, here: Amazon) -> None:
    cloud.denied = {"eks:DeleteCluster", "iam:CreateOpenIDConnectProvider"}
    policies = "arn:aws:iam::aws:policy/"
    user = replace(here, identity="arn:aws:iam::123456789012:user/team/me")
    assert [item.fix.split("   #")[0] for item in problems(checks.rights(user))] == [
        f"aws iam attach-user-policy --user-name me --policy-arn {policies}IAMFullAccess",
        f"aws iam attach-user-policy --user-name me --policy-arn {policies}PowerUserAccess",
    ]
    client("iam").create_role(RoleName="builder", AssumeRolePolicyDocument=TRUST)
    cloud.denied = {"eks:DeleteCluster"}
    role = replace(here, identity="arn:aws:sts::123456789012:assumed-role/builder/me")
    assert only(problems(checks.rights(role))).fix.startswith(
        f"aws iam attach-role-policy --role-name builder --policy-arn {policies}PowerUserAccess   #"
    )
    client("iam").create_role(RoleName="AWSReservedSSO_Power_Users_0123456789abcdef", AssumeRolePolicyDocument=TRUST)
    arn = "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Power_Users_0123456789abcdef/me@example.org"
    assert only(problems(checks.rights(replace(here, identity=arn)))).fix.startswith(
        f"in IAM Identity Center, attach {policies}PowerUserAccess to the permission set Power_Users   #"
    ), "IAM refuses to change the role"


def test_the_root_user_has_every_right(cloud: Cloud, here: Amazon) -> None:
    root = replace(here, identity="arn:aws:iam::123456789012:root")
    assert [item.level for item in checks.rights(root)] == ["ok"]
    assert cloud.simulated is None, "IAM simulates for users and roles alone"


def test_who_creates_the_cluster_is_no_admin_a_second_time(here: Amazon) -> None:
    """EKS answers 409 for the second entry, when the cluster is up and billed."""
    assert here.identity.endswith(":user/moto")
    other, me = "arn:aws:iam::123456789012:role/moto", "arn:aws:iam::123456789012:user/team/moto"
    stack = config(eks={"admins": [other, me]})
    finding = only(problems(checks._creator(here, stack, STACK)))
    assert (finding.key, finding.fix.split("--path ")[1]) == ("eks.admins", "'eks.admins[1]'")
    session = replace(here, identity="arn:aws:sts::123456789012:assumed-role/moto/me")
    assert "'eks.admins[0]'" in only(problems(checks._creator(session, stack, STACK))).fix
    client("eks").create_cluster(
        name=NAME, roleArn="arn:aws:iam::123456789012:role/cluster", resourcesVpcConfig={"subnetIds": []}
    )
    assert problems(checks._creator(here, stack, STACK)) == [], "who runs a later `pulumi up` may be in the list"


def test_a_session_is_asked_for_as_its_role(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    arn = client("iam").create_role(RoleName="builder", Path="/team/", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    taken = client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", taken["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", taken["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", taken["SessionToken"])
    here = connect(REGION, cloud.session)
    assert here.identity.endswith(":assumed-role/builder/me")
    assert [item.level for item in checks.rights(here)] == ["ok"]
    assert cloud.simulated == "arn:aws:iam::123456789012:role/team/builder"


def test_who_may_not_ask_is_told_so_and_the_rest_goes_on(cloud: Cloud, found: Found) -> None:
    cloud.refused = {"SimulatePrincipalPolicy", "DescribeInstances"}
    blind = {
        item.key: item.text
        for item in found("unchecked", stack=config(nodes={"alternatives": ["g4dn.2xlarge", "g4dn.4xlarge"]}))
    }
    assert blind == {
        "rights": "you may not ask (iam:SimulatePrincipalPolicy)",
        "quota of machines": "you may not ask (ec2:DescribeInstances)",
    }
    assert found("problem") == []


@pytest.mark.parametrize("question", [("ec2", "describe_vpcs"), ("eks", "list_clusters"), ("ssm", "describe_sessions")])
def test_a_proxy_that_answers_in_awss_place_is_no_answer(here: Amazon, question: tuple[str, str]) -> None:
    """In each protocol: XML, JSON by path, JSON."""

    def page(request: Any, **_: Any) -> AWSResponse:
        # pyrefly: ignore[bad-argument-type]
        return AWSResponse(request.url, 403, {}, Raw(b"<!doctype html><title>Blocked</title>"))

    here.session.events.register_first(f"before-send.{question[0]}", page)  # pyrefly: ignore[bad-argument-type]
    given: dict[str, Any] = {"State": "Active"} if question[0] == "ssm" else {}
    with pytest.raises(NoAnswer) as caught:
        here.ask(*question, **given)
    assert "<" not in str(caught.value)


@pytest.mark.parametrize(
    ("ranges", "at"),
    [(["203.0.113.128/25"], 0), (["8.8.8.0/24", "9.9.9.9/32"], 2), (["8.8.8.0/24", "203.0.113.128/25"], 1)],
    ids=["placeholder", "others", "placeholder after others"],
)
def test_the_api_would_not_let_this_machine_in(found: Found, ranges: list[str], at: int) -> None:
    """The command keeps the ranges of others, and replaces the placeholder of the shipped stack files."""
    finding = only(found("problem", stack=config(eks={"apiAllowedCidrs": ranges})))
    assert finding.text == f"{', '.join(ranges)} does not let 203.0.113.7 in, which is this machine"
    assert finding.fix == f"pulumi config set --stack aws-g4dn --path 'eks.apiAllowedCidrs[{at}]' 203.0.113.7/32"


def test_an_address_that_nobody_tells(monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    monkeypatch.setattr(aws_client, "ADDRESS_OF_CALLER", "http://127.0.0.1:9")
    assert only(found("unchecked")).key == "eks.apiAllowedCidrs"


def test_without_credentials_it_says_what_it_could_not_see(
    cloud: Cloud, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    finding = only(found("problem"))
    assert (finding.key, finding.fix.split("   ")[0]) == ("credentials", "aws sso login")
    assert "quota" in only(found("unchecked")).text


def test_a_profile_that_is_not_there(cloud: Cloud, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert only(found("problem")).text == "The config profile (nobody) could not be found (AWS_PROFILE)"


def test_nobody_answers(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(NoAnswer, match="sts does not answer"):
        connect(REGION)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "eks": {"admins": ["arn:aws:iam::123456789012:role/team"], "irsa": True},
            "nodes": {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True, "compactPlacement": True},
        },
    ],
)
def test_rights_are_asked_for_everything_that_the_stack_declares(changes: dict[str, Any]) -> None:
    declared = record(STACK, changed(STACK, **changes)).all("aws:")
    assert declared
    for item in declared:
        features = features_of("eks", item.type, item.inputs).values()
        assert any(feature.permissions for feature in features), item.type


def test_the_command_names_what_to_do_and_never_shows_the_key(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    values = stack_file_values(STACK)
    values["eks"] = {**values["eks"], "region": "ap-east-1", "zones": ["ape1-az1"]}
    monkeypatch.setattr("cli.doctor.stack_file_values", lambda _: values)
    assert main(["doctor", "--stack", STACK]) == 1
    shown = capsys.readouterr().out
    assert "✗ aws: is not on PATH" in shown
    assert "✓ credentials: account 123456789012" in shown
    assert "\n   aws account enable-region --region-name ap-east-1" in shown
    assert SECRET not in shown
