"""Checks what a stack on AWS needs: login, an enabled region, a supported version, machines, quota, rights.

All checks ask AWS's APIs with the credentials that the provider would use. One that gets no answer says so, and the
others go on.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from infra.config import StackConfig
from infra.doctor import images, prerequisites
from infra.eks.doctor import quota
from infra.eks.doctor.aws_client import Amazon, NoAnswer, connect, own_address
from infra.eks.keys import EksConfig, EksNodes
from infra.eks.machines import by_zone, regions
from infra.eks.rules import NOBODY
from infra.facts import numbers
from infra.features import features
from infra.finding import Finding, ok, or_unchecked, problem, unchecked, warning

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
    yield _program()
    yield prerequisites.kubectl(INSTALL_KUBECTL)
    yield images.builder(config.image)
    try:
        amazon = login(eks.region)
    except NoAnswer as reason:
        yield problem("credentials", str(reason), reason.fix or LOGIN)
        yield unchecked(
            f"region {eks.region}",
            "region, zones, version, machine types, quota and rights were not checked: no credentials",
        )
        return
    yield ok("credentials", f"account {amazon.account}, {amazon.identity}")
    region = list(or_unchecked(f"region {amazon.region}", _region(amazon)))
    yield from region
    if any(found.level == "problem" for found in region):
        return  # there is nothing to look at
    yield from or_unchecked("zones", _zones(amazon, eks))
    yield from or_unchecked(f"Kubernetes {eks.version}", _version(amazon, eks, stack))
    yield from or_unchecked("machines of the workers", _workers(amazon, eks, config.section(EksNodes).machine_types))
    yield from or_unchecked(eks.system_machine_type, _system(amazon, eks))
    yield from or_unchecked("quota of machines", quota.checks(amazon, config))
    yield from or_unchecked("rights", rights(amazon))
    yield from or_unchecked("eks.admins", _creator(amazon, config, stack))
    yield _reached(eks, stack)


def _program() -> Finding:
    if not shutil.which("aws"):
        return problem("aws", "is not on PATH; kubectl's credentials come from it (aws eks get-token)", INSTALL_AWS)
    version = re.match(r"aws-cli/(\d+)\S*", prerequisites.run("aws", "--version") or "")
    if version and int(version[1]) < 2:
        return warning(
            "aws", f"{version[0]} is enough for kubectl, but only version 2 has `aws sso login`", INSTALL_AWS
        )
    return ok("aws", version[0] if version else "is on PATH")


def _region(amazon: Amazon) -> Iterator[Finding]:
    key = f"region {amazon.region}"
    try:
        answer = amazon.ask("ec2", "describe_regions", home=True, RegionNames=[amazon.region], AllRegions=True)
    except NoAnswer as reason:
        if reason.code != "InvalidParameterValue":
            raise
        yield problem(key, "is not a region of AWS", "aws account list-regions   # then: set eks.region")
        return
    if answer["Regions"][0].get("OptInStatus") == "not-opted-in":
        enable = f"aws account enable-region --region-name {amazon.region}   # takes some minutes"
        yield problem(key, "is switched off in this account", enable)
    else:
        yield ok(key, "is on")


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
    answer = amazon.ask("eks", "describe_cluster_versions", includeAll=True)
    offered = {item["clusterVersion"]: item for item in answer["clusterVersions"]}
    standard = [name for name, item in offered.items() if item.get("versionStatus") == "STANDARD_SUPPORT"]
    fix = f"pulumi config set --stack {stack} --path eks.version "
    yield _supported(f"Kubernetes {eks.version}", offered.get(eks.version), sorted(standard, key=numbers), fix)


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


def _workers(amazon: Amazon, eks: EksConfig, types: tuple[str, ...]) -> Iterator[Finding]:
    """Whether the workers' zones have machines for them, as `pulumi up` chooses."""
    pairs = _offerings(amazon, types)
    found = by_zone(eks.zones, types, pairs)
    for name in types:
        if here := [zone for zone in found if name in found[zone]]:
            yield ok(name, f"is offered by {', '.join(here)}")
            continue
        fix = "pulumi config set --path 'eks.zones[0]' ZONE   # or another machine type, or another eks.region"
        finding = warning if found else problem
        yield finding(name, _not_offered(name, eks.zones, pairs, amazon.region), fix)


def _system(amazon: Amazon, eks: EksConfig) -> Iterator[Finding]:
    """Whether the control plane's zones have machines for the system nodes."""
    name, home = eks.system_machine_type, regions()[eks.region].home
    pairs = _offerings(amazon, (name,))
    if missing := [zone for zone in home if (zone, name) not in pairs]:
        yield problem(
            name,
            _not_offered(name, missing, pairs, amazon.region),
            "pulumi config set --path eks.systemMachineType TYPE   # or another eks.region",
        )
    else:
        yield ok(name, f"is offered by {', '.join(home)}")


def _offerings(amazon: Amazon, types: tuple[str, ...]) -> set[tuple[str, str]]:
    """(zone, type) for each of these types that a zone of the region offers."""
    answer = amazon.ask(
        "ec2",
        "describe_instance_type_offerings",
        LocationType="availability-zone-id",
        Filters=[{"Name": "instance-type", "Values": list(types)}],
    )
    return {(item["Location"], item["InstanceType"]) for item in answer["InstanceTypeOfferings"]}


def _not_offered(name: str, zones: Iterable[str], pairs: set[tuple[str, str]], region: str) -> str:
    elsewhere = ", ".join(sorted(zone for zone, offered in pairs if offered == name))
    return f"is not offered by {', '.join(zones)}; in {region} by {elsewhere or 'none at all'}"


def _creator(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    """Refuse the caller in eks.admins of a new cluster: its creator administers it, and EKS refuses a second entry, but
    only when the control plane is up and billed."""
    if config.name in amazon.ask("eks", "list_clusters")["clusters"]:
        return
    # A session's ARN lacks the path of its role: compare kind and name alone.
    me = _who(amazon)
    for at, arn in enumerate(config.section(EksConfig).admins):
        kind, *path = arn.rpartition(":")[2].split("/")
        if amazon.account in arn and (kind, path[-1]) == me:
            yield problem(
                "eks.admins",
                f"names {arn}, which is you: who creates the cluster administers it already",
                f"pulumi config rm --stack {stack} --path 'eks.admins[{at}]'",
            )


def _reached(eks: EksConfig, stack: str) -> Finding:
    """Whether the cluster would let this machine in."""
    key, allowed = "eks.apiAllowedCidrs", [ipaddress.IPv4Network(cidr) for cidr in eks.api_allowed_cidrs]
    try:
        mine = ipaddress.ip_address(own_address() or "")
    except ValueError:
        return unchecked(key, "this machine's public address is not known")
    if any(mine in network for network in allowed):
        return ok(key, f"lets {mine} in, which is this machine")
    # After the ranges of others, but in place of the placeholder, which `pulumi up` refuses.
    at = next((index for index, network in enumerate(allowed) if network.overlaps(NOBODY)), len(allowed))
    return problem(
        key,
        f"{', '.join(map(str, allowed))} does not let {mine} in, which is this machine",
        f"pulumi config set --stack {stack} --path 'eks.apiAllowedCidrs[{at}]' {mine}/{mine.max_prefixlen}",
    )


def permissions() -> dict[str, str]:
    """Action -> an AWS-managed policy that allows it, for all that a stack may make and delete (features.yaml).

    Rights to delete are missing most often, and that is noticed only when the bill goes on.
    """
    return {action: policy for feature in features("eks").values() for action, policy in feature.permissions.items()}


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
