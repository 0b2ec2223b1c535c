"""Compute Engine's machine types that a stack may use (machines.yaml)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from infra.facts import load
from infra.machine import Machine, Node, by_steps, machine_type

_FOLDER = Path(__file__).parent


def _kept(machine: Machine) -> float:
    """Source: cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes."""
    return by_steps(machine.memory_gib, [(4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (None, 0.02)])


#: An e2-standard-4 leaves 12.87 GiB. Daemons: node agent, fluent-bit, metrics and Prometheus collectors, CSI drivers,
#: metadata server, device plugin, DCGM exporter; higher than their requests as of 1.34, because each release adds a
#: pod.
NODE = Node(seen=0.97, kept=_kept, daemons=(0.75, 1.5))


@cache
def machines() -> dict[str, Machine]:
    """All machine types, by name."""
    found: dict[str, Machine] = {}
    for family, shared in load(_FOLDER / "machines.yaml")["families"].items():
        for name, own in shared.pop("types").items():
            found[name] = machine_type(name=name, node=NODE, family=family, **shared, **own)
    return found
