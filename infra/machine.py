"""A machine type, and how much of it is left for pods by each cloud's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from infra.sections import DatasetConfig, ImageConfig

#: (CPU, GiB) that the cluster's own pods request on a worker node, on top of what the kubelet reserves. GKE: node
#: agent, fluent-bit, metrics and Prometheus collectors, CSI drivers, metadata server, device plugin, DCGM exporter;
#: higher than their requests as of 1.34, because each release adds a pod. EKS: aws-node with its policy agent,
#: kube-proxy, pod identity agent, node monitoring agent, EFS driver, and ours: device plugin and DCGM exporter.
DAEMONS = {"gcp": (0.75, 1.5), "aws": (0.6, 1.0)}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine type of Compute Engine, or an instance type of EC2."""

    name: str
    cloud: Literal["gcp", "aws"] = "gcp"
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
    zones: frozenset[str] | None = None
    """Zones that offer it, as of the date in zones.yaml; None: nearly all, and `trainyard doctor` asks."""
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

    Both clouds reserve 6 % of the first core, 1 % of the second, 0.5 % of the next two and 0.25 % of the rest, and 100
    MiB of memory for evictions. GKE keeps 25 % of the first 4 GiB, 20 % of the next 4, 10 % of the next 8, 6 % of the
    next 112, 2 % of the rest (cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes); EKS 255 MiB and 11 MiB
    for each pod that the node may have (awslabs/amazon-eks-ami, nodeadm).
    """
    cpus = machine.threads(threads_per_core)
    reserved = _by_steps(cpus, [(1, 0.06), (1, 0.01), (2, 0.005), (None, 0.0025)])
    if machine.cloud == "aws":
        # The adapter's driver reserves huge pages: 5,128 of 2 MiB (aws-efa-installer).
        huge = 5128 * 2 if machine.efa else 0
        kept, seen = (255 + 11 * machine.max_pods + huge) / 1024, 0.925
    else:
        kept = _by_steps(machine.memory_gib, [(4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (None, 0.02)])
        seen = 0.97
    # Firmware, hypervisor and kernel take part of the nominal memory before the kubelet sees it: 3 % on Google Cloud
    # (e2-standard-4: 12.87 GiB are left), up to 7.5 % on EC2 (Karpenter's VM_MEMORY_OVERHEAD_PERCENT).
    return round(cpus - reserved, 2), round(machine.memory_gib * seen - kept - 100 / 1024, 2)


def for_pods(machine: Machine, threads_per_core: int | None = None) -> tuple[float, float]:
    """(CPU, GiB) that one training pod can have on a node of its own: whole processors, whole GiB."""
    cpu, memory = allocatable(machine, threads_per_core)
    daemons_cpu, daemons_gib = DAEMONS[machine.cloud]
    return float(int(cpu - daemons_cpu)), float(int(memory - daemons_gib))


def refuse_dataset(dataset: DatasetConfig, machine: Machine, key: str) -> Iterator[str]:
    """Refuse a dataset Job that fits no node without accelerators; `key` is the key of their machine type."""
    (cpu, memory), (daemons_cpu, daemons_gib) = allocatable(machine), DAEMONS[machine.cloud]
    needs = (("cpu", dataset.cpu, cpu - daemons_cpu), ("memoryGib", dataset.memory_gib, memory - daemons_gib))
    for name, asked, most in needs:
        if asked > most:
            yield (
                f"dataset.{name}: {asked:g} fits no {machine.name}; allowed: at most {int(most * 10) / 10:g}, or a "
                f"larger {key}"
            )


def refuse_reference(key: str, reference: str | None, image: ImageConfig) -> Iterator[str]:
    """Refuse a prebuilt image that is missing or not by digest, and one that nothing would use."""
    if image.builder != "prebuilt":
        if reference:
            yield f"{key}: only used with image.builder prebuilt; set image.builder, or remove {key}"
    elif not reference:
        yield f"{key}: missing; builder prebuilt needs the image as name@sha256:<64 hex digits>"
    elif not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", reference):
        yield f"{key}: '{reference}' is not by digest; allowed: name@sha256:<64 hex digits>"


def _by_steps(amount: float, steps: list[tuple[float | None, float]]) -> float:
    total = 0.0
    for width, share in steps:
        part = amount if width is None else min(amount, width)
        total += part * share
        amount -= part
    return total


def nearest(name: str, names: Iterable[str]) -> str:
    """The names to suggest for an unknown one: those of its family, else all."""
    family = re.split("[-.]", name)[0]
    related = [known for known in names if re.split("[-.]", known)[0] == family]
    return ", ".join(related or names)
