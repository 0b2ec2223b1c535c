"""A machine type, and how much of it is left for pods by its cloud's rules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.sections import ImageConfig


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a cloud's nodes take of their machine before a training's pods come."""

    seen: float
    """The part of the nominal memory that the kubelet sees; firmware, hypervisor and kernel take the rest."""
    kept: Callable[[Machine], float]
    """GiB that the kubelet keeps for itself and the system."""
    daemons: tuple[float, float]
    """(CPU, GiB) that the cluster's own pods request on a worker node."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine type of a cloud."""

    name: str
    node: Node
    family: str
    """Series, as price lists name it: c3-highmem, a2-highgpu, e2-standard; g4dn, m6i."""
    vcpus: int
    """Hyperthreads."""
    memory_gib: float
    accelerator: str | None = None
    """The cloud's name for the machine's accelerators in Kubernetes."""
    accelerators: int = 0
    accelerator_gib: float = 0.0
    """Memory of one accelerator."""
    precisions: tuple[str, ...] = ("fp32",)
    """Precisions that its matrix units, or at least its registers, multiply."""
    local_ssds: tuple[int, ...] = (0,)
    """Numbers of local SSDs (375 GB each on Google Cloud) that can be attached."""
    bundled_ssds: int = 0
    """Local SSDs that the machine always has."""
    boot_disks: tuple[str, ...] = ("pd-standard", "pd-balanced", "pd-ssd")
    ways: tuple[str, ...] = ()
    """Ways in which it may be had (`nodes.consumption`); empty: every way of its cloud."""
    capability: str | None = None
    """CPU flag that makes the training fast; the trainer checks it at start."""
    compact: bool = True
    """Whether its pools can have compact placement."""
    threads_selectable: bool = True
    """Whether hyperthreading can be switched off (threads per core 1)."""
    max_pods: int = 110
    """Pods that the node's network addresses allow; EKS's kubelet reserves memory for each."""
    system: bool = False
    """Whether it is for the system pool, not for training."""
    efa: bool = False
    """Whether an Elastic Fabric Adapter, a network between nodes that bypasses the kernel's TCP, can be attached."""

    def threads(self, per_core: int | None) -> int:
        """Logical processors with `per_core` threads on each core; None: the machine's default, two."""
        return self.vcpus // 2 * (per_core or 2)


def machine_type(**fields: Any) -> Machine:
    """A machine type from the fields of a data file, which has lists in place of tuples."""
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return Machine(**plain)


def allocatable(machine: Machine, threads_per_core: int | None = None) -> tuple[float, float]:
    """(CPU, GiB) of a node that pods can ask for.

    The clouds' kubelets reserve 6 % of the first core, 1 % of the second, 0.5 % of the next two and 0.25 % of the rest,
    and 100 MiB of memory for evictions.
    """
    cpus = machine.threads(threads_per_core)
    reserved = by_steps(cpus, [(1, 0.06), (1, 0.01), (2, 0.005), (None, 0.0025)])
    memory = machine.memory_gib * machine.node.seen - machine.node.kept(machine) - 100 / 1024
    return round(cpus - reserved, 2), round(memory, 2)


def for_pods(machine: Machine, threads_per_core: int | None = None) -> tuple[float, float]:
    """(CPU, GiB) that one training pod can have on a node of its own: whole processors, whole GiB."""
    cpu, memory = allocatable(machine, threads_per_core)
    daemons_cpu, daemons_gib = machine.node.daemons
    return float(int(cpu - daemons_cpu)), float(int(memory - daemons_gib))


def refuse_reference(key: str, reference: str | None, image: ImageConfig) -> Iterator[str]:
    """Refuse a prebuilt image that is missing or not by digest."""
    if image.builder != "prebuilt":
        return
    if not reference:
        yield f"{key}: missing; builder prebuilt needs the image as name@sha256:<64 hex digits>"
    elif not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", reference):
        yield f"{key}: '{reference}' is not by digest; allowed: name@sha256:<64 hex digits>"


def by_steps(amount: float, steps: list[tuple[float | None, float]]) -> float:
    """The sum of shares of an amount: each of the next part of this width; None: of the rest."""
    total = 0.0
    for width, share in steps:
        part = amount if width is None else min(amount, width)
        total += part * share
        amount -= part
    return total


def nearest(name: str, names: Iterable[str]) -> str:
    """The names to suggest for an unknown one: those of its family, else all."""
    related = [known for known in names if series(known) == series(name)]
    return ", ".join(related or names)


def series(name: str) -> str:
    """The first part of a machine type's name: a3 of a3-highgpu-8g, g4dn of g4dn.xlarge."""
    return re.split("[-.]", name)[0]


def instead_of(name: str, known: Mapping[str, Machine], elsewhere: Mapping[str, str | None]) -> str:
    """What to write instead of a machine type that is not known: those with the same accelerator, not with the same
    letters. `elsewhere`: series that no stack may use -> their accelerator, or nothing."""
    name = name.strip().lower()
    # Of a3-megagpu-8g and p6-b200.48xlarge the accelerator stands in all but the size.
    family = next((each for each in (re.split("[-.](?=[^-.]*$)", name)[0], series(name)) if each in elsewhere), None)
    if family is None:
        return (
            f"allowed: {nearest(name, known)}"  # not the one with the nearest letters, which may be 16 times as large
        )
    accelerator = elsewhere[family]
    same = [each.name for each in known.values() if each.accelerator == accelerator]
    has = f"its {accelerator}" if accelerator else "no accelerator"
    if not same:
        none = f"no worker here has {has}" if accelerator else "each worker here has an accelerator"
        return f"{none}; allowed: {', '.join(known)}"
    return f"with {has}: {', '.join(difflib.get_close_matches(name, same, n=3, cutoff=0) or same)}"
