"""The critical path of `pulumi up` and `pulumi destroy`: `python -m bench.graph` writes bench/results/graph.md.

The program's recorded dependencies give the order, and a table of published and observed times the minutes. No
parallelism can shorten the sum along the longest chain. Anything off that chain (the image, the storage) has slack: it
may take that much longer before it delays the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from graphlib import TopologicalSorter
from pathlib import Path

from bench import page
from infra.clouds import tables
from infra.parse import cluster_kind
from infra.stackfiles import stack_file_values, stacks
from review.recording import Recorded, Recording, record_anywhere


@dataclass(frozen=True)
class Minutes:
    create: float
    delete: float
    source: str


#: By resource type, with their sources.
TIMES = {type_: Minutes(*row) for type_, row in tables("minutes.yaml", Path(__file__).parent).items()}
#: Everything else: mostly Kubernetes objects, which the API server writes at once.
QUICK = Minutes(0.02, 0.02, "")
#: The dataset Job waits for tokenisation, whose time depends on the data and not on the program.
NOT_COUNTED = ("kubernetes:batch/v1:Job",)
#: Kinds of resource that make up the shared volume, on each cloud.
STORAGE = ("Disk", "Instance", "FileSystem", "MountTarget")


@dataclass(frozen=True)
class Chain:
    """The longest chain of a stack's resources, in the order of time."""

    minutes: float
    resources: tuple[Recorded, ...]
    slack: Mapping[str, float]
    """URN -> minutes that a resource may take longer without delaying the end; 0 on the chain."""


def minutes(item: Recorded) -> Minutes:
    return Minutes(0, 0, "") if item.type in NOT_COUNTED else TIMES.get(item.type, QUICK)


def creation(stack: Recording) -> Chain:
    """The longest chain of `pulumi up`."""
    items = {item.urn: item for item in stack.resources if item.custom}
    return _longest(items, _before(stack, items), {urn: minutes(item).create for urn, item in items.items()})


def destruction(stack: Recording) -> Chain:
    """The longest chain of `pulumi destroy`: reversed, and a resource that is deleted with another takes no time."""
    items = {item.urn: item for item in stack.resources if item.custom}
    times = {urn: 0 if _goes_along(item) else minutes(item).delete for urn, item in items.items()}
    return _longest(items, _reversed(_before(stack, items)), times)


def _goes_along(item: Recorded) -> bool:
    return bool(item.deleted_with) or item.retain_on_delete or item.type.startswith("pulumi:providers:")


def _before(stack: Recording, items: Mapping[str, Recorded]) -> dict[str, set[str]]:
    return {urn: stack.direct[urn] & items.keys() for urn in items}


def _reversed(before: Mapping[str, set[str]]) -> dict[str, set[str]]:
    return {urn: {other for other, others in before.items() if urn in others} for urn in before}


def _longest(items: Mapping[str, Recorded], before: Mapping[str, set[str]], times: Mapping[str, float]) -> Chain:
    def ends(earlier: Mapping[str, set[str]]) -> dict[str, float]:
        """Map each resource to the minutes until its end, if it begins when all that are earlier have ended."""
        found: dict[str, float] = {}
        for urn in TopologicalSorter(earlier).static_order():
            found[urn] = times[urn] + max((found[other] for other in earlier[urn]), default=0)
        return found

    forth, back = ends(before), ends(_reversed(before))
    total = max(forth.values(), default=0)
    slack = {urn: round(total - forth[urn] - back[urn] + times[urn], 6) for urn in items}
    chain, candidates = list[Recorded](), set(items)
    while candidates:
        last = max(candidates, key=lambda urn: (forth[urn], urn))
        chain.append(items[last])
        candidates = before[last]
    return Chain(total, tuple(reversed(chain)), slack)


def parts(names: list[str]) -> list[str | list[str]]:
    """Return the parts of the page."""
    rows = []
    for name in names:
        stack = record_anywhere(name)
        up, down = creation(stack), destruction(stack)
        slacks = (_slack(stack, up, "Image"), _slack(stack, up, *STORAGE))
        ends = (f"{down.minutes:.1f}", _shown(down, "delete"))
        rows.append((name, f"{up.minutes:.1f}", _shown(up, "create"), *slacks, *ends))
    columns = ("stack", "up, min", "longest chain", "image may take longer by", "storage by", "destroy, min")
    times = ((type_.split(":")[-1], f"{t.create:g}", f"{t.delete:g}", t.source) for type_, t in TIMES.items())
    return [
        "# Make-span of `pulumi up` and `pulumi destroy`",
        f"`python -m bench.graph`, {date.today().isoformat()}. Longest chains of the recorded resource graph, with the "
        "times below; without the waits for the text to be tokenised and for nodes with accelerators.",
        page.table((*columns, "longest chain"), rows),
        page.table(("resource", "create, min", "delete, min", "source"), times),
    ]


def _shown(chain: Chain, what: str) -> str:
    shown = [
        f"{item.type.split(':')[-1]} {item.name} {getattr(minutes(item), what):g}"
        for item in chain.resources
        if getattr(minutes(item), what) >= 0.1 and not (what == "delete" and _goes_along(item))
    ]
    return " → ".join(shown)


def _slack(stack: Recording, chain: Chain, *kinds: str) -> str:
    """Return the least slack of the resources of these kinds."""
    found = [chain.slack[item.urn] for item in stack.resources if item.custom and item.kind.endswith(kinds)]
    return f"{min(found):.1f}" if found else "-"


if __name__ == "__main__":
    made = [name for name in stacks() if cluster_kind(stack_file_values(name)) != "existing"]
    print(page.write(page.results() / "graph.md", *parts(made)))
