"""What the rest of the program asks of a kind of cluster, one record a kind; what else is known is in its folder.

The folder's code is imported when it is used: the SDKs of clouds are large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

import infra.eks.machines
import infra.eks.rules
import infra.gke.machines
import infra.gke.rules
from infra.config import Rule, StackConfig, shared_sections
from infra.eks.section import EksConfig
from infra.gke.section import GkeConfig
from infra.machine import Machine
from trainer.config.section import Section, keys_of

if TYPE_CHECKING:
    from infra.bill import Estimate
    from infra.cluster import Cluster
    from infra.doctor.finding import Finding


_FOLDER = Path(__file__).parent


Until = Callable[[Callable[[], Any], float, str], Any]
"""Waits for a condition, at most so many seconds; the text says for what."""


class Proof(Protocol):
    """What `trainyard prove` asks of a cloud."""

    def delete_machine(self, provider_id: str) -> None:
        """End a node's machine without notice."""

    def interrupt(self, provider_id: str, until: Until) -> str:
        """Have a machine taken back as a Spot machine is. Returns how."""
        ...

    def leftovers(self, config: StackConfig, stack: str) -> tuple[str, list[str]]:
        """Which lists were looked through, and what of the stack is in them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One kind of cluster."""

    cluster: Callable[[StackConfig, str], Cluster]
    """Makes the cluster of a configuration and a stack's name."""
    doctor: Callable[[StackConfig, str], Iterator[Finding]]
    """Looks for what stands in the way of a first `pulumi up`."""
    storage: tuple[str, ...]
    """Kinds of the shared volume; the first is the default where the stack makes the cluster."""
    folder: Path | None = None
    """Where live.yaml, names.yaml and the other facts are."""
    section: type[Section] | None = None
    """Its section of a stack file, under the kind's name. None: the stack makes no cluster."""
    bill: Callable[[StackConfig, int], Estimate] | None = None
    """What a configuration costs with so many GiB of images. None: whoever runs the cluster pays for it."""
    proof: Callable[[StackConfig], Proof] | None = None
    """Breaks machines and lists leftovers, with the credentials of the environment. None: nobody may."""
    workers: Callable[[], Mapping[str, Machine]] = dict
    """Machine types that may train, by name."""
    rules: tuple[Rule, ...] = ()
    """What the cloud refuses."""
    complete: Callable[[StackConfig], StackConfig] = lambda config: config
    """Fills in what follows from other keys."""
    placeholders: Callable[[StackConfig], list[str]] = lambda config: []
    """What a stack file still has from the documents: a preview may have it, `pulumi up` not."""


def _existing_cluster(config: StackConfig, stack: str) -> Cluster:
    from infra.existing import existing_cluster

    return existing_cluster(config, stack)


def _existing_doctor(config: StackConfig, stack: str) -> Iterator[Finding]:
    from infra.doctor import existing, images

    yield from existing.checks(config, stack)
    yield from images.of_existing(config, stack)


def _gke_cluster(config: StackConfig, stack: str) -> Cluster:
    from infra.gke.stack import gke_cluster

    return gke_cluster(config, stack)


def _gke_doctor(config: StackConfig, stack: str) -> Iterator[Finding]:
    from infra.gke.doctor.checks import checks

    return checks(config, stack)


def _gke_bill(config: StackConfig, images_gib: int) -> Estimate:
    from infra.gke import cost

    return cost.estimate(config, images_gib)


def _gke_proof(config: StackConfig) -> Proof:
    from infra.gke.proof import Gcp

    return Gcp()


def _eks_cluster(config: StackConfig, stack: str) -> Cluster:
    from infra.eks.stack import eks_cluster

    return eks_cluster(config, stack)


def _eks_doctor(config: StackConfig, stack: str) -> Iterator[Finding]:
    from infra.eks.doctor.checks import checks

    return checks(config, stack)


def _eks_bill(config: StackConfig, images_gib: int) -> Estimate:
    from infra.eks import cost

    return cost.estimate(config, images_gib)


def _eks_proof(config: StackConfig) -> Proof:
    from infra.eks.proof import Aws

    return Aws(config.section(EksConfig).region)


#: By `cluster.kind`.
CLOUDS = {
    "existing": Cloud(cluster=_existing_cluster, doctor=_existing_doctor, storage=("hostPath", "storageClass")),
    "gke": Cloud(
        folder=_FOLDER / "gke",
        section=GkeConfig,
        rules=infra.gke.rules.RULES,
        workers=infra.gke.machines.workers,
        storage=("nfs", "filestore"),
        cluster=_gke_cluster,
        bill=_gke_bill,
        doctor=_gke_doctor,
        proof=_gke_proof,
    ),
    "eks": Cloud(
        folder=_FOLDER / "eks",
        section=EksConfig,
        rules=infra.eks.rules.RULES,
        workers=infra.eks.machines.workers,
        complete=infra.eks.rules.complete,
        placeholders=infra.eks.rules.placeholders,
        storage=("efs",),
        cluster=_eks_cluster,
        bill=_eks_bill,
        doctor=_eks_doctor,
        proof=_eks_proof,
    ),
}


def cloud_of(config: StackConfig) -> Cloud:
    """The record of a configuration's kind of cluster."""
    return CLOUDS[config.cluster.kind]


def sections() -> dict[str, type[Section]]:
    """Key under `trainyard:` -> class of the section: `cluster`, those of the clouds, those of every stack."""
    clouds = {kind: cloud.section for kind, cloud in CLOUDS.items() if cloud.section is not None}
    return {"cluster": shared_sections()["cluster"], **clouds, **shared_sections()}


def keys() -> dict[str, FieldInfo]:
    """Every key of a stack file, such as nodes.machineType, with its type, default and sentence."""
    found: dict[str, FieldInfo] = {}
    for name, section in sections().items():
        found |= keys_of(section, to_camel, f"{name}.")
    return found


def storage_kinds() -> dict[str, str]:
    """Each kind of shared volume -> the kind of cluster that has it."""
    return {volume: kind for kind, cloud in CLOUDS.items() for volume in cloud.storage}


def volume_kind(config: StackConfig) -> str:
    """The kind of the shared volume, with the default filled in; "": the cluster says."""
    cloud = cloud_of(config)
    return config.storage.kind or (cloud.storage[0] if cloud.section else "")
