"""What a proof asks of the clouds about machines and leftovers, against the wire and the models of their SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.loaders import Loader

from infra.config import StackConfig
from infra.eks.doctor.aws_client import Amazon
from infra.eks.proof import LEFTOVERS, Aws
from infra.gke.doctor.google_client import Google
from infra.gke.keys import GkeConfig
from infra.gke.proof import Gcp
from infra.parse import parse
from infra.stackfiles import stack_file_values
from prove.engine import State
from prove.subject import overridden

NODE = "gce://my-project/us-central1-a/gke-prove-1"
INSTANCE = "projects/my-project/zones/us-central1-a/instances/gke-prove-1"


def config(stack: str) -> StackConfig:
    return parse(overridden(stack_file_values(stack), stack, State(stack, Path())), f"prove-{stack}")


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    for _ in range(5):
        if value := condition():
            return value
    raise AssertionError(what)


class Session:
    """Google's answers by path; any other path has an empty answer."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self.answers, self.asked = answers, list[tuple[str, str]]()

    def request(self, method: str, url: str, **_: Any) -> Any:
        path = url.split("/v1/")[1]
        self.asked.append((method, path))
        found = self.answers.get(path) or [{}]
        answer = found.pop(0) if len(found) > 1 else found[0]
        status, body = (answer, {}) if isinstance(answer, int) else (200, answer)
        return SimpleNamespace(status_code=status, ok=status < 300, json=lambda: body)


def google(**answers: list[Any]) -> tuple[Gcp, Session]:
    session = Session(answers)
    return Gcp(lambda: Google("token", session=session)), session  # pyrefly: ignore[bad-argument-type]


def test_a_machine_of_google_is_deleted_by_the_id_of_its_node() -> None:
    cloud, session = google()
    cloud.delete_machine(NODE)
    assert session.asked == [("DELETE", INSTANCE)]


@pytest.mark.parametrize(
    "after",
    [{"id": "1", "status": "TERMINATED"}, {"id": "2", "status": "RUNNING"}, 404],
    ids=["stopped", "anew", "gone"],
)
def test_a_spot_machine_of_google_is_stopped_by_a_simulated_maintenance(after: Any) -> None:
    running = {"id": "1", "status": "RUNNING"}
    cloud, session = google(**{INSTANCE: [running, running, after]})
    assert "simulateMaintenanceEvent" in cloud.interrupt(NODE, until)
    assert ("POST", f"{INSTANCE}/simulateMaintenanceEvent") in session.asked


def test_a_machine_that_only_goes_on_was_not_taken_back() -> None:
    cloud, _ = google(**{INSTANCE: [{"id": "1", "status": "RUNNING"}]})
    with pytest.raises(AssertionError, match="the machine's end"):
        cloud.interrupt(NODE, until)


def test_what_google_still_has_is_found_by_name_by_label_and_on_the_last_page() -> None:
    stack = config("gcp-c3")
    project = f"projects/{stack.section(GkeConfig).project}"
    disks = f"{project}/aggregated/disks"
    found = {
        "items": {"zones/z": {"disks": [{"name": "pvc-1", "labels": {"app": "trainyard", "stack": "prove-gcp-c3"}}]}}
    }
    cloud, _ = google(
        **{
            disks: [{"items": {"zones/y": {"disks": [{"name": "another"}]}}, "nextPageToken": "2"}, found],
            f"{project}/global/networks": [{"items": [{"name": "default"}, {"name": stack.name}]}],
            f"{project}/serviceAccounts": [{"accounts": [{"email": f"{stack.name}-nodes@p.iam"}]}],
        }
    )
    looked, left = cloud.leftovers(stack, "prove-gcp-c3")
    assert left == ["disks pvc-1", f"networks {stack.name}", f"serviceAccounts {stack.name}-nodes@p.iam"]
    assert "clusters" in looked


def test_what_google_has_of_a_stack_whose_name_begins_alike_is_not_left_over() -> None:
    stack = config("gcp-c3")
    project, name = f"projects/{stack.section(GkeConfig).project}", stack.name
    networks = f"https://www.googleapis.com/compute/v1/{project}/global/networks/"
    pool = f"gke-{name}-workers-0123abcd"

    def made(suffix: str) -> dict[str, list[Any]]:
        """What GKE makes for a pool of the cluster NAMEsuffix, in its network; a disk has the cluster's label alone."""
        called, network = pool.replace(name, name + suffix), networks + name + suffix
        return {
            "instances": [{"name": f"{called}-x1", "networkInterfaces": [{"network": network}]}],
            "instanceGroups": [{"name": f"{called}-grp", "network": network}],
            "instanceTemplates": [{"name": called, "properties": {"networkInterfaces": [{"network": network}]}}],
            "disks": [{"name": f"{called}-x1", "labels": {"goog-k8s-cluster-name": name + suffix}}],
            "firewalls": [{"name": f"gke-{name}{suffix}-4567cdef-all", "network": network}],
            "accounts": [{"email": f"{name}{suffix}-nodes@p.iam"}],
        }

    def left(suffixes: tuple[str, ...]) -> list[str]:
        lists: dict[str, list[Any]] = {}
        for suffix in suffixes:
            lists = {kind: [*lists.get(kind, []), *items] for kind, items in made(suffix).items()}
        paths: dict[str, list[Any]] = {f"{project}/serviceAccounts": [{"accounts": lists["accounts"]}]}
        for kind in ("instances", "instanceGroups", "disks"):
            paths[f"{project}/aggregated/{kind}"] = [{"items": {"zones/z": {kind: lists[kind]}}}]
        for kind in ("instanceTemplates", "firewalls"):
            paths[f"{project}/global/{kind}"] = [{"items": lists[kind]}]
        return google(**paths)[0].leftovers(stack, "prove-gcp-c3")[1]

    assert left(("-2", "x")) == []
    assert sorted(left(("", "-2"))) == [
        f"disks {pool}-x1",
        f"firewalls gke-{name}-4567cdef-all",
        f"instanceGroups {pool}-grp",
        f"instanceTemplates {pool}",
        f"instances {pool}-x1",
        f"serviceAccounts {name}-nodes@p.iam",
    ]


#: Reading the models of AWS's services takes longer than all else.
LOADER = Loader()


class Wire:
    """AWS's answers by operation, as the SDK reads them off the wire; the SDK validates the parameters."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[tuple[str, str]]()
        core = botocore.session.Session()
        core.register_component("data_loader", LOADER)
        login = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "x", "region_name": "us-east-2"}
        session = boto3.Session(**login, botocore_session=core)
        session.events.register("before-send.*.*", self._answer)  # pyrefly: ignore[bad-argument-type]
        self.amazon = Amazon(session, "us-east-2", account="123456789012")

    def _answer(self, request: Any, event_name: str, **_: Any) -> AWSResponse:
        operation = event_name.rsplit(".", 1)[1]
        self.asked.append((operation, str(request.body or "")))
        answer = self.answers.get(operation, {})
        if isinstance(answer, list):
            answer = answer.pop(0)
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        content = body if isinstance(body, str) else json.dumps(body)
        kind: Any = {"x-amzn-errortype": body.get("__type", "")} if isinstance(body, dict) else {}
        raw: Any = SimpleNamespace(stream=lambda: [content.encode()])
        return AWSResponse(request.url, status, kind, raw)


ROLE = "<Answer><CreateRoleResult><Role><Arn>arn:aws:iam::1:role/r</Arn></Role></CreateRoleResult></Answer>"
EMPTY = "<Answer/>"
IAM = {"CreateRole": ROLE, "PutRolePolicy": EMPTY, "DeleteRolePolicy": EMPTY, "DeleteRole": EMPTY}


def aws(**answers: Any) -> tuple[Aws, Wire]:
    wire = Wire(**IAM, CreateExperimentTemplate={"experimentTemplate": {"id": "EXT1"}}, **answers)
    return Aws("us-east-2", lambda _: wire.amazon), wire


def test_a_machine_of_aws_is_terminated_by_the_id_of_its_node() -> None:
    cloud, wire = aws(TerminateInstances=EMPTY)
    cloud.delete_machine("aws:///us-east-2a/i-0abc")
    ((operation, body),) = wire.asked
    assert operation == "TerminateInstances"
    assert "i-0abc" in body


def interrupted(**answers: Any) -> tuple[str, Wire]:
    cloud, wire = aws(**answers)
    try:
        return cloud.interrupt("aws:///us-east-2a/i-0abc", until), wire
    finally:
        names = [operation for operation, _ in wire.asked]
        assert names[-3:] == ["DeleteExperimentTemplate", "DeleteRolePolicy", "DeleteRole"]


def test_a_spot_machine_of_aws_is_taken_back_by_an_experiment_that_leaves_nothing() -> None:
    unknown = (400, {"__type": "ValidationException", "message": "The experiment role cannot be assumed"})
    states = [{"experiment": {"state": {"status": status}}} for status in ("running", "completed")]
    told, wire = interrupted(StartExperiment=[unknown, {"experiment": {"id": "EXP1"}}], GetExperiment=states)
    assert "with a notice of 2 minutes" in told
    body = json.loads(next(body for name, body in wire.asked if name == "CreateExperimentTemplate").strip("b'"))
    assert body["targets"]["machine"]["resourceArns"] == ["arn:aws:ec2:us-east-2:123456789012:instance/i-0abc"]
    assert body["actions"]["interrupt"]["parameters"] == {"durationBeforeInterruption": "PT2M"}
    assert body["actions"]["interrupt"]["targets"] == {"SpotInstances": "machine"}


def test_an_experiment_that_fails_says_why_and_leaves_nothing() -> None:
    failed = {"experiment": {"state": {"status": "failed", "reason": "no Spot machine"}}}
    with pytest.raises(AssertionError, match="no Spot machine"):
        interrupted(StartExperiment={"experiment": {"id": "EXP1"}}, GetExperiment=failed)


def test_what_aws_still_has_is_found_by_list() -> None:
    clusters = {"clusters": ["prove-aws-g4dn", "another"]}
    volumes = "<Answer><volumeSet><item><volumeId>vol-1</volumeId></item></volumeSet></Answer>"
    names = "".join(f"<member><RoleName>{name}</RoleName></member>" for name in ("prove-aws-g4dn-nodes", "mine"))
    roles = (
        f"<Answer><ListRolesResult><IsTruncated>false</IsTruncated><Roles>{names}</Roles></ListRolesResult></Answer>"
    )
    xml = {name: EMPTY for name in ("DescribeInstances", "DescribeNatGateways", "DescribeAddresses", "DescribeVpcs")}
    xml |= {name: EMPTY for name in ("DescribeNetworkInterfaces", "DescribeLaunchTemplates")}
    cloud, wire = aws(ListClusters=clusters, DescribeVolumes=volumes, ListRoles=roles, **xml)
    wire.answers["GetResources"] = {"ResourceTagMappingList": [{"ResourceARN": "arn:aws:ec2:::vpc/gone"}]}
    looked, left = cloud.leftovers(config("aws-g4dn"), "prove-aws-g4dn")
    assert left == ["cluster prove-aws-g4dn", "disk vol-1", "role prove-aws-g4dn-nodes"]
    assert "by tag AWS still names 1" in looked
    assert len(wire.asked) == LEFTOVERS.read_text().count("- kind:") + 1
