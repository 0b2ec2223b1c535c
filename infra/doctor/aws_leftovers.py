"""What is there already: the stack itself, what an earlier one left behind, or somebody else's under the same name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.config import StackConfig
from infra.doctor.amazon import Amazon, NoAnswer
from infra.doctor.finding import Finding, ok, problem, unchecked, warning

SHOWN = 6


def checks(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    name = config.name
    try:
        cluster = amazon.ask("eks", "describe_cluster", name=name)["cluster"]
    except NoAnswer as reason:
        if reason.code != "ResourceNotFoundException":
            yield unchecked(f"name {name}", str(reason))
            return
    else:
        yield _cluster(cluster, name, stack)
        return
    taken = False
    for finding in _taken(amazon, name):
        taken = True
        yield finding
    yield from _tagged(amazon, stack, free=not taken)


def _cluster(cluster: dict[str, Any], name: str, stack: str) -> Finding:
    tags = cluster.get("tags") or {}
    if tags.get("app") == "trainyard" and tags.get("stack") == stack:
        return ok("names", f"stack {stack} is up: its cluster and the rest are its own")
    return problem(
        "cluster",
        f"{name} exists already, and is not of this stack",
        f"pulumi config set --stack {stack} --path cluster.name OTHER-NAME",
    )


def _taken(amazon: Amazon, name: str) -> Iterator[Finding]:
    """Names that are fixed: making them again would fail in the middle of `up`."""
    region = amazon.region
    group = f"/aws/eks/{name}/cluster"
    try:
        groups = amazon.ask("logs", "describe_log_groups", logGroupNamePrefix=group)["logGroups"]
        if any(item["logGroupName"] == group for item in groups):
            yield problem(
                "log group",
                f"{group} exists, from an earlier cluster of this name",
                f"aws logs delete-log-group --region {region} --log-group-name {group}",
            )
        amazon.ask("ecr", "describe_repositories", repositoryNames=[name])
        yield problem(
            "repository",
            f"{name} exists in ECR",
            f"aws ecr delete-repository --region {region} --repository-name {name} --force",
        )
    except NoAnswer as reason:
        if reason.code != "RepositoryNotFoundException":
            yield unchecked(f"names of {name}", str(reason))


def _tagged(amazon: Amazon, stack: str, *, free: bool) -> Iterator[Finding]:
    """What has the stack's tags, and no cluster."""
    filters = [{"Key": "app", "Values": ["trainyard"]}, {"Key": "stack", "Values": [stack]}]
    try:
        answer = amazon.ask("resourcegroupstaggingapi", "get_resources", TagFilters=filters)
    except NoAnswer as reason:
        yield unchecked("leftovers", str(reason))
        return
    found = [item["ResourceARN"] for item in answer["ResourceTagMappingList"]]
    found = [arn for arn in found if not _going(amazon, arn)]
    if found:
        names = ", ".join(arn.split(":", 5)[5] for arn in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield warning(
            "leftovers",
            f"{len(found)} resources have the tags of stack {stack}, but its cluster is not there: {names}{more} "
            "(AWS lists what was deleted for about an hour longer)",
            f"pulumi destroy --stack {stack}   # what Pulumi knows of; docs/aws.md has the commands for the rest",
        )
    elif free:
        yield ok("names", "nothing of an earlier stack is there")


def _going(amazon: Amazon, arn: str) -> bool:
    """A key that waits for its deletion: free, and listed for a week or more."""
    if ":kms:" not in arn:
        return False
    try:
        return amazon.ask("kms", "describe_key", KeyId=arn)["KeyMetadata"]["KeyState"] == "PendingDeletion"
    except NoAnswer:
        return False
