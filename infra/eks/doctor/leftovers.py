"""Checks what exists already: the stack itself, what an earlier one left behind, or others' things of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.config import StackConfig
from infra.doctor import prerequisites
from infra.doctor.finding import Finding, ok, or_unchecked, problem, unchecked, warning
from infra.eks.doctor.aws_client import Amazon, NoAnswer
from infra.eks.keys import EksConfig, EksStorage
from infra.image import TRAINER
from infra.stackfiles import is_marked, marks

FILE = Path(__file__).parent.parent / "leftovers.yaml"
SHOWN = 6
#: Prefixes of the last part of an ARN.
FILE_SYSTEM, KEY = "file-system/", "key/"
#: The services' error codes for what does not exist.
ABSENT = (
    "ResourceNotFoundException",
    "RepositoryNotFoundException",
    "NoSuchEntity",
    "NotFoundException",
    "InvalidLaunchTemplateName.NotFoundException",
)


def checks(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    name = config.name
    try:
        cluster = amazon.ask("eks", "describe_cluster", name=name)["cluster"]
    except NoAnswer as reason:
        if reason.code not in ABSENT:
            yield unchecked(f"name {name}", str(reason))
            return
    else:
        yield _cluster(cluster, name, stack)
        return
    yield from _creator(amazon, config, stack)
    made = prerequisites.in_state(stack)
    taken = list(_taken(amazon, name, made))
    yield from taken
    yield from _tagged(amazon, config, stack, made, free=not taken)


def is_up(amazon: Amazon, name: str, stack: str) -> bool:
    """Whether the stack's cluster exists."""
    try:
        return is_marked(amazon.ask("eks", "describe_cluster", name=name)["cluster"].get("tags"), stack)
    except NoAnswer:
        return False


def _cluster(cluster: dict[str, Any], name: str, stack: str) -> Finding:
    if is_marked(cluster.get("tags"), stack):
        return ok("names", f"stack {stack} is up: its cluster and the rest are its own")
    return problem(
        "cluster",
        f"{name} exists already, and is not of this stack",
        f"pulumi config set --stack {stack} --path cluster.name OTHER-NAME",
    )


def _creator(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    """Refuse the caller in eks.admins: the creator of a cluster administers it, and EKS refuses a second entry."""
    # arn:aws:sts::123456789012:assumed-role/ROLE/SESSION, arn:aws:iam::123456789012:user/PATH/NAME
    who = amazon.identity.replace(":sts:", ":iam:").replace(":assumed-role/", ":role/")
    who = who.rpartition("/")[0] if ":role/" in who else who
    for at, arn in enumerate(config.section(EksConfig).admins):
        # A session's ARN lacks the path of its role.
        if (arn.partition("/")[0], arn.rpartition("/")[2]) == (who.partition("/")[0], who.rpartition("/")[2]):
            yield problem(
                "eks.admins",
                f"names {arn}, which is you: who creates the cluster administers it already",
                f"pulumi config rm --stack {stack} --path 'eks.admins[{at}]'",
            )


def _taken(amazon: Amazon, name: str, made: set[str]) -> Iterator[Finding]:
    """Fixed names that are taken, but not by what the stack's state has: `up` would fail in the middle.

    One of each kind stands for the others: what leaves one behind leaves them all.
    """
    for row in fixed(name, amazon.region):
        try:
            amazon.ask(row["service"], row["operation"], **row["given"])
        except NoAnswer as reason:
            if reason.code not in ABSENT:
                yield unchecked(row["what"], str(reason))
        else:
            if row["name"] not in made:
                yield problem(row["what"], f"{row['name']} exists, from an earlier stack of this name", row["fix"])


def fixed(name: str, region: str) -> list[dict[str, Any]]:
    """The rows of leftovers.yaml for a stack."""
    return rows("fixed", NAME=name, REGION=region, IMAGE=TRAINER.repository)


def rows(part: str, **names: str) -> list[dict[str, Any]]:
    """Part of leftovers.yaml, with names in place of the placeholders."""
    text = FILE.read_text("utf-8")
    for placeholder, name in {"ROLES": yaml.safe_load(text)["roles"], **names}.items():
        text = text.replace(placeholder, name)
    return yaml.safe_load(text)[part]


@or_unchecked("leftovers")
def _tagged(amazon: Amazon, config: StackConfig, stack: str, made: set[str], *, free: bool) -> Iterator[Finding]:
    """Things with the stack's tags that its state does not have, although its cluster does not exist."""
    filters = [{"Key": key, "Values": [value]} for key, value in marks(stack).items()]
    answer = amazon.ask("resourcegroupstaggingapi", "get_resources", TagFilters=filters)
    arns = [item["ResourceARN"] for item in answer["ResourceTagMappingList"]]
    # kind/id, where some kinds have no ARN in the state.
    named = {arn: arn.split(":", 5)[5] for arn in arns}
    found = [name for arn, name in named.items() if not {arn, name.partition("/")[2]} & made]
    systems = [name.removeprefix(FILE_SYSTEM) for name in found if name.startswith(FILE_SYSTEM)]
    kept = [name for name in systems if name != config.section(EksStorage).disk]
    for name in kept:
        yield warning(
            "file system",
            f"{name} is there from an earlier stack {stack}, and is still billed",
            f"pulumi config set --stack {stack} --path storage.disk {name}   # uses it; or: aws efs delete-file-system "
            f"--region {amazon.region} --file-system-id {name}",
        )
    rest = [name for name in found if not name.startswith(FILE_SYSTEM) and not _going(amazon, name)]
    if rest:
        more = f" and {len(rest) - SHOWN} more" if len(rest) > SHOWN else ""
        yield warning(
            "leftovers",
            f"{len(rest)} with the tags of stack {stack}, whose cluster is not there: {', '.join(rest[:SHOWN])}{more} "
            "(AWS lists what was deleted for about an hour longer)",
            f"pulumi destroy --stack {stack}   # what Pulumi knows of; docs/aws.md has the commands for the rest",
        )
    elif free and not kept:
        own = (
            ", besides what an earlier `pulumi up` made, with which the next goes on" if len(found) < len(named) else ""
        )
        yield ok("names", f"nothing of an earlier stack is there{own}")


def _going(amazon: Amazon, name: str) -> bool:
    """Whether it is a key that waits for its deletion, which is free and stays listed for a week or more."""
    if not name.startswith(KEY):
        return False
    try:
        key = amazon.ask("kms", "describe_key", KeyId=name.removeprefix(KEY))
    except NoAnswer:
        return False
    return key["KeyMetadata"]["KeyState"] == "PendingDeletion"
