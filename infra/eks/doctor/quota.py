"""Checks that the account's quotas leave room for the stack at full size.

EC2 counts vCPUs by class of machine, on-demand and Spot separately; a new account has none for accelerators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.config import StackConfig
from infra.doctor.finding import Finding, ok, or_unchecked, problem, unchecked
from infra.eks.doctor.aws_client import Amazon, NoAnswer
from infra.eks.keys import EksConfig, EksNodes
from infra.eks.machines import machines, regions
from infra.needs import features_of, load
from infra.stackfiles import is_marked


@dataclass(frozen=True)
class Quota:
    """One quota of an account in a region (quotas.yaml)."""

    title: str
    service: str
    code: str


#: SERVICE/CODE, as infra/eks/needs.yaml names quotas -> the quota.
QUOTAS = {
    f"{service}/{code}": Quota(title, service, code)
    for service, titles in load(Path(__file__).parent.parent / "quotas.yaml")["quotas"].items()
    for code, title in titles.items()
}
VPCS, ADDRESSES, NATS, CLUSTERS = (
    QUOTAS[name] for name in ("vpc/L-F678F1CE", "ec2/L-0263D0A3", "vpc/L-FE5A380F", "eks/L-1194D53C")
)


def quota_of(machine_type: str, *, spot: bool) -> Quota | None:
    """The quota of vCPUs that a machine counts against; None: its class is not known here."""
    group = {"capacityType": "SPOT" if spot else "ON_DEMAND", "instanceTypes": [machine_type]}
    names = [name for each in features_of("eks", "aws:eks/nodeGroup:NodeGroup", group).values() for name in each.quotas]
    return QUOTAS[names[0]] if names else None


def checks(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    yield from _machines(amazon, config)
    yield from _network(amazon, config, stack)
    yield from _clusters(amazon, config)


@or_unchecked(f"quota {CLUSTERS.title}")
def _clusters(amazon: Amazon, config: StackConfig) -> Iterator[Finding]:
    clusters = amazon.ask("eks", "list_clusters")["clusters"]
    yield _enough(amazon, CLUSTERS, 1, len([name for name in clusters if name != config.name]))


@or_unchecked("quota of machines")
def _machines(amazon: Amazon, config: StackConfig) -> Iterator[Finding]:
    eks, nodes = config.section(EksConfig), config.section(EksNodes)
    largest = max(nodes.machine_types, key=lambda name: machines()[name].vcpus)
    # Capacity rebalancing starts the successor of a Spot machine before it is taken back.
    spot = nodes.consumption == "spot"
    takes = [(largest, nodes.max + 1 if spot else nodes.max, spot), (eks.system_machine_type, eks.system_nodes, False)]
    if nodes.fallback == "on_demand":
        takes.append((nodes.machine_type, nodes.max, False))
    wanted: Counter[Quota] = Counter()
    for machine_type, count, as_spot in takes:
        quota = quota_of(machine_type, spot=as_spot)
        if quota is None:
            yield unchecked(f"quota of {machine_type}", "which one it falls under is not known")
        else:
            wanted[quota] += count * machines()[machine_type].vcpus
    used = _running(amazon, config.name)
    for quota, vcpus in wanted.items():
        yield _enough(amazon, quota, vcpus, used[quota], " vCPUs")


def _running(amazon: Amazon, cluster: str) -> Counter[Quota]:
    """vCPUs of the machines that run now, without those of this stack's own cluster."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    reservations = amazon.ask("ec2", "describe_instances", Filters=states)["Reservations"]
    others = [
        (machine["InstanceType"], machine.get("InstanceLifecycle") == "spot")
        for reservation in reservations
        for machine in reservation["Instances"]
        if _tags(machine).get("eks:cluster-name") != cluster
    ]
    if not others:
        return Counter()
    types = sorted({machine_type for machine_type, _ in others})
    answer = amazon.ask("ec2", "describe_instance_types", InstanceTypes=types)["InstanceTypes"]
    vcpus = {item["InstanceType"]: item["VCpuInfo"]["DefaultVCpus"] for item in answer}
    used: Counter[Quota] = Counter()
    for machine_type, spot in others:
        if quota := quota_of(machine_type, spot=spot):
            used[quota] += vcpus[machine_type]
    return used


@or_unchecked("quota of the network")
def _network(amazon: Amazon, config: StackConfig, stack: str) -> Iterator[Finding]:
    eks = config.section(EksConfig)

    def others(operation: str, key: str, **given: Any) -> list[dict[str, Any]]:
        """What exists, without this stack's own."""
        return [item for item in amazon.ask("ec2", operation, **given)[key] if not is_marked(_tags(item), stack)]

    yield _enough(amazon, VPCS, 1, len(others("describe_vpcs", "Vpcs")))
    if eks.public_nodes:
        return
    yield _enough(amazon, ADDRESSES, 1, len(others("describe_addresses", "Addresses")))
    # The NAT gateway's zone (infra/eks/network.py).
    here = [{"Name": "availability-zone-id", "Values": [regions()[eks.region].home[0]]}]
    subnets = {item["SubnetId"] for item in amazon.ask("ec2", "describe_subnets", Filters=here)["Subnets"]}
    alive = [{"Name": "state", "Values": ["pending", "available", "deleting"]}]
    gateways = others("describe_nat_gateways", "NatGateways", Filters=alive)
    yield _enough(amazon, NATS, 1, len([item for item in gateways if item["SubnetId"] in subnets]))


def _tags(item: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags") or []}


def _enough(amazon: Amazon, quota: Quota, amount: float, used: float, unit: str = "") -> Finding:
    subject = f"quota {quota.title}"
    try:
        limit = _limit(amazon, quota)
    except NoAnswer as reason:
        return unchecked(subject, f"{reason}; {amount:g}{unit} are needed")
    if limit - used >= amount:
        return ok(subject, f"{amount:g} of {limit - used:g}{unit} free in {amazon.region}")
    return problem(
        subject,
        f"{limit - used:g} of {limit:g}{unit} free in {amazon.region}, {amount:g} are needed",
        f"aws service-quotas request-service-quota-increase --region {amazon.region} --service-code {quota.service} "
        f"--quota-code {quota.code} --desired-value {used + amount:g}",
    )


def _limit(amazon: Amazon, quota: Quota) -> float:
    """The account's limit; AWS's default where the account never had one of its own."""
    try:
        answer = amazon.ask("service-quotas", "get_service_quota", ServiceCode=quota.service, QuotaCode=quota.code)
    except NoAnswer as reason:
        if reason.code != "NoSuchResourceException":
            raise
        answer = amazon.ask(
            "service-quotas", "get_aws_default_service_quota", ServiceCode=quota.service, QuotaCode=quota.code
        )
    return answer["Quota"]["Value"]
