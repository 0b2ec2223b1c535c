"""`trainyard prove` on AWS: EC2 ends a machine, Fault Injection Service interrupts one, and every list is searched."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jmespath
import yaml

from infra.clouds import Until
from infra.config import StackConfig
from infra.eks.doctor.aws_client import Amazon, NoAnswer, connect
from infra.stackfiles import marks

LEFTOVERS = Path(__file__).with_name("leftovers.yaml")
#: Action and notice of the experiment: the shortest notice is the two minutes of a real interruption
#: (docs.aws.amazon.com/fis/latest/userguide/fis-actions-reference.html; awslabs/ec2-spot-workshops,
#: workshops/fis/fisspotinterruption.yaml; read 2026-11-22).
ACTION, NOTICE = "aws:ec2:send-spot-instance-interruptions", "PT2M"
TRUST = {"Effect": "Allow", "Principal": {"Service": "fis.amazonaws.com"}, "Action": "sts:AssumeRole"}
RIGHTS = [
    {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"},
    {"Effect": "Allow", "Action": "ec2:SendSpotInstanceInterruptions", "Resource": "arn:aws:ec2:*:*:instance/*"},
]
ENDED = ("completed", "failed", "stopped", "cancelled")


class Aws:
    def __init__(self, region: str, login: Callable[[str], Amazon] = connect) -> None:
        self.amazon = login(region)

    def delete_machine(self, provider_id: str) -> None:
        self.amazon.ask("ec2", "terminate_instances", InstanceIds=[_instance(provider_id)])

    def interrupt(self, provider_id: str, until: Until) -> str:
        arn = f"arn:aws:ec2:{self.amazon.region}:{self.amazon.account}:instance/{_instance(provider_id)}"
        with self._role() as role, self._template(role, arn) as template:
            experiment = until(lambda: self._started(template), 120, "a role that the experiment may take")

            def ended() -> dict[str, Any] | None:
                state = self.amazon.ask("fis", "get_experiment", id=experiment)["experiment"]["state"]
                return state if state["status"] in ENDED else None

            state = until(ended, 600, "the end of the experiment")
        if state["status"] != "completed":
            raise AssertionError(f"{ACTION}: {state['status']}, {state.get('reason', 'no reason given')}")
        return f"taken back by {ACTION}, with a notice of 2 minutes"

    def _started(self, template: str) -> str | None:
        """Start the experiment and return its id; None while the new role has not reached all of IAM."""
        try:
            begun = self.amazon.ask("fis", "start_experiment", clientToken=_token(), experimentTemplateId=template)
        except NoAnswer as reason:
            if reason.code in ("ValidationException", "AccessDeniedException") and "role" in str(reason).lower():
                return None
            raise
        return str(begun["experiment"]["id"])

    @contextmanager
    def _role(self) -> Iterator[str]:
        """A role for the experiment, for as long as it is needed."""
        name = f"trainyard-prove-{uuid.uuid4().hex[:8]}"
        trust, rights = ({"Version": "2012-10-17", "Statement": part} for part in ([TRUST], RIGHTS))
        made = self.amazon.ask("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        try:
            self.amazon.ask(
                "iam", "put_role_policy", RoleName=name, PolicyName="interrupt", PolicyDocument=json.dumps(rights)
            )
            yield str(made["Role"]["Arn"])
        finally:
            try:
                self.amazon.ask("iam", "delete_role_policy", RoleName=name, PolicyName="interrupt")
            finally:
                self.amazon.ask("iam", "delete_role", RoleName=name)

    @contextmanager
    def _template(self, role: str, arn: str) -> Iterator[str]:
        target = {"resourceType": "aws:ec2:spot-instance", "resourceArns": [arn], "selectionMode": "ALL"}
        action = {
            "actionId": ACTION,
            "parameters": {"durationBeforeInterruption": NOTICE},
            "targets": {"SpotInstances": "machine"},
        }
        made = self.amazon.ask(
            "fis",
            "create_experiment_template",
            clientToken=_token(),
            description="trainyard prove: one Spot machine is taken back",
            stopConditions=[{"source": "none"}],
            targets={"machine": target},
            actions={"interrupt": action},
            roleArn=role,
        )
        template = str(made["experimentTemplate"]["id"])
        try:
            yield template
        finally:
            self.amazon.ask("fis", "delete_experiment_template", id=template)

    def leftovers(self, config: StackConfig, stack: str) -> tuple[str, list[str]]:
        """Search lists, which are right at once: by tag AWS still names deleted resources for about an hour."""
        lists, found = searches(config.name, stack), list[str]()
        for each in lists:
            given = each.get("arguments", {})
            if "filters" in each:
                given = {"Filters": [{"Name": key, "Values": values} for key, values in each["filters"].items()]}
            answer = self.amazon.ask(*each["ask"].split(), **given)
            found += [f"{each['kind']} {name}" for name in jmespath.search(each["found"], answer) or []]
        filters = [{"Key": key, "Values": [value]} for key, value in marks(stack).items()]
        tagged = self.amazon.ask("resourcegroupstaggingapi", "get_resources", TagFilters=filters)
        kinds, count = ", ".join(each["kind"] for each in lists), len(tagged["ResourceTagMappingList"])
        return f"{kinds} of {self.amazon.account} in {self.amazon.region}; by tag AWS still names {count}", found


def searches(name: str, stack: str) -> list[dict[str, Any]]:
    """The lists of leftovers.yaml for a stack and the name of its cluster."""
    text = LEFTOVERS.read_text("utf-8").replace("NAME", name).replace("STACK", marks(stack)["stack"])
    return yaml.safe_load(text)["lists"]


def _instance(provider_id: str) -> str:
    """The instance's id in aws:///ZONE/i-..., a node's spec.providerID."""
    return provider_id.rsplit("/", 1)[-1]


def _token() -> str:
    return uuid.uuid4().hex
