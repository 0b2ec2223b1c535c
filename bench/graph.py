"""How long `pulumi up` and `pulumi destroy` take at least: `python -m bench.graph` writes bench/results/graph.md.

The order comes from the program's own recorded dependencies, the minutes from a table of published and observed times;
the sum along the longest chain is what no parallelism can shorten. What is not on that chain (the image, the storage)
has slack: it may take that much longer before anybody waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from infra.stackfiles import ROOT, stacks
from review.recording import Recorded, Recording, record_anywhere

RESULT = ROOT / "bench" / "results" / "graph.md"


@dataclass(frozen=True)
class Minutes:
    create: float
    delete: float
    source: str


#: Type -> minutes. Single observations by others, fine as orders of magnitude; "estimate": no published figure.
TIMES = {
    "gcp:projects/service:Service": Minutes(0.5, 0, "estimate; stays enabled"),
    "gcp:compute/network:Network": Minutes(0.3, 0.5, "estimate"),
    "gcp:compute/subnetwork:Subnetwork": Minutes(0.3, 0.4, "estimate"),
    "gcp:compute/router:Router": Minutes(0.2, 0.2, "estimate"),
    "gcp:compute/routerNat:RouterNat": Minutes(0.3, 0.3, "estimate"),
    "gcp:compute/disk:Disk": Minutes(0.1, 0.1, "estimate"),
    "gcp:filestore/instance:Instance": Minutes(4, 3, "estimate: 3 to 5"),
    "gcp:serviceaccount/account:Account": Minutes(0.1, 0.1, "estimate"),
    "gcp:projects/iAMMember:IAMMember": Minutes(0.2, 0.2, "estimate"),
    "gcp:artifactregistry/repository:Repository": Minutes(0.2, 0.2, "estimate"),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": Minutes(0.2, 0.2, "estimate"),
    "gcp:container/cluster:Cluster": Minutes(5, 4, "2:44 zonal (pulumi/automation-api-examples 7), 9:07 regional"),
    "gcp:container/nodePool:NodePool": Minutes(1, 1, "empty pool 0:30 to 0:45 (Google, 2026-01); one node 1 to 2"),
    "aws:ec2/vpc:Vpc": Minutes(0.2, 0.1, "estimate"),
    "aws:ec2/subnet:Subnet": Minutes(0.2, 0.3, "estimate"),
    "aws:ec2/internetGateway:InternetGateway": Minutes(0.1, 0.4, "estimate; 15 while an address is in use"),
    "aws:ec2/natGateway:NatGateway": Minutes(2, 1, "estimate: 1.5 to 2.5"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": Minutes(0.2, 0.2, "estimate"),
    "aws:iam/role:Role": Minutes(0.1, 0.1, "estimate"),
    "aws:kms/key:Key": Minutes(0.3, 0.1, "estimate"),
    "aws:eks/cluster:Cluster": Minutes(
        9, 3, "create and destroy 598 s (terraform-provider-aws 39065); 13 to 16 in 2021"
    ),
    "aws:eks/addon:Addon": Minutes(0.7, 0.5, "estimate"),
    "aws:eks/nodeGroup:NodeGroup": Minutes(3, 5, "one node 2 to 4; a drain that waits takes minutes"),
    "aws:efs/mountTarget:MountTarget": Minutes(1.5, 1, "1 to 2 each, beside each other (terraform-provider-aws)"),
    "aws:ecr/repository:Repository": Minutes(0.1, 0.1, "estimate"),
    "docker-build:index:Image": Minutes(6, 0, "build 2, measured; push of 3.2 GB at 100 Mbit/s 4.3"),
    "pulumi-python:dynamic/trainyard:BuildahImage": Minutes(3.2, 0, "build 2 and push 1.2, measured, 2 cores"),
    "kubernetes:apps/v1:Deployment": Minutes(0.5, 0.2, "image streaming: 20 s for a large image (Google)"),
    "kubernetes:apps/v1:StatefulSet": Minutes(0.5, 0.2, "as a Deployment"),
}
#: Everything else: Kubernetes objects and components, which are quick to write down.
QUICK = Minutes(0.02, 0.02, "")
#: Waits for the text to be tokenised, which is the data's time and not the program's.
NOT_COUNTED = ("kubernetes:batch/v1:Job",)


#: What the shared volume is made of, on each cloud.
STORAGE = ("Disk", "Instance", "FileSystem", "MountTarget")


@dataclass(frozen=True)
class Chain:
    """The longest chain of a stack's resources, in the order of time."""

    minutes: float
    resources: tuple[Recorded, ...]
    slack: Mapping[str, float]
    """URN -> minutes that a resource may take longer before the end is later; 0 on the chain."""


def minutes(item: Recorded) -> Minutes:
    return Minutes(0, 0, "") if item.type in NOT_COUNTED else TIMES.get(item.type, QUICK)


def creation(stack: Recording) -> Chain:
    """The longest chain of `pulumi up`."""
    items = {item.urn: item for item in stack.resources if item.custom}
    before = {urn: _earlier(item, items) for urn, item in items.items()}
    return _longest(items, before, {urn: minutes(item).create for urn, item in items.items()})


def destruction(stack: Recording) -> Chain:
    """The longest chain of `pulumi destroy`: backwards, and what goes with another resource takes no time."""
    items = {item.urn: item for item in stack.resources if item.custom}
    after: dict[str, set[str]] = {urn: set() for urn in items}
    for urn, item in items.items():
        for earlier in _earlier(item, items):
            after[earlier].add(urn)
    times = {urn: 0 if _goes_along(item) else minutes(item).delete for urn, item in items.items()}
    return _longest(items, after, times)


def _goes_along(item: Recorded) -> bool:
    return bool(item.deleted_with) or item.retain_on_delete or item.type.startswith("pulumi:providers:")


def _earlier(item: Recorded, items: Mapping[str, Recorded]) -> set[str]:
    """What must exist before a resource: its dependencies and its provider."""
    return {urn for urn in (*item.dependencies, item.provider.rsplit("::", 1)[0]) if urn in items and urn != item.urn}


def _longest(items: Mapping[str, Recorded], before: Mapping[str, set[str]], times: Mapping[str, float]) -> Chain:
    ends: dict[str, float] = {}

    def end(urn: str) -> float:
        if urn not in ends:
            ends[urn] = times[urn] + max((end(other) for other in before[urn]), default=0)
        return ends[urn]

    for urn in items:
        end(urn)
    total = max(ends.values(), default=0)
    after: dict[str, set[str]] = {urn: set() for urn in items}
    for urn, others in before.items():
        for other in others:
            after[other].add(urn)
    tails: dict[str, float] = {}

    def tail(urn: str) -> float:
        """The longest time from the end of a resource to the end of all."""
        if urn not in tails:
            tails[urn] = max((times[other] + tail(other) for other in after[urn]), default=0)
        return tails[urn]

    slack = {urn: round(total - ends[urn] - tail(urn), 6) for urn in items}
    chain: list[Recorded] = []
    last = max(ends, key=lambda urn: (ends[urn], urn)) if ends else None
    while last is not None:
        chain.append(items[last])
        last = max(before[last], key=lambda urn: (ends[urn], urn), default=None)
    return Chain(total, tuple(reversed(chain)), slack)


def table(names: list[str]) -> str:
    """The result, as Markdown."""
    lines = [
        "# Make-span of `pulumi up` and `pulumi destroy`",
        "",
        f"`python -m bench.graph`, {date.today().isoformat()}. Longest chains of the recorded resource graph, with the",
        "times below; without the waits for the text to be tokenised and for nodes with accelerators.",
        "",
        "| stack | up, min | longest chain | image may take longer by | storage by | destroy, min | longest chain |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        stack = record_anywhere(name)
        up, down = creation(stack), destruction(stack)
        cells = [
            name,
            f"{up.minutes:.1f}",
            _shown(up, "create"),
            _slack(stack, up, "Image"),
            _slack(stack, up, *STORAGE),
            f"{down.minutes:.1f}",
            _shown(down, "delete"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| resource | create, min | delete, min | source |", "|---|---|---|---|"]
    lines += [
        f"| {type_.split(':')[-1]} | {time.create:g} | {time.delete:g} | {time.source} |"
        for type_, time in TIMES.items()
    ]
    return "\n".join(lines) + "\n"


def _shown(chain: Chain, what: str) -> str:
    parts = [
        f"{item.type.split(':')[-1]} {item.name} {getattr(minutes(item), what):g}"
        for item in chain.resources
        if getattr(minutes(item), what) >= 0.1 and not (what == "delete" and _goes_along(item))
    ]
    return " → ".join(parts)


def _slack(stack: Recording, chain: Chain, *kinds: str) -> str:
    """The least slack of the resources of some kinds."""
    found = [chain.slack[item.urn] for item in stack.resources if item.custom and item.kind.endswith(kinds)]
    return f"{min(found):.1f}" if found else "-"


def main() -> int:
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    text = table([name for name in stacks() if name != "local"])
    RESULT.write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
