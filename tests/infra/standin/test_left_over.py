"""The commands of docs/aws.md for the time after a destroy find a living stack, and nothing in an empty account."""

from __future__ import annotations

import re
import shlex
from typing import Any

import jmespath
import pytest

from infra.eks.proof import searches
from infra.stackfiles import ROOT, marks
from tests.infra.recorded import recorded
from tests.infra.standin import built
from tests.infra.standin.built import Built
from tests.infra.standin.conftest import REGION, STACK, account_number
from tests.standin.aws.account import Account

RUNBOOK = (ROOT / "docs" / "aws.md").read_text()
#: The emulation runs no machine, so there is no disk and no interface of a node.
OF_MACHINES = ("describe-instances", "describe-volumes", "describe-network-interfaces")


def commands() -> list[list[str]]:
    """The words of each command under "Destroy, and what is left"."""
    section = RUNBOOK.split("## Destroy, and what is left")[1]
    block = re.findall(r"```bash\n(N=.*?)```", section, re.DOTALL)[0].replace("\\\n", " ")
    name = re.findall(r"N=(\S+);", block)[0]
    lines = [line.split("   #")[0] for line in block.splitlines() if line.startswith("aws ")]
    return [shlex.split(line.replace("$N", name)) for line in lines]


COMMANDS = {words[2]: words for words in commands()}


def printed(account: Account, words: list[str]) -> Any:
    """What the AWS CLI would print: its operations, filters and queries are boto3's, in another form."""
    service, operation = words[1], words[2].replace("-", "_")
    given: dict[str, Any] = {}
    option = ""
    for word in words[3:]:
        if word.startswith("--"):
            option = word.removeprefix("--")
        elif option in ("filters", "filter", "tag-filters"):
            pair: dict[str, Any] = dict(part.split("=", 1) for part in re.split(r",(?=Values=)", word))
            pair["Values"] = pair["Values"].split(",")
            given.setdefault({"tag-filters": "TagFilters"}.get(option, "Filters"), []).append(pair)
        elif option == "log-group-name-prefix":
            given["logGroupNamePrefix"] = word
        else:
            assert option == "query", f"what is --{option}?"
    client = account.client(service)
    if operation == "describe_nat_gateways":
        given["Filter"] = given.pop("Filters")
    pages = client.get_paginator(operation).paginate(**given) if client.can_paginate(operation) else None
    answer = pages.build_full_result() if pages is not None else account.call(service, operation, **given)
    return jmespath.search(words[words.index("--query") + 1], answer)


@pytest.fixture(scope="session")
def tagged(endpoint: str) -> Built:
    """The stack with its tags on everything, which the provider sets and the emulation does not."""
    there = built.up(recorded(STACK), Account(endpoint, account_number("tagged"), REGION))
    given = marks(STACK)
    pairs = [{"Key": key, "Value": value} for key, value in given.items()]
    ids = {urn.rsplit("::", 2)[1].rsplit("$", 1)[-1] + " " + id_: id_ for urn, (id_, _) in there.ids.items()}
    account = there.account
    for item in recorded(STACK).all("aws:ec2/"):
        if item.kind in ("Vpc", "Subnet", "Eip", "NatGateway"):
            own = [{"Key": key, "Value": value} for key, value in item.inputs["tags"].items()]
            account.call("ec2", "create_tags", Resources=[there.ids[item.urn][0]], Tags=pairs + own)
    (system,) = (id_ for kind, id_ in ids.items() if kind.startswith("aws:efs/fileSystem:"))
    account.call("efs", "tag_resource", ResourceId=system, Tags=pairs)
    cluster = account.call("eks", "describe_cluster", name=f"trainyard-{STACK}")["cluster"]
    account.call("eks", "tag_resource", resourceArn=cluster["arn"], tags=dict(given))
    return there


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in OF_MACHINES])
def test_a_stack_that_lives_is_found(tagged: Built, command: str) -> None:
    assert printed(tagged.account, COMMANDS[command])


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_account_has_nothing(endpoint: str, command: str) -> None:
    account = Account(endpoint, account_number("left over"), REGION)
    assert printed(account, COMMANDS[command]) == []


def test_the_runbook_searches_roles_and_logs_as_the_proof_does() -> None:
    """By exact name: those of a stack aws-g4dn-2 are not to be deleted."""
    lists = {row["kind"]: row for row in searches(f"trainyard-{STACK}", STACK)}
    assert COMMANDS["list-roles"][-1] == lists["role"]["found"]
    assert lists["log group"]["arguments"]["logGroupNamePrefix"] in COMMANDS["describe-log-groups"]
