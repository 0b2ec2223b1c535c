"""An emulated AWS for the doctor's tests.

moto's server stands in for AWS. Answers that it lacks (versions of EKS, quotas, the simulation of rights) are given
on the wire, so that the SDK parses them as it parses AWS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
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

from infra.config import StackConfig
from infra.eks.doctor import aws_client, checks
from infra.eks.doctor.aws_client import Amazon, connect
from infra.finding import Finding, Level
from infra.parse import parse
from tests.served import served

STACK, REGION, NAME = "aws-g4dn", "us-east-1", "trainyard-aws-g4dn"
ZONES = ["use1-az1", "use1-az2", "use1-az4"]
ADDRESS = "203.0.113.7"
KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
LOADER = Loader()


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
    """Answers of AWS that moto lacks, by quota code and by operation, and a session that receives them."""

    def __init__(self) -> None:
        self.quotas = {"L-3819A6DF": 64.0, "L-DB2E81BA": 0.0, "L-1216C47A": 32.0, "L-F678F1CE": 5.0}
        self.quotas |= {"L-0263D0A3": 5.0, "L-FE5A380F": 5.0, "L-1194D53C": 100.0}
        self.defaults: dict[str, float] = {}
        self.versions = {"1.34": "STANDARD_SUPPORT", "1.35": "STANDARD_SUPPORT", "1.31": "EXTENDED_SUPPORT"}
        self.denied: set[str] = set()
        self.refused: set[str] = set()
        """Operations of the XML services that the caller may not use."""
        self.simulated: str | None = None

    def session(self) -> boto3.Session:
        core = botocore.session.Session()
        # Share the loader: reading the service models again takes longer than everything else.
        core.register_component("data_loader", LOADER)
        made = boto3.Session(botocore_session=core)
        for service, operation, answer in (
            ("service-quotas", "GetServiceQuota", self._quota),
            ("service-quotas", "GetAWSDefaultServiceQuota", self._default),
            ("eks", "DescribeClusterVersions", self._versions),
            ("iam", "SimulatePrincipalPolicy", self._simulate),
        ):
            # pyrefly: ignore[bad-argument-type]
            made.events.register_last(f"before-send.{service}.{operation}", answer)
        for operation in ("ec2.DescribeInstances", "iam.SimulatePrincipalPolicy"):
            made.events.register_first(f"before-send.{operation}", self._refuse)  # pyrefly: ignore[bad-argument-type]
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
        found = [{"clusterVersion": name, "versionStatus": status} for name, status in self.versions.items()]
        return _answer(request, {"clusterVersions": found})

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


def _answer(request: Any, content: dict[str, Any], status: int = 200) -> AWSResponse:
    headers = {"x-amzn-errortype": content["__type"]} if "__type" in content else {}
    # pyrefly: ignore[bad-argument-type]
    return AWSResponse(request.url, status, headers, Raw(json.dumps(content).encode()))


def _xml(request: Any, content: str, status: int = 200) -> AWSResponse:
    return AWSResponse(request.url, status, {}, Raw(content.encode()))  # pyrefly: ignore[bad-argument-type]


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def echo() -> Iterator[str]:
    """Address of a server that returns the caller's address, as AWS's own service does."""

    with served(lambda _: (200, f"{ADDRESS}\n".encode())) as address:
        yield f"http://{address}"


@pytest.fixture
def cloud(moto: str, echo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # None of this machine's programs, which know of its own stacks.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(aws_client, "ADDRESS_OF_CALLER", echo)
    requests.post(f"{moto}/moto-api/reset", timeout=30)
    return Cloud()


Found = Callable[..., list[Finding]]


@pytest.fixture
def found(cloud: Cloud) -> Found:
    """The findings of some levels, without those about this machine's programs, of which none is there."""

    def look(*levels: Level, stack: StackConfig | None = None) -> list[Finding]:
        def login(region: str) -> Amazon:
            return connect(region, cloud.session)

        findings = checks.checks(stack or config(), STACK, login)
        return [item for item in findings if item.level in levels and item.key not in ("aws", "kubectl", "image")]

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
    return Cloud().session().client(service, region_name=REGION)  # pyrefly: ignore[no-matching-overload]
