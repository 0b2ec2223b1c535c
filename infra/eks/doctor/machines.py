"""Checks that the zones offer the machine types, and that their image has a driver for the stack's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from infra.config import StackConfig
from infra.doctor.driver import SUBJECT, image_cuda, judge
from infra.doctor.finding import Finding, asked, ok, problem, warning
from infra.eks.doctor.aws_client import Amazon
from infra.eks.keys import EksConfig, EksNodes, known_driver
from infra.eks.machines import by_zone, regions


def offered(amazon: Amazon, eks: EksConfig, nodes: EksNodes) -> Iterator[Finding]:
    """Whether the workers' zones have machines for them, as `pulumi up` chooses, and the home zones the system's."""
    yield from asked("machines of the workers", _workers(amazon, eks, nodes.machine_types))
    yield from asked(eks.system_machine_type, _system(amazon, eks))


def _workers(amazon: Amazon, eks: EksConfig, types: tuple[str, ...]) -> Iterator[Finding]:
    pairs = _offerings(amazon, types)
    found = by_zone(eks.zones, types, pairs)
    for name in types:
        if here := [zone for zone in found if name in found[zone]]:
            yield ok(name, f"is offered by {', '.join(here)}")
            continue
        fix = "pulumi config set --path 'eks.zones[0]' ZONE   # or another machine type, or another eks.region"
        finding = warning if found else problem
        yield finding(name, _not_offered(name, eks.zones, pairs, amazon.region), fix)
    if found and (without := [zone for zone in eks.zones if zone not in found]):
        yield warning(
            "eks.zones",
            f"{', '.join(without)} offers no {' or '.join(types)}; no workers come from there",
            f"pulumi config set --path 'eks.zones[{eks.zones.index(without[0])}]' ZONE   # another; or leave it",
        )


def _system(amazon: Amazon, eks: EksConfig) -> Iterator[Finding]:
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


def driver(config: StackConfig) -> Iterator[Finding]:
    """Whether the nodes' image has a driver for the stack's image. AWS answers no question about it: this is a list."""
    release, cuda = config.section(EksConfig).node_release, image_cuda(config)
    since, version = known_driver()
    if not cuda:
        return
    latest = "pulumi config set --path eks.nodeRelease latest"
    if release == "latest" or int(release.rpartition("-")[2]) >= since:
        yield judge(f"images of nodes since {since} have at least", version, cuda, latest)
    else:
        text = f"eks.nodeRelease {release} is older than {since}, the first image here known to have {version}"
        yield warning(SUBJECT, f"{text}; the node check (check.enabled) finds out on the nodes", latest)


def _not_offered(name: str, zones: Iterable[str], pairs: set[tuple[str, str]], region: str) -> str:
    elsewhere = ", ".join(sorted(zone for zone, offered in pairs if offered == name))
    return f"is not offered by {', '.join(zones)}; in {region} by {elsewhere or 'none at all'}"
