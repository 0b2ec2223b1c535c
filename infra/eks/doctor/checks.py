"""Checks what a stack on AWS needs: login, an enabled region, a supported version, machines, quota, rights.

All checks ask AWS's APIs with the credentials that the provider would use. One that gets no answer says so, and the
others go on.
"""

from __future__ import annotations

import ipaddress
import shutil
from collections.abc import Callable, Iterable, Iterator

from infra.config import StackConfig
from infra.doctor import images, prerequisites
from infra.eks.doctor import quota
from infra.eks.doctor.aws_client import Amazon, NoAnswer, connect, own_address
from infra.eks.keys import EksConfig, EksNodes
from infra.eks.machines import by_zone, regions
from infra.eks.rules import NOBODY
from infra.facts import numbers
from infra.features import features
from infra.finding import Finding, ok, or_unchecked, problem, unchecked

#: One command for any reason: an expired session, a broken file, a profile that is not there.
LOGIN = (
    "aws sts get-caller-identity   # fails too? aws sso login, or aws configure; aws configure list shows what counts"
)
INSTALL_AWS = "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
INSTALL_KUBECTL = "https://kubernetes.io/docs/tasks/tools/#kubectl"


def checks(config: StackConfig, stack: str, login: Callable[[str], Amazon] = connect) -> Iterator[Finding]:
    """All checks, those that need no cloud first."""
    eks = config.section(EksConfig)
    if shutil.which("aws"):
        yield ok("aws", "is on PATH")
    else:
        yield problem("aws", "is not on PATH; kubectl's credentials come from it (aws eks get-token)", INSTALL_AWS)
    yield prerequisites.kubectl(INSTALL_KUBECTL)
    yield images.builder(config.image)
    try:
        amazon = login(eks.region)
    except NoAnswer as reason:
        yield problem("credentials", str(reason), LOGIN)
        yield unchecked(
            f"region {eks.region}", "region, version, machine types, quota and rights were not checked: no credentials"
        )
        return
    yield ok("credentials", f"account {amazon.account}, {amazon.identity}")
    region = list(or_unchecked(f"region {amazon.region}", _region(amazon)))
    yield from region
    if any(found.level == "problem" for found in region):
        return  # there is nothing to look at
    yield from or_unchecked(f"Kubernetes {eks.version}", _version(amazon, eks, stack))
    yield from or_unchecked("machines", _machines(amazon, eks, config.section(EksNodes).machine_types))
    yield from or_unchecked("quota of machines", quota.checks(amazon, config))
    yield from or_unchecked("eks.admins", _creator(amazon, config, stack))
    yield from or_unchecked("rights", rights(amazon))
    yield _reached(eks, stack)


def _region(amazon: Amazon) -> Iterator[Finding]:
    key = f"region {amazon.region}"
    answer = amazon.ask("ec2", "describe_regions", home=True, RegionNames=[amazon.region], AllRegions=True)
    if answer["Regions"][0].get("OptInStatus") == "not-opted-in":
        enable = f"aws account enable-region --region-name {amazon.region}   # takes some minutes"
        yield problem(key, "is switched off in this account", enable)
    else:
        yield ok(key, "is on")


def _version(amazon: Amazon, eks: EksConfig, stack: str) -> Iterator[Finding]:
    """Whether EKS gives standard support to this version."""
    key, answer = f"Kubernetes {eks.version}", amazon.ask("eks", "describe_cluster_versions", includeAll=True)
    listed = [item for item in answer["clusterVersions"] if item.get("versionStatus") == "STANDARD_SUPPORT"]
    standard = sorted((item["clusterVersion"] for item in listed), key=numbers)
    if eks.version in standard:
        yield ok(key, "has standard support")
    else:
        text = f"has no standard support, and EKS upgrades such a cluster by itself; allowed: {', '.join(standard)}"
        fix = f"pulumi config set --stack {stack} --path eks.version {standard[-1] if standard else 'VERSION'}"
        yield problem(key, text, fix)


def _machines(amazon: Amazon, eks: EksConfig, types: tuple[str, ...]) -> Iterator[Finding]:
    """Whether the workers' zones have machines for them, as `pulumi up` chooses, and the control plane's for the system
    nodes."""
    system, home = eks.system_machine_type, regions()[eks.region].home
    answer = amazon.ask(
        "ec2",
        "describe_instance_type_offerings",
        LocationType="availability-zone-id",
        Filters=[{"Name": "instance-type", "Values": [*types, system]}],
    )
    pairs = {(item["Location"], item["InstanceType"]) for item in answer["InstanceTypeOfferings"]}
    elsewhere = "pulumi config set --path 'eks.zones[0]' ZONE   # or another machine type, or another eks.region"
    if found := by_zone(eks.zones, types, pairs):
        zones = ", ".join(f"{zone} ({', '.join(offered)})" for zone, offered in found.items())
        yield ok("machines of the workers", zones)
    else:
        yield problem("machines of the workers", _not_offered(types, eks.zones, pairs), elsewhere)
    if {(zone, system) for zone in home} <= pairs:
        yield ok(system, f"is offered by {', '.join(home)}")
    else:
        another = "pulumi config set --path eks.systemMachineType TYPE   # or another eks.region"
        without = [zone for zone in home if (zone, system) not in pairs]
        yield problem(system, _not_offered((system,), without, pairs), another)


def _not_offered(types: tuple[str, ...], zones: Iterable[str], pairs: set[tuple[str, str]]) -> str:
    having = sorted({zone for zone, offered in pairs if offered in types})
    return (
        f"{' or '.join(types)} is not offered by {', '.join(zones)}; by {', '.join(having) or 'no zone of the region'}"
    )


def _creator(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    """Refuse the caller in eks.admins of a new cluster: its creator administers it, and EKS refuses a second entry, but
    only when the control plane is up and billed."""
    if config.name in amazon.ask("eks", "list_clusters")["clusters"]:
        return
    # user/PATH/NAME, or assumed-role/NAME/SESSION, which has not the path of its role: kind and name are compared.
    kind, *path = amazon.identity.rpartition(":")[2].split("/")
    me = ("role", path[0]) if kind == "assumed-role" else (kind, *path[-1:])
    for at, arn in enumerate(config.section(EksConfig).admins):
        kind, *path = arn.rpartition(":")[2].split("/")
        if amazon.account in arn and (kind, *path[-1:]) == me:
            told = f"names {arn}, which is you: who creates the cluster administers it already"
            yield problem("eks.admins", told, f"pulumi config rm --stack {stack} --path 'eks.admins[{at}]'")


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
    who = amazon.identity
    if who.endswith(":root"):
        yield ok("rights", "the root user has all")
        return
    if ":assumed-role/" in who:  # a session has no policies of its own; its role's ARN may have a path, so IAM is asked
        who = amazon.ask("iam", "get_role", home=True, RoleName=who.split("/")[1])["Role"]["Arn"]
    policies = permissions()
    answer = amazon.ask(
        "iam", "simulate_principal_policy", home=True, PolicySourceArn=who, ActionNames=sorted(policies)
    )
    missing = [item["EvalActionName"] for item in answer["EvaluationResults"] if item["EvalDecision"] != "allowed"]
    if not missing:
        yield ok("rights", "all that IAM simulates, which leaves out conditions and organisation policies")
        return
    shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    needed = ", ".join(sorted({policies[action] for action in missing}))
    yield problem(
        "rights",
        f"{amazon.identity} lacks {shown}",
        f"attach {needed} to {who}   # by an administrator, see docs/aws.md",
    )
