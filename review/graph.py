"""Draw a stack's resource graph as a Mermaid flowchart.

Runs the program without a cloud (review/recording.py). Boxes are resources inside their components; an arrow means
"must exist before". Implied arrows are left out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from graphlib import TopologicalSorter

from cli.target import StackName
from review.recording import Recorded, Recording, closure, record_anywhere

#: A component's resources of one kind share a box when there are more than this.
SHOWN_OF_A_KIND = 2


def mermaid(stack: Recording) -> str:
    """The flowchart's text; the same graph gives the same text."""
    providers = {item.urn: item for item in stack.resources if item.type.startswith("pulumi:providers:")}
    resources = {
        item.urn: _with_the_providers(item, providers)
        for item in stack.resources
        if not item.type.startswith("pulumi:")
    }
    components = {urn for urn in resources if resources[urn].type.startswith("trainyard:")}
    boxes = _boxes({urn: item for urn, item in resources.items() if urn not in components})
    grouped: dict[str, list[str]] = defaultdict(list)
    for urn, box in boxes.items():
        parent = resources[urn].parent
        title = resources[parent].kind if parent in components else ""
        if box not in grouped[title]:
            grouped[title].append(box)
    lines = ["flowchart LR"]
    for title in sorted(grouped):
        indent = "  "
        if title:
            lines.append(f"  subgraph {title}")
            indent = "    "
        lines += [f'{indent}{_identifier(box)}["{box}"]' for box in sorted(grouped[title])]
        if title:
            lines.append("  end")
    lines += [f"  {_identifier(before)} --> {_identifier(after)}" for before, after in _arrows(resources, boxes)]
    return "\n".join(lines)


def _with_the_providers(item: Recorded, providers: dict[str, Recorded]) -> Recorded:
    """Add the provider's dependencies to a resource's: a Kubernetes object waits for the nodes of the cluster."""
    provider = providers.get(item.provider.rsplit("::", 1)[0])
    return replace(item, dependencies=item.dependencies | provider.dependencies) if provider else item


def _boxes(resources: dict[str, Recorded]) -> dict[str, str]:
    """URN -> label of the box it is drawn in.

    Resources of a kind share a box at equal depth only: then none of them depends on another through a third, which
    would draw a cycle.
    """
    depths = _depths(resources)
    alike: dict[tuple[str, str, int], list[Recorded]] = defaultdict(list)
    for item in resources.values():
        alike[item.parent, item.kind, depths[item.urn]].append(item)
    many = [items for items in alike.values() if len(items) > SHOWN_OF_A_KIND]
    titles = Counter(f"{len(items)} x {items[0].kind}" for items in many)
    labels = {item.urn: f"{item.kind} {item.plain_name}" for item in resources.values()}
    for items in many:
        title = f"{len(items)} x {items[0].kind}"
        names = ", ".join(sorted(item.plain_name for item in items))
        labels |= {item.urn: title if titles[title] == 1 else f"{title} {names}" for item in items}
    return labels


def _depths(resources: dict[str, Recorded]) -> dict[str, int]:
    """URN -> length of the longest chain of resources before it."""
    depths: dict[str, int] = {}
    before = {urn: item.dependencies & resources.keys() for urn, item in resources.items()}
    for urn in TopologicalSorter(before).static_order():
        depths[urn] = 1 + max((depths[each] for each in before[urn]), default=-1)
    return depths


def _arrows(resources: dict[str, Recorded], boxes: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs (before, after) of boxes, without those that other pairs imply."""
    direct: dict[str, set[str]] = defaultdict(set)
    for urn, box in boxes.items():
        for dependency in resources[urn].dependencies:
            if dependency in boxes and boxes[dependency] != box:
                direct[box].add(boxes[dependency])
    return without_implied(direct)


def without_implied(direct: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Pairs (predecessor, node), without those that other pairs imply."""
    before = closure(direct)
    arrows = []
    for node, nearest in direct.items():
        arrows += [(each, node) for each in nearest.difference(*(before[other] for other in nearest))]
    return sorted(arrows)


def _identifier(box: str) -> str:
    return "r_" + re.sub(r"[^A-Za-z0-9]+", "_", box).lower()


def draw(stack: str) -> str:
    """The diagram of a stack file."""
    return mermaid(record_anywhere(stack))


def graph(stack: StackName = "") -> None:
    print(draw(stack))
