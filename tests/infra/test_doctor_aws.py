"""The doctor against an emulated AWS: what it finds, what to do, what it cannot see.

moto's server stands in for AWS; what it does not know (versions of EKS, quotas, the simulation of rights, parameters of
AWS's own, Spot scores) is answered on the wire, so that the SDK reads it as it reads AWS.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import boto3
import botocore.session
import pytest
import requests
from botocore.awsrequest import AWSResponse
from botocore.loaders import Loader
from moto.server import ThreadedMotoServer

from infra.config import StackConfig, parse
from infra.doctor import amazon, aws, aws_leftovers, aws_quota, aws_rights
from infra.doctor.__main__ import main
from infra.doctor.amazon import Amazon, NoAnswer, connect
from infra.doctor.finding import Finding, Level
from infra.recording import record_anywhere, stack_file_values

STACK, REGION, NAME = "aws-g4dn", "us-east-1", "trainyard-aws-g4dn"
ZONES = ["us-east-1a", "us-east-1b", "us-east-1c"]
ADDRESS = "203.0.113.7"
KEY = "AKIAIOSFODNN7EXAMPLE"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
LOADER = Loader()
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def config(**changes: dict[str, Any]) -> StackConfig:
    values: dict[str, Any] = {
        "cluster": {"kind": "eks"},
        "eks": {"region": REGION, "zones": ZONES, "apiAllowedCidrs": ["203.0.113.0/25"], "version": "1.35"},
        "nodes": {"machineType": "g4dn.xlarge", "max": 4, "consumption": "spot"},
        "storage": {"kind": "efs"},
        "training": {"precision": "fp16"},
    }
    for section, change in changes.items():
        values[section] = {**values.get(section, {}), **change}
    return parse(values, STACK)


class Raw:
    """A body as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def stream(self) -> Iterator[bytes]:
        yield self.body


class Cloud:
    """What AWS answers beyond moto, by quota code and by operation; and the session that hears it."""

    def __init__(self) -> None:
        self.quotas = {"L-3819A6DF": 64.0, "L-DB2E81BA": 0.0, "L-1216C47A": 32.0, "L-F678F1CE": 5.0}
        self.quotas |= {"L-0263D0A3": 5.0, "L-FE5A380F": 5.0, "L-1194D53C": 100.0}
        self.defaults: dict[str, float] = {}
        self.versions = {"1.34": "STANDARD_SUPPORT", "1.35": "STANDARD_SUPPORT", "1.31": "EXTENDED_SUPPORT"}
        self.supported_until = "2027-11-21T00:00:00Z"
        self.denied: set[str] = set()
        self.refused: set[str] = set()
        """Operations, of the services that speak XML, that the caller may not ask."""
        self.simulated: str | None = None
        self.image = True
        self.score = 8

    def session(self) -> boto3.Session:
        core = botocore.session.Session()
        # Reading the models of the services anew takes longer than all the rest.
        core.register_component("data_loader", LOADER)
        made = boto3.Session(botocore_session=core)
        for service, operation, answer in (
            ("service-quotas", "GetServiceQuota", self._quota),
            ("service-quotas", "GetAWSDefaultServiceQuota", self._default),
            ("eks", "DescribeClusterVersions", self._versions),
            ("ssm", "GetParameter", self._parameter),
            ("iam", "SimulatePrincipalPolicy", self._simulate),
            ("ec2", "GetSpotPlacementScores", self._score),
        ):
            made.events.register_last(f"before-send.{service}.{operation}", answer)
        for operation in ("ec2.DescribeInstances", "ec2.GetSpotPlacementScores", "iam.SimulatePrincipalPolicy"):
            made.events.register_first(f"before-send.{operation}", self._refuse)
        return made

    def _refuse(self, request: Any, event_name: str, **_: Any) -> AWSResponse | None:
        if event_name.rsplit(".", 1)[1] not in self.refused:
            return None
        code = "<Code>AccessDenied</Code><Message>no</Message>"
        errors = f"<Response><Errors><Error>{code}</Error></Errors><Error>{code}</Error></Response>"
        return _xml(request, errors, 403)

    def _quota(self, request: Any, **_: Any) -> AWSResponse:
        return self._limit(request, self.quotas)

    def _default(self, request: Any, **_: Any) -> AWSResponse:
        return self._limit(request, self.defaults)

    def _limit(self, request: Any, limits: dict[str, float]) -> AWSResponse:
        code = json.loads(request.body)["QuotaCode"]
        if code not in limits:
            return _answer(request, {"__type": "NoSuchResourceException", "message": "none"}, 400)
        return _answer(request, {"Quota": {"QuotaCode": code, "Value": limits[code]}})

    def _versions(self, request: Any, **_: Any) -> AWSResponse:
        found = [
            {"clusterVersion": name, "versionStatus": status, "endOfStandardSupportDate": self.supported_until}
            for name, status in self.versions.items()
        ]
        return _answer(request, {"clusterVersions": found})

    def _parameter(self, request: Any, **_: Any) -> AWSResponse:
        name = json.loads(request.body)["Name"]
        assert name.endswith("/amazon-linux-2023/x86_64/nvidia/recommended/image_id")
        if not self.image:
            return _answer(request, {"__type": "ParameterNotFound", "message": "none"}, 400)
        return _answer(request, {"Parameter": {"Name": name, "Value": "ami-0123456789"}})

    def _simulate(self, request: Any, **_: Any) -> AWSResponse:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body
        pairs = parse_qsl(body)
        self.simulated = dict(pairs)["PolicySourceArn"]
        results = "".join(
            f"<member><EvalActionName>{action}</EvalActionName><EvalDecision>"
            f"{'implicitDeny' if action in self.denied else 'allowed'}</EvalDecision></member>"
            for key, action in pairs
            if key.startswith("ActionNames.member.")
        )
        result = f"<EvaluationResults>{results}</EvaluationResults>"
        result = f"<SimulatePrincipalPolicyResult>{result}</SimulatePrincipalPolicyResult>"
        return _xml(request, f"<SimulatePrincipalPolicyResponse>{result}</SimulatePrincipalPolicyResponse>")

    def _score(self, request: Any, **_: Any) -> AWSResponse:
        item = f"<item><region>{REGION}</region><score>{self.score}</score></item>"
        body = f"<spotPlacementScoreSet>{item}</spotPlacementScoreSet>"
        return _xml(request, f"<GetSpotPlacementScoresResponse>{body}</GetSpotPlacementScoresResponse>")


def _answer(request: Any, content: dict[str, Any], status: int = 200) -> AWSResponse:
    headers = {"x-amzn-errortype": content["__type"]} if "__type" in content else {}
    return AWSResponse(request.url, status, headers, Raw(json.dumps(content).encode()))


def _xml(request: Any, content: str, status: int = 200) -> AWSResponse:
    return AWSResponse(request.url, status, {}, Raw(content.encode()))


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """Says where a question comes from, as AWS's own service does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{ADDRESS}\n".encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def cloud(moto: str, echo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(amazon, "ADDRESS_OF_CALLER", echo)
    requests.post(f"{moto}/moto-api/reset", timeout=30)
    return Cloud()


Found = Callable[..., list[Finding]]


@pytest.fixture
def found(cloud: Cloud) -> Found:
    """The findings of some levels, without those about this machine's programs."""

    def look(*levels: Level, stack: StackConfig | None = None) -> list[Finding]:
        def login(region: str) -> Amazon:
            return connect(region, cloud.session)

        findings = aws.checks(stack or config(), STACK, login)
        return [item for item in findings if item.level in levels and item.subject not in ("aws", "kubectl", "image")]

    return look


@pytest.fixture
def here(cloud: Cloud) -> Amazon:
    return connect(REGION, cloud.session)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    return [item for item in findings if item.level == "problem"]


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def client(service: str) -> Any:
    return Cloud().session().client(service, region_name=REGION)


def test_nothing_stands_in_the_way_of_an_account_that_has_all(found: Found) -> None:
    assert found("problem", "warning", "unchecked") == []


def test_a_new_account_has_no_quota_for_spot_accelerators(cloud: Cloud, here: Amazon) -> None:
    del cloud.quotas["L-3819A6DF"]
    cloud.defaults["L-3819A6DF"] = 0
    finding = only(problems(aws_quota.checks(here, config(), STACK)))
    assert finding.subject == "quota All G and VT Spot Instance Requests"
    assert finding.text == "0 of 0 vCPUs free in us-east-1, 16 are needed"
    assert finding.fix == (
        "aws service-quotas request-service-quota-increase --region us-east-1 --service-code ec2 "
        "--quota-code L-3819A6DF --desired-value 16"
    )


def test_on_demand_has_a_quota_of_its_own(here: Amazon) -> None:
    finding = only(problems(aws_quota.checks(here, config(nodes={"consumption": "on_demand"}), STACK)))
    assert finding.subject == "quota Running On-Demand G and VT instances"


def start(instance_type: str, count: int, cluster: str, **options: Any) -> None:
    image = client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "eks:cluster-name", "Value": cluster}]}]
    client("ec2").run_instances(
        ImageId=image, InstanceType=instance_type, MinCount=count, MaxCount=count, TagSpecifications=tags, **options
    )


def test_what_runs_counts_and_the_stacks_own_does_not(cloud: Cloud, here: Amazon) -> None:
    start("m5.xlarge", 6, "somebody")
    start("m6i.large", 3, NAME)
    start("m5.large", 8, "somebody", InstanceMarketOptions={"MarketType": "spot"})
    assert problems(aws_quota.checks(here, config(), STACK)) == []
    cloud.quotas["L-1216C47A"] = 29
    finding = only(problems(aws_quota.checks(here, config(), STACK)))
    assert finding.text == "5 of 29 vCPUs free in us-east-1, 6 are needed"
    assert finding.fix.endswith("--desired-value 30")


@pytest.mark.parametrize(
    ("name", "quota"),
    [
        ("g4dn.xlarge", "L-3819A6DF"),
        ("vt1.3xlarge", "L-3819A6DF"),
        ("p5.48xlarge", "L-7212CCBC"),
        ("t3.large", "L-34B43A08"),
    ],
)
def test_which_quota_a_machine_falls_under(name: str, quota: str) -> None:
    found = aws_quota.quota_of(name)
    assert found
    assert found.spot.code == quota
    assert aws_quota.quota_of("trn1.2xlarge") is None


def test_every_machine_of_the_catalog_has_a_quota() -> None:
    from infra.eks.machines import MACHINES

    assert all(aws_quota.quota_of(name) for name in MACHINES)


def test_networks_addresses_and_gateways_are_counted(cloud: Cloud, here: Amazon) -> None:
    cloud.quotas |= {"L-F678F1CE": 1, "L-0263D0A3": 0, "L-FE5A380F": 0}
    assert [item.subject for item in problems(aws_quota.checks(here, config(), STACK))] == [
        "quota VPCs",
        "quota Elastic IPs",
        "quota NAT gateways in a zone",
    ]
    public = config(eks={"publicNodes": True})
    assert [item.subject for item in problems(aws_quota.checks(here, public, STACK))] == ["quota VPCs"]


@pytest.mark.parametrize(("version", "level"), [("UNSUPPORTED", "problem"), ("EXTENDED_SUPPORT", "warning")])
def test_a_version_that_eks_has_left_behind(cloud: Cloud, found: Found, version: str, level: Level) -> None:
    cloud.versions = {"1.35": version, "1.36": "STANDARD_SUPPORT", "1.9": "STANDARD_SUPPORT"}
    finding = only(found(level))
    assert finding.subject == "Kubernetes 1.35"
    assert finding.fix == "pulumi config set --stack aws-g4dn --path eks.version 1.36"


def test_the_end_of_support_is_said_in_time(cloud: Cloud, found: Found) -> None:
    cloud.supported_until = "2020-01-01T00:00:00Z"
    assert "leaves standard support on 2020-01-01" in only(found("warning")).text


def test_the_image_of_the_nodes_has_to_be_there(cloud: Cloud, found: Found) -> None:
    cloud.image = False
    assert only(found("problem")).text == "AL2023 with NVIDIA's driver is not there for 1.35"


def test_a_region_that_is_switched_off(found: Found) -> None:
    stack = config(eks={"region": "ap-east-1", "zones": ["ap-east-1a", "ap-east-1b"]})
    finding = only(found("problem", stack=stack))
    assert (finding.subject, finding.text) == ("region ap-east-1", "is switched off in this account")
    assert finding.fix.startswith("aws account enable-region --region-name ap-east-1")


def test_zones_that_do_not_exist_or_take_no_control_plane(found: Found) -> None:
    zones = client("ec2").describe_availability_zones()["AvailabilityZones"]
    closed = next(zone["ZoneName"] for zone in zones if zone["ZoneId"] == "use1-az3")
    stack = config(eks={"zones": [closed, "us-east-1g", "us-east-1b"]})
    seen = {item.subject: item for item in found("problem", stack=stack)}
    assert seen[f"zone {closed}"].text == "has no place for EKS's control plane"
    assert seen["zone us-east-1g"].text == "is no zone of us-east-1 for you"
    assert "--path 'eks.zones[1]'" in seen["zone us-east-1g"].fix


def test_machines_that_zones_lack(here: Amazon) -> None:
    """moto's list of offers is AWS's of some day: us-east-1e has no g5, us-west-1 no g6."""

    def offers(machine_type: str, here: Amazon, **eks: Any) -> Finding:
        stack = config(nodes={"machineType": machine_type}, eks=eks)
        assert stack.eks
        assert stack.nodes
        return next(item for item in aws._offered(here, stack.eks, stack.nodes) if item.subject == machine_type)

    some = offers("g5.xlarge", here, zones=["us-east-1a", "us-east-1e"])
    assert (some.level, some.text) == ("warning", "is not offered by us-east-1e: its nodes come in the other zones")
    west = {"region": "us-west-1", "zones": ["us-west-1a", "us-west-1c"]}
    none = offers("g6.xlarge", Amazon(here.session, "us-west-1"), **west)
    assert none.level == "problem"
    assert none.text == "is offered by none of the stack's zones; in us-west-1 by none at all"


def test_missing_rights_are_named(cloud: Cloud, here: Amazon) -> None:
    cloud.denied = {"eks:DeleteCluster", "ec2:DeleteSubnet"}
    assert only(problems(aws_rights.checks(here))).text.startswith(
        "ec2:DeleteSubnet, eks:DeleteCluster missing for arn:"
    )


def test_a_session_is_asked_for_as_its_role(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    arn = client("iam").create_role(RoleName="builder", Path="/team/", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    taken = client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", taken["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", taken["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", taken["SessionToken"])
    here = connect(REGION, cloud.session)
    assert here.identity.endswith(":assumed-role/builder/me")
    assert [item.level for item in aws_rights.checks(here)] == ["ok"]
    assert cloud.simulated == "arn:aws:iam::123456789012:role/team/builder"


def test_who_may_not_ask_is_told_so_and_the_rest_goes_on(cloud: Cloud, found: Found) -> None:
    cloud.refused = {"SimulatePrincipalPolicy", "DescribeInstances", "GetSpotPlacementScores"}
    blind = {
        item.subject: item.text
        for item in found("unchecked", stack=config(nodes={"alternatives": ["g4dn.2xlarge", "g4dn.4xlarge"]}))
    }
    assert blind == {
        "rights": "you may not ask (iam:SimulatePrincipalPolicy)",
        "quota of machines": "you may not ask (ec2:DescribeInstances)",
        "spot capacity": "you may not ask (ec2:GetSpotPlacementScores)",
    }
    assert found("problem") == []


def test_spot_capacity_by_awss_own_score(cloud: Cloud, found: Found) -> None:
    stack = config(nodes={"alternatives": ["g4dn.2xlarge", "g4dn.4xlarge"]})
    assert found("warning", stack=stack) == []
    cloud.score = 2
    assert "2 of 10 now" in only(found("warning", stack=stack)).text


def test_the_api_would_not_let_this_machine_in(found: Found) -> None:
    finding = only(found("problem", stack=config(eks={"apiAllowedCidrs": ["203.0.113.128/25"]})))
    assert finding.text == "203.0.113.128/25 does not let 203.0.113.7 in, which is this machine"
    assert finding.fix == "pulumi config set --stack aws-g4dn --path 'eks.apiAllowedCidrs[0]' 203.0.113.7/32"


def test_an_address_that_nobody_tells(monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    monkeypatch.setattr(amazon, "ADDRESS_OF_CALLER", "http://127.0.0.1:9")
    assert only(found("unchecked")).subject == "eks.apiAllowedCidrs"


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
    assert [item.level for item in aws_leftovers.checks(here, config(), STACK)] == ["ok"]


def test_a_cluster_of_somebody_else_has_the_name(here: Amazon) -> None:
    cluster(stack="other")
    finding = only(problems(aws_leftovers.checks(here, config(), STACK)))
    assert (finding.subject, finding.text) == ("cluster", f"{NAME} exists already, and is not of this stack")


def test_what_an_earlier_stack_left_and_would_stop_this_one(here: Amazon) -> None:
    assert [item.level for item in aws_leftovers.checks(here, config(), STACK)] == ["ok"]
    client("logs").create_log_group(logGroupName=f"/aws/eks/{NAME}/cluster")
    client("ecr").create_repository(repositoryName=f"{NAME}/trainyard/trainer")
    client("iam").create_role(RoleName=f"{NAME}-cluster", AssumeRolePolicyDocument=TRUST)
    client("ec2").create_launch_template(LaunchTemplateName=f"{NAME}-system", LaunchTemplateData={})
    key = client("kms").create_key()["KeyMetadata"]["KeyId"]
    client("kms").create_alias(AliasName=f"alias/{NAME}", TargetKeyId=key)
    found = problems(aws_leftovers.checks(here, config(), STACK))
    assert [item.subject for item in found] == ["log group", "repository", "role", "launch template", "key"]
    assert found[0].fix == f"aws logs delete-log-group --region us-east-1 --log-group-name /aws/eks/{NAME}/cluster"


def test_the_names_looked_for_are_those_that_the_stack_takes() -> None:
    taken = {str(item.inputs.get("name", "")) for item in record_anywhere(STACK).all("aws:")}
    assert {fixed.name for fixed in aws_leftovers._fixed(NAME, "")} <= taken


def test_what_has_the_stacks_tags_is_listed(here: Amazon) -> None:
    tags = [{"Key": "app", "Value": "trainyard"}, {"Key": "stack", "Value": STACK}]
    made = client("efs").create_file_system(CreationToken="left", Tags=tags)["FileSystemId"]
    key = client("kms").create_key(Tags=[{"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in tags])[
        "KeyMetadata"
    ]
    client("kms").schedule_key_deletion(KeyId=key["KeyId"], PendingWindowInDays=7)
    finding = only(list(aws_leftovers.checks(here, config(), STACK)))
    assert finding.subject == "leftovers"
    assert finding.text.startswith("1 with the tags")
    assert made in finding.text


def test_without_credentials_it_says_what_it_could_not_see(
    cloud: Cloud, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    finding = only(found("problem"))
    assert (finding.subject, finding.fix.split("   ")[0]) == ("credentials", "aws sso login")
    assert "quota" in only(found("unchecked")).text


def test_a_profile_that_is_not_there(cloud: Cloud, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert only(found("problem")).text == "The config profile (nobody) could not be found (AWS_PROFILE)"


def test_nobody_answers(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(NoAnswer, match="sts does not answer"):
        connect(REGION)


def test_rights_are_asked_for_everything_that_the_stack_declares() -> None:
    declared = {item.type for item in record_anywhere(STACK).all("aws:")}
    assert declared
    assert declared <= set(aws_rights.ACTIONS)


def test_the_command_names_what_to_do_and_never_shows_the_key(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    values = stack_file_values(STACK)
    values["eks"] = {**values["eks"], "region": "ap-east-1", "zones": ["ap-east-1a", "ap-east-1b"]}
    monkeypatch.setattr("infra.doctor.__main__.stack_file_values", lambda _: values)
    assert main([STACK]) == 1
    shown = capsys.readouterr().out
    assert "✗ aws: is not on PATH" in shown
    assert "✓ credentials: account 123456789012" in shown
    assert "\n   aws account enable-region --region-name ap-east-1" in shown
    assert SECRET not in shown
