"""Checks what a stack on AWS needs: an account, an enabled region, a supported version, machines in the zones, quota,
rights.

All checks ask AWS's APIs with the credentials that the provider would use. One that gets no answer says so, and the
others go on. The longer checks are in machines.py, quota.py and leftovers.py.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from typing import Any

from infra.config import StackConfig
from infra.doctor import images, prerequisites
from infra.doctor.finding import Finding, ok, or_unchecked, problem, unchecked, warning
from infra.eks.doctor import leftovers, machines, quota
from infra.eks.doctor.aws_client import Amazon, NoAnswer, connect, own_address
from infra.eks.keys import EksConfig, EksNodes, EksStorage, versions
from infra.eks.machines import regions
from infra.eks.rules import NOBODY
from infra.needs import features, numbers

LOGIN = "aws sso login   # or: aws configure sso; or: aws configure, with an access key"
#: How the names of roles begin that IAM Identity Center makes: AWSReservedSSO_PERMISSIONSET_HASH
#: (docs.aws.amazon.com/singlesignon/latest/userguide/referencingpermissionsets.html). IAM refuses to change them.
SSO_ROLE = "AWSReservedSSO_"
INSTALL_AWS = "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
INSTALL_KUBECTL = "https://kubernetes.io/docs/tasks/tools/#kubectl"
#: Days before the end of support at which to warn: an upgrade that is due within a quarter should be planned.
SUPPORT_DAYS = 90


def checks(config: StackConfig, stack: str, login: Callable[[str], Amazon] = connect) -> Iterator[Finding]:
    """All checks, those that need no cloud first."""
    eks = config.section(EksConfig)
    yield from _program()
    yield from prerequisites.kubectl(INSTALL_KUBECTL)
    yield from images.builder(config.image)
    try:
        amazon = login(eks.region)
    except NoAnswer as reason:
        yield problem("credentials", str(reason), reason.fix or LOGIN)
        yield unchecked(
            f"region {eks.region}",
            "account, region, rights, version, machine types, quota and names were not checked: no credentials",
        )
        return
    yield from _identity(amazon)
    if not (yield from _region(amazon)):
        return
    yield from _zones(amazon, eks)
    yield from _version(amazon, eks, stack)
    yield from machines.offered(amazon, eks, config.section(EksNodes))
    yield from machines.driver(config)
    yield from _file_system(amazon, config, stack)
    yield from quota.checks(amazon, config, stack)
    yield from rights(amazon)
    yield from leftovers.checks(amazon, config, stack)
    yield from _reached(eks, stack)


def _program() -> Iterator[Finding]:
    if not shutil.which("aws"):
        yield problem("aws", "is not on PATH; kubectl's credentials come from it (aws eks get-token)", INSTALL_AWS)
        return
    version = re.match(r"aws-cli/(\d+)\S*", prerequisites.run("aws", "--version") or "")
    if version and int(version[1]) < 2:
        yield warning("aws", f"{version[0]} is enough for kubectl, but only version 2 has `aws sso login`", INSTALL_AWS)
    else:
        yield ok("aws", version[0] if version else "is on PATH")


def _identity(amazon: Amazon) -> Iterator[Finding]:
    yield ok("credentials", f"account {amazon.account}, {amazon.identity}")


def _region(amazon: Amazon) -> Generator[Finding, None, bool]:
    """Whether the region answers; without it there is nothing to look at."""
    subject = f"region {amazon.region}"
    try:
        answer = amazon.ask("ec2", "describe_regions", home=True, RegionNames=[amazon.region], AllRegions=True)
    except NoAnswer as reason:
        if reason.code == "InvalidParameterValue":
            yield problem(subject, "is not a region of AWS", "aws account list-regions   # then: set eks.region")
            return False
        yield unchecked(subject, str(reason))
        return True
    if answer["Regions"][0].get("OptInStatus") == "not-opted-in":
        yield problem(
            subject,
            "is switched off in this account",
            f"aws account enable-region --region-name {amazon.region}   # takes some minutes",
        )
        return False
    yield ok(subject, "is on")
    return True


@or_unchecked("zones")
def _zones(amazon: Amazon, eks: EksConfig) -> Iterator[Finding]:
    """Whether the account has the zones of the workers and of the control plane."""
    answer = amazon.ask("ec2", "describe_availability_zones")
    known = {zone["ZoneId"]: zone["ZoneName"] for zone in answer["AvailabilityZones"]}
    home = regions()[eks.region].home
    for zone in home:
        if zone not in known:
            why = "hosts the control plane and system nodes (infra/eks/zones.yaml), but your account does not have it"
            yield problem(f"zone {zone}", why, "pulumi config set --path eks.region REGION   # another")
    for zone in eks.zones:
        if zone not in known:
            yield problem(
                f"zone {zone}",
                f"is not a zone of {amazon.region} in your account",
                f"pulumi config set --path 'eks.zones[{eks.zones.index(zone)}]' ZONE   # of {', '.join(sorted(known))}",
            )
    if {*home, *eks.zones} <= known.keys():
        yield ok("zones", ", ".join(f"{zone} ({known[zone]})" for zone in eks.zones))


def _version(amazon: Amazon, eks: EksConfig, stack: str) -> Iterator[Finding]:
    """Whether EKS supports this version."""
    subject = f"Kubernetes {eks.version}"
    fix = f"pulumi config set --stack {stack} --path eks.version "
    try:
        answer = amazon.ask("eks", "describe_cluster_versions", includeAll=True)
    except NoAnswer as reason:
        end = versions()[eks.version].get("standard_support")
        yield unchecked(subject, f"{reason}{f'; on our list it is supported until {end}' if end else ''}")
    else:
        offered = {item["clusterVersion"]: item for item in answer["clusterVersions"]}
        standard = sorted(
            (name for name, item in offered.items() if item.get("versionStatus") == "STANDARD_SUPPORT"), key=numbers
        )
        yield _supported(subject, offered.get(eks.version), standard, fix)


def _supported(subject: str, found: dict[str, Any] | None, standard: list[str], fix: str) -> Finding:
    newest = standard[-1] if standard else "VERSION"
    status = found.get("versionStatus") if found else None
    if found is None or status == "UNSUPPORTED":
        return problem(subject, f"is not offered by EKS; there are: {', '.join(standard)}", f"{fix}{newest}")
    if status == "EXTENDED_SUPPORT":
        return problem(
            subject, "is out of standard support, and EKS upgrades such a cluster by itself", f"{fix}{newest}"
        )
    end = found.get("endOfStandardSupportDate")
    if end is None:
        return ok(subject, "is supported")
    if (end - datetime.now(UTC)).days < SUPPORT_DAYS:
        return warning(
            subject, f"leaves standard support on {end:%Y-%m-%d}; EKS upgrades it by itself then", f"{fix}{newest}"
        )
    return ok(subject, f"is supported until {end:%Y-%m-%d}")


@or_unchecked("EFS")
def _file_system(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    """Whether EFS answers in the region, or the file system that the stack takes over exists and can be mounted."""
    given = config.section(EksStorage).disk
    which: dict[str, Any] = {"FileSystemId": given} if given else {}
    try:
        amazon.ask("efs", "describe_file_systems", **which)
        targets = amazon.ask("efs", "describe_mount_targets", **which)["MountTargets"] if given else []
    except NoAnswer as reason:
        if reason.code != "FileSystemNotFound":
            raise
        yield problem(
            f"file system {given}",
            f"does not exist in {amazon.region}",
            f"aws efs describe-file-systems --region {amazon.region}   # then: set storage.disk",
        )
        return
    if targets and not leftovers.is_up(amazon, config.name, stack):
        networks = ", ".join(sorted({target["VpcId"] for target in targets}))
        yield problem(
            f"file system {given}",
            f"is mounted in {networks}; EFS lets one network mount it",
            f"aws efs delete-mount-target --region {amazon.region} --mount-target-id "
            f"{targets[0]['MountTargetId']}   # each of them",
        )
    else:
        yield ok("EFS", f"{given} is there" if given else f"answers in {amazon.region}")


def _reached(eks: EksConfig, stack: str) -> Iterator[Finding]:
    """Whether the cluster would let this machine in."""
    allowed = [ipaddress.IPv4Network(cidr) for cidr in eks.api_allowed_cidrs]
    address = own_address()
    try:
        mine = ipaddress.ip_address(address or "")
    except ValueError:
        yield unchecked("eks.apiAllowedCidrs", "this machine's public address is not known")
        return
    if any(mine in network for network in allowed):
        yield ok("eks.apiAllowedCidrs", f"lets {mine} in, which is this machine")
    else:
        # After the ranges of others, but in place of the placeholder, which `pulumi up` refuses.
        at = next((index for index, network in enumerate(allowed) if network.overlaps(NOBODY)), len(allowed))
        yield problem(
            "eks.apiAllowedCidrs",
            f"{', '.join(map(str, allowed))} does not let {mine} in, which is this machine",
            f"pulumi config set --stack {stack} --path 'eks.apiAllowedCidrs[{at}]' {mine}/{mine.max_prefixlen}",
        )


def permissions() -> dict[str, str]:
    """Action -> an AWS-managed policy that allows it, for all that a stack may make and delete (infra/eks/needs.yaml).

    Rights to delete are missing most often, and that is noticed only when the bill goes on.
    """
    return {action: policy for feature in features("eks").values() for action, policy in feature.permissions.items()}


@or_unchecked("rights")
def rights(amazon: Amazon) -> Iterator[Finding]:
    """Ask IAM to simulate whether the caller may do what `pulumi up` and `pulumi destroy` do."""
    if amazon.identity.endswith(":root"):
        yield ok("rights", "the root user has all")
        return
    policies = permissions()
    actions = sorted(policies)
    answer = amazon.ask(
        "iam", "simulate_principal_policy", home=True, PolicySourceArn=_principal(amazon), ActionNames=actions
    )
    missing = [item["EvalActionName"] for item in answer["EvaluationResults"] if item["EvalDecision"] != "allowed"]
    if not missing:
        yield ok(
            "rights", f"all {len(actions)} that were asked for; conditions and organisation policies are not simulated"
        )
    kind, name = _who(amazon)
    for policy in sorted({policies[action] for action in missing}):
        lacking = [action for action in missing if policies[action] == policy]
        shown = ", ".join(lacking[:8]) + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
        arn = f"arn:aws:iam::aws:policy/{policy}"
        fix = f"aws iam attach-{kind}-policy --{kind}-name {name} --policy-arn {arn}"
        if name.startswith(SSO_ROLE):  # only IAM Identity Center changes its roles
            permission_set = name.removeprefix(SSO_ROLE).rpartition("_")[0]
            fix = f"in IAM Identity Center, attach {arn} to the permission set {permission_set}"
        yield problem("rights", f"{amazon.identity} lacks {shown}", f"{fix}   # by an administrator, see docs/aws.md")


def _principal(amazon: Amazon) -> str:
    """The user or role whose policies count; a session of a role has none of its own.

    Raises:
        NoAnswer: the session's role cannot be read.
    """
    kind, name = _who(amazon)
    # The role's own ARN may have a path, so IAM is asked for it.
    return amazon.identity if kind == "user" else amazon.ask("iam", "get_role", home=True, RoleName=name)["Role"]["Arn"]


def _who(amazon: Amazon) -> tuple[str, str]:
    """(user or role, its name) of arn:aws:iam::123456789012:user/PATH/NAME or ...:assumed-role/ROLE/SESSION."""
    kind, *path = amazon.identity.rpartition(":")[2].split("/")
    return ("role", path[0]) if kind == "assumed-role" else ("user", path[-1])
