"""The doctor against an emulated AWS: what it finds, what to do, what it cannot see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from cli.__main__ import main
from infra.eks.doctor import aws_client, checks
from infra.eks.doctor.aws_client import Amazon, connect
from infra.eks.keys import EksConfig, EksNodes
from infra.stackfiles import stack_file_values
from tests.infra.doctor.conftest import (
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


def test_nothing_stands_in_the_way_of_an_account_that_has_all(found: Found) -> None:
    assert found("problem", "warning", "unchecked") == []


@pytest.mark.parametrize("version", ["UNSUPPORTED", "EXTENDED_SUPPORT"])
def test_a_version_that_eks_has_left_behind(cloud: Cloud, found: Found, version: str) -> None:
    cloud.versions = {"1.35": version, "1.36": "STANDARD_SUPPORT", "1.9": "STANDARD_SUPPORT"}
    finding = only(found("problem"))
    assert finding.key == "Kubernetes 1.35"
    assert finding.fix == "pulumi config set --stack aws-g4dn --path eks.version 1.36"


def test_a_region_that_is_switched_off(found: Found) -> None:
    stack = config(eks={"region": "ap-east-1", "zones": ["ape1-az1"]})
    finding = only(found("problem", stack=stack))
    assert (finding.key, finding.text) == ("region ap-east-1", "is switched off in this account")
    assert finding.fix.startswith("aws account enable-region --region-name ap-east-1")


def offered(here: Amazon, machine_type: str, *alternatives: str, **changes: Any) -> list[tuple[str, str, str]]:
    """(level, subject, text) for the workers' machines and the system's."""
    stack = config(nodes={"machineType": machine_type, "alternatives": list(alternatives)}, eks=changes)
    eks = stack.section(EksConfig)
    found = checks._machines(here, eks, stack.section(EksNodes).machine_types)
    return [(item.level, item.key, item.text) for item in found]


def test_machines_that_zones_lack(here: Amazon) -> None:
    """moto's list of offers is AWS's of some day: use1-az3 has no g5. `pulumi up` leaves such a zone out
    (test_eks_zones.py), and fails where none is left."""
    system = ("ok", "m6i.large", "is offered by use1-az1, use1-az2")
    assert offered(here, "g5.xlarge", "g5.2xlarge", zones=["use1-az3", "use1-az1"]) == [
        ("ok", "machines of the workers", "use1-az1 (g5.xlarge, g5.2xlarge)"),
        system,
    ]
    others = "use1-az1, use1-az2, use1-az4, use1-az5, use1-az6"
    assert offered(here, "g5.xlarge", zones=["use1-az3"]) == [
        ("problem", "machines of the workers", f"g5.xlarge is not offered by use1-az3; by {others}"),
        system,
    ]


def test_a_system_machine_that_a_home_zone_lacks(here: Amazon) -> None:
    text = (
        "<R><instanceTypeOfferingSet><item><location>use1-az1</location><instanceType>m6i.large</instanceType></item>"
    )

    def answer(request: Any, **_: Any) -> AWSResponse:
        body = Raw(f"{text}</instanceTypeOfferingSet></R>".encode())
        return AWSResponse(request.url, 200, {}, body)  # pyrefly: ignore[bad-argument-type]

    # pyrefly: ignore[bad-argument-type]
    here.session.events.register_first("before-send.ec2.DescribeInstanceTypeOfferings", answer)
    assert offered(here, "g5.xlarge") == [
        (
            "problem",
            "machines of the workers",
            "g5.xlarge is not offered by use1-az1, use1-az2, use1-az4; by no zone of the region",
        ),
        ("problem", "m6i.large", "m6i.large is not offered by use1-az2; by use1-az1"),
    ]


def test_missing_rights_are_named_with_the_policies_that_give_them(cloud: Cloud, here: Amazon) -> None:
    cloud.denied = {"eks:DeleteCluster", "ec2:DeleteSubnet", "iam:CreateOpenIDConnectProvider"}
    finding = only(problems(checks.rights(here)))
    missing = "ec2:DeleteSubnet, eks:DeleteCluster, iam:CreateOpenIDConnectProvider"
    assert finding.text.endswith(f":user/moto lacks {missing}")
    assert finding.fix.startswith(f"attach IAMFullAccess, PowerUserAccess to {here.identity}   #")


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
        name=stack.name, roleArn="arn:aws:iam::123456789012:role/cluster", resourcesVpcConfig={"subnetIds": []}
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
    assert blind.keys() == {"rights", "quota of machines"}
    assert "AccessDenied" in blind["rights"]
    assert "SimulatePrincipalPolicy" in blind["rights"]
    assert found("problem") == []


@pytest.mark.parametrize(
    ("ranges", "at"),
    [(["8.8.8.0/24", "9.9.9.9/32"], 2), (["8.8.8.0/24", "203.0.113.128/25"], 1)],
    ids=["others", "placeholder after others"],
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
    assert (finding.key, finding.fix.split("   ")[0]) == ("credentials", "aws sts get-caller-identity")
    assert "quota" in only(found("unchecked")).text


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
