"""What is known of a machine type, and what of it is left for pods, by each cloud's own rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from infra.sections import DatasetConfig

#: What the cluster's own pods on a worker node ask for, (CPU, GiB), on top of what the kubelet reserves. GKE: node
#: agent, fluent-bit, metrics and Prometheus collectors, CSI drivers, metadata server, device plugin, DCGM exporter;
#: higher than their requests as of 1.34, because each release adds one. EKS: aws-node with its policy agent,
#: kube-proxy, pod identity agent, node monitoring agent, EFS driver, and ours: device plugin and DCGM exporter.
DAEMONS = {"gcp": (0.75, 1.5), "aws": (0.6, 1.0)}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine type of Compute Engine, or an instance type of EC2."""

    name: str
    cloud: Literal["gcp", "aws"] = "gcp"
    family: str
    """The series as prices are listed: c3-highmem, a2-highgpu, e2-standard; g4dn, m6i."""
    vcpus: int
    """Hyperthreads."""
    memory_gib: float
    accelerator: str | None = None
    """Kubernetes' name on this cloud for the accelerators of the machine."""
    accelerators: int = 0
    accelerator_gib: float = 0.0
    """Memory of one accelerator."""
    precisions: tuple[str, ...] = ("fp32",)
    """What its matrix units multiply, or its registers at least."""
    local_ssds: tuple[int, ...] = (0,)
    """How many local SSDs (375 GB each on Google Cloud) can be had."""
    bundled_ssds: int = 0
    """Local SSDs that the machine always has."""
    boot_disks: tuple[str, ...] = ("pd-standard", "pd-balanced", "pd-ssd")
    zones: frozenset[str] | None = None
    """Where it is offered, as of the date in zones.yaml; None: nearly everywhere, `trainyard doctor` asks."""
    capability: str | None = None
    """Processor flag that the training is fast with, checked when it starts."""
    compact: bool = True
    """A pool of it can be placed compactly."""
    threads_selectable: bool = True
    """Whether hyperthreads can be switched off (threads per core 1)."""
    max_pods: int = 110
    """What the node's network addresses allow; the kubelet of EKS reserves memory by it."""
    system: bool = False
    """For the system pool, and not for training."""
    efa: bool = False
    """Whether an Elastic Fabric Adapter can be attached: the network between nodes without the kernel's TCP."""

    def threads(self, per_core: int | None) -> int:
        """Logical processors with `per_core` threads on each core; None: as the machine comes, two."""
        return self.vcpus // 2 * (per_core or 2)


def machine_type(**fields: Any) -> Machine:
    """A machine type as a data file has it: lists for tuples."""
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
        # With the driver of the adapter comes its reserve of huge pages: 5,128 of 2 MiB (aws-efa-installer).
        huge = 5128 * 2 if machine.efa else 0
        kept, seen = (255 + 11 * machine.max_pods + huge) / 1024, 0.925
    else:
        kept = _by_steps(machine.memory_gib, [(4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (None, 0.02)])
        seen = 0.97
    # Firmware, hypervisor and kernel take some of what is sold before the kubelet sees it: 3 % on Google Cloud
    # (e2-standard-4: 12.87 GiB are left), up to 7.5 % on EC2 (Karpenter's VM_MEMORY_OVERHEAD_PERCENT).
    return round(cpus - reserved, 2), round(machine.memory_gib * seen - kept - 100 / 1024, 2)


def for_pods(machine: Machine, threads_per_core: int | None = None) -> tuple[float, float]:
    """(CPU, GiB) that one training pod can have on a node of its own: whole processors, whole GiB."""
    cpu, memory = allocatable(machine, threads_per_core)
    daemons_cpu, daemons_gib = DAEMONS[machine.cloud]
    return float(int(cpu - daemons_cpu)), float(int(memory - daemons_gib))


def refuse_dataset(dataset: DatasetConfig, machine: Machine, key: str) -> Iterator[str]:
    """What says that the dataset Job fits no node without accelerators, where `key` names their machine type."""
    (cpu, memory), (daemons_cpu, daemons_gib) = allocatable(machine), DAEMONS[machine.cloud]
    needs = (("cpu", dataset.cpu, cpu - daemons_cpu), ("memoryGib", dataset.memory_gib, memory - daemons_gib))
    for name, asked, most in needs:
        if asked > most:
            yield (
                f"dataset.{name}: {asked:g} fits no {machine.name}; allowed: at most {int(most * 10) / 10:g}, or a "
                f"larger {key}"
            )


def _by_steps(amount: float, steps: list[tuple[float | None, float]]) -> float:
    total = 0.0
    for width, share in steps:
        part = amount if width is None else min(amount, width)
        total += part * share
        amount -= part
    return total


def nearest(name: str, names: Iterable[str]) -> str:
    """What to say about a name that is not in `names`."""
    family = re.split("[-.]", name)[0]
    related = [known for known in names if re.split("[-.]", known)[0] == family]
    return ", ".join(related or names)
