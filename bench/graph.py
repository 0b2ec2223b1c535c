"""The least time of `pulumi up` and `pulumi destroy`: `python -m bench.graph` writes bench/results/graph.md.

The program's recorded dependencies give the order, a table of published and observed times the minutes. The sum along
the longest chain is what no parallelism can shorten. Anything off that chain (the image, the storage) has slack: it
may take that much longer before anybody waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from bench import page
from infra.needs import load
from infra.stackfiles import stacks
from review.recording import Recorded, Recording, record_anywhere


@dataclass(frozen=True)
class Minutes:
    create: float
    delete: float
    source: str


#: By type. Read with their sources.
TIMES = {type_: Minutes(*row) for type_, row in load(Path(__file__).with_name("minutes.yaml")).items()}
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


def lines(names: list[str]) -> list[str]:
    """The page."""
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
        "",
        f"`python -m bench.graph`, {date.today().isoformat()}. Longest chains of the recorded resource graph, with the",
        "times below; without the waits for the text to be tokenised and for nodes with accelerators.",
        "",
        *page.table((*columns, "longest chain"), rows),
        "",
        *page.table(("resource", "create, min", "delete, min", "source"), times),
    ]


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


if __name__ == "__main__":
    text = lines([name for name in stacks() if name != "local"])
    page.write(page.results() / "graph.md", text)
    print("\n".join(text))
