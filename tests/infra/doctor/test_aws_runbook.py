"""The commands of docs/aws.md for the time after a destroy: what they find, and nothing in an empty account."""

from __future__ import annotations

import re
import shlex
from typing import Any

import jmespath

from infra.eks.doctor.aws_client import Amazon
from infra.eks.proof import searches
from infra.stackfiles import ROOT, marks
from tests.infra.doctor.conftest import NAME, STACK, TRUST, client

TAGS = [{"Key": key, "Value": value} for key, value in {**marks(STACK), "Name": NAME}.items()]
#: The emulation runs no machine, so there is no disk and no interface of a node.
OF_MACHINES = ("describe-instances", "describe-volumes", "describe-network-interfaces")


def commands() -> dict[str, list[str]]:
    """The words of each command under "Destroy, and what is left", by its operation."""
    section = (ROOT / "docs" / "aws.md").read_text().split("## Destroy, and what is left")[1]
    block = re.findall(r"```bash\n(N=.*?)```", section, re.DOTALL)[0].replace("\\\n", " ")
    name = re.findall(r"N=(\S+);", block)[0]
    lines = [line.split("   #")[0] for line in block.splitlines() if line.startswith("aws ")]
    return {words[2]: words for words in (shlex.split(line.replace("$N", name)) for line in lines)}


COMMANDS = commands()


def printed(words: list[str]) -> Any:
    """What the AWS CLI would print: its operations, filters and queries are boto3's, in another form."""
    operation, given, option = words[2].replace("-", "_"), {}, ""
    for word in words[3:]:
        if word.startswith("--"):
            option = word.removeprefix("--")
        elif option in ("filters", "filter", "tag-filters"):
            pair: dict[str, Any] = dict(part.split("=", 1) for part in re.split(r",(?=Values=)", word))
            pair["Values"] = pair["Values"].split(",")
            argument = "TagFilters" if option == "tag-filters" else "Filter" if "nat" in operation else "Filters"
            given.setdefault(argument, []).append(pair)
        elif option == "log-group-name-prefix":
            given["logGroupNamePrefix"] = word
        else:
            assert option == "query", f"what is --{option}?"
    answer = getattr(client(words[1]), operation)(**given)
    return jmespath.search(words[words.index("--query") + 1], answer)


def leave_everything() -> None:
    """Make one of each kind that a stack makes, with its name and tags."""
    ec2 = client("ec2")

    def tagged(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": TAGS}]

    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tagged("vpc"))["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip"))["AllocationId"]
    ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, TagSpecifications=tagged("natgateway"))
    client("efs").create_file_system(CreationToken="x", Tags=TAGS)
    client("ecr").create_repository(repositoryName=f"{NAME}/trainyard/trainer")
    client("logs").create_log_group(logGroupName=f"/aws/eks/{NAME}/cluster")
    client("iam").create_role(RoleName=f"{NAME}-cluster", AssumeRolePolicyDocument=TRUST)
    client("eks").create_cluster(
        name=NAME,
        roleArn="arn:aws:iam::123456789012:role/x",
        resourcesVpcConfig={"subnetIds": [subnet]},
        tags=marks(STACK),
    )


def test_each_command_finds_what_is_left_and_nothing_in_an_empty_account(here: Amazon) -> None:
    assert {name: printed(words) for name, words in COMMANDS.items() if printed(words)} == {}
    leave_everything()
    assert {name for name, words in COMMANDS.items() if printed(words)} == COMMANDS.keys() - {*OF_MACHINES}


def test_roles_and_logs_are_searched_as_the_proof_does() -> None:
    """By exact name: those of a stack aws-g4dn-2 are not to be deleted."""
    lists = {row["kind"]: row for row in searches(NAME, STACK)}
    assert COMMANDS["list-roles"][-1] == lists["role"]["found"]
    assert lists["log group"]["arguments"]["logGroupNamePrefix"] in COMMANDS["describe-log-groups"]
