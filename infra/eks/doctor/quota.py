"""Checks that the account's quotas leave room for the stack at full size.

EC2 counts vCPUs by class of machine, on-demand and Spot separately; a new account has none for accelerators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from infra.config import StackConfig
from infra.eks.doctor.aws_client import Amazon, NoAnswer
from infra.eks.keys import EksConfig, EksNodes
from infra.eks.machines import machines
from infra.facts import load
from infra.features import features_of
from infra.finding import Finding, ok, problem, unchecked

#: Code of a quota of EC2 -> its title.
TITLES: dict[str, str] = load(Path(__file__).parent.parent / "quotas.yaml")["ec2"]


def quota_of(machine_type: str, *, spot: bool) -> str | None:
    """The code of the quota of vCPUs that a machine counts against; None: its class is not known here."""
    group = {"capacityType": "SPOT" if spot else "ON_DEMAND", "instanceTypes": [machine_type]}
    names = [name for each in features_of("eks", "aws:eks/nodeGroup:NodeGroup", group).values() for name in each.quotas]
    return names[0] if names else None


def checks(amazon: Amazon, config: StackConfig) -> Iterator[Finding]:
    eks, nodes = config.section(EksConfig), config.section(EksNodes)
    largest = max(nodes.machine_types, key=lambda name: machines()[name].vcpus)
    # Capacity rebalancing starts the successor of a Spot machine before it is taken back.
    spot = nodes.consumption == "spot"
    takes = [(largest, nodes.max + 1 if spot else nodes.max, spot), (eks.system_machine_type, eks.system_nodes, False)]
    if nodes.fallback == "on_demand":
        takes.append((nodes.machine_type, nodes.max, False))
    wanted: Counter[str] = Counter()
    for machine_type, count, as_spot in takes:
        if quota := quota_of(machine_type, spot=as_spot):  # known of every machine that a stack may have
            wanted[quota] += count * machines()[machine_type].vcpus
    used = _running(amazon, config.name)
    for quota, vcpus in wanted.items():
        yield _enough(amazon, quota, vcpus, used[quota])


def _running(amazon: Amazon, cluster: str) -> Counter[str]:
    """vCPUs of the machines that run now, without those of this stack's own cluster."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    reservations = amazon.ask("ec2", "describe_instances", Filters=states)["Reservations"]
    others = [
        (machine["InstanceType"], machine.get("InstanceLifecycle") == "spot")
        for reservation in reservations
        for machine in reservation["Instances"]
        if {"Key": "eks:cluster-name", "Value": cluster} not in machine.get("Tags", [])
    ]
    if not others:
        return Counter()
    types = sorted({machine_type for machine_type, _ in others})
    answer = amazon.ask("ec2", "describe_instance_types", InstanceTypes=types)["InstanceTypes"]
    vcpus = {item["InstanceType"]: item["VCpuInfo"]["DefaultVCpus"] for item in answer}
    used: Counter[str] = Counter()
    for machine_type, spot in others:
        if quota := quota_of(machine_type, spot=spot):
            used[quota] += vcpus[machine_type]
    return used


def _enough(amazon: Amazon, quota: str, vcpus: float, used: float) -> Finding:
    key = f"quota {TITLES[quota]}"
    try:
        limit = _limit(amazon, quota)
    except NoAnswer as reason:
        return unchecked(key, f"{reason}; {vcpus:g} vCPUs are needed")
    if limit - used >= vcpus:
        return ok(key, f"{vcpus:g} of {limit - used:g} vCPUs free in {amazon.region}")
    return problem(
        key,
        f"{limit - used:g} of {limit:g} vCPUs free in {amazon.region}, {vcpus:g} are needed",
        f"aws service-quotas request-service-quota-increase --region {amazon.region} --service-code ec2 "
        f"--quota-code {quota} --desired-value {used + vcpus:g}",
    )


def _limit(amazon: Amazon, quota: str) -> float:
    """The account's limit; AWS's default where the account never had one of its own."""
    which = {"ServiceCode": "ec2", "QuotaCode": quota}
    try:
        answer = amazon.ask("service-quotas", "get_service_quota", **which)
    except NoAnswer as reason:
        if reason.code != "NoSuchResourceException":
            raise
        answer = amazon.ask("service-quotas", "get_aws_default_service_quota", **which)
    return answer["Quota"]["Value"]
