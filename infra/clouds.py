"""What the rest of the program asks of a kind of cluster: one record per kind, whose folder has everything else.

A folder's code is imported on first use, because the clouds' SDKs are large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

import infra.eks.machines
import infra.eks.rules
import infra.gke.machines
import infra.gke.rules
from infra.config import Rule, StackConfig, shared_sections
from infra.eks.keys import EksConfig, EksNodes, EksStorage
from infra.facts import load
from infra.gke.keys import GkeConfig, GkeNodes, GkeStorage
from infra.machine import Machine
from infra.sections import ExistingStorage, NodesConfig, StorageConfig
from trainer.config.base import Section, keys_of

if TYPE_CHECKING:
    from infra.cluster import Cluster
    from infra.cost import Estimate
    from infra.finding import Finding


_FOLDER = Path(__file__).parent


Until = Callable[[Callable[[], Any], float, str], Any]
"""Waits at most so many seconds for a condition, which the text describes."""


class Proof(Protocol):
    """What `trainyard prove` asks of a cloud."""

    def delete_machine(self, provider_id: str) -> None:
        """End a node's machine without notice."""

    def interrupt(self, provider_id: str, until: Until) -> str:
        """Let the cloud take a machine back like a Spot machine. Returns how it did that."""
        ...

    def leftovers(self, config: StackConfig, stack: str) -> tuple[str, list[str]]:
        """The cloud's lists that were searched, and the stack's resources in them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One kind of cluster."""

    cluster: Callable[[StackConfig, str], Cluster]
    """Makes the cluster of a configuration and a stack's name."""
    doctor: Callable[[StackConfig, str], Iterator[Finding]]
    """Looks for what stands in the way of a first `pulumi up`."""
    place: Callable[[StackConfig], str]
    """Its kind and where it is, in words."""
    storage: type[StorageConfig]
    """Section `storage`."""
    nodes: type[NodesConfig] | None = None
    """Section `nodes`. None: the stack makes no nodes."""
    folder: Path | None = None
    """Where names.yaml and the other facts are."""
    section: type[Section] | None = None
    """Section of a stack file with the kind's name. None: the stack makes no cluster."""
    bill: Callable[[StackConfig, int], Estimate] | None = None
    """The bill of a configuration with so many GiB of images. None: the cluster's owner pays."""
    proof: Callable[[StackConfig], Proof] | None = None
    """Breaks machines and lists leftovers, with the credentials of the environment. None: not possible."""
    sdk: str = ""
    """Python package of the Pulumi provider that makes its resources."""
    machines: Callable[[], Mapping[str, Machine]] = dict
    """Machine types that its nodes may have, by name."""
    rules: tuple[Rule, ...] = ()
    """Rules of this cloud alone."""
    complete: Callable[[StackConfig], StackConfig] = lambda config: config
    """Fills in keys that follow from others."""
    placeholders: Callable[[StackConfig], list[str]] = lambda config: []
    """Problems with placeholders of the shipped stack files: a preview may have them, `pulumi up` not."""
    spot: Mapping[str, str] = field(default_factory=dict)
    """Labels of nodes that can be taken back."""
    docker_login: Callable[[StackConfig], list[str]] | None = None
    """The command that lets Docker push to the stack's registry. None: it needs none."""
    answers: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = field(default_factory=dict)
    """Answers to provider functions that the recordings cannot take from computed.yaml."""

    def workers(self) -> dict[str, Machine]:
        """The machine types that may train, by name."""
        return {name: machine for name, machine in self.machines().items() if not machine.system}

    def system(self) -> dict[str, Machine]:
        """The machine types of the nodes for all else, by name; none where that is the cloud's own business."""
        return {name: machine for name, machine in self.machines().items() if machine.system}


def later(target: str) -> Callable[..., Any]:
    """MODULE:FUNCTION of this folder, imported when it is called."""
    module, _, name = target.partition(":")
    return lambda *given: getattr(import_module(f"infra.{module}"), name)(*given)


#: By `cluster.kind`.
CLOUDS = {
    "existing": Cloud(
        storage=ExistingStorage,
        cluster=later("existing:existing_cluster"),
        doctor=later("doctor.existing:checks"),
        place=lambda config: "a cluster that was there before",
        spot={"karpenter.sh/capacity-type": "spot"},  # docs of Karpenter, 2026-11-25
    ),
    "gke": Cloud(
        folder=_FOLDER / "gke",
        section=GkeConfig,
        rules=infra.gke.rules.RULES,
        machines=infra.gke.machines.machines,
        nodes=GkeNodes,
        storage=GkeStorage,
        cluster=later("gke.stack:gke_cluster"),
        bill=later("gke.cost:estimate"),
        doctor=later("gke.doctor.checks:checks"),
        proof=lambda config: later("gke.proof:Gcp")(),
        place=lambda config: f"GKE in {config.section(GkeConfig).zone}",
        sdk="pulumi-gcp",
        spot={"cloud.google.com/gke-spot": "true"},  # docs of GKE, 2026-11-25
        docker_login=lambda config: [
            *("gcloud", "auth", "configure-docker", "--quiet"),
            f"{config.section(GkeConfig).region}-docker.pkg.dev",
        ],
    ),
    "eks": Cloud(
        folder=_FOLDER / "eks",
        section=EksConfig,
        rules=infra.eks.rules.RULES,
        machines=infra.eks.machines.machines,
        complete=infra.eks.rules.complete,
        placeholders=infra.eks.rules.placeholders,
        nodes=EksNodes,
        storage=EksStorage,
        cluster=later("eks.stack:eks_cluster"),
        bill=later("eks.cost:estimate"),
        doctor=later("eks.doctor.checks:checks"),
        proof=lambda config: later("eks.proof:Aws")(config.section(EksConfig).region),
        place=lambda config: f"EKS in {config.section(EksConfig).region}",
        sdk="pulumi-aws",
        spot={"eks.amazonaws.com/capacityType": "SPOT"},  # docs of EKS, 2026-11-25
        answers={"aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings": infra.eks.machines.offerings},
    ),
}


def tables(name: str, *beside: Path) -> dict[str, Any]:
    """The rows of all data files of this name: those in `beside`, and of the clouds that have one."""
    folders = (*beside, *(cloud.folder for cloud in CLOUDS.values() if cloud.folder))
    files = (folder / name for folder in folders)
    return {key: row for file in files if file.exists() for key, row in load(file).items()}


def cloud_of(config: StackConfig) -> Cloud:
    """The record of a configuration's kind of cluster."""
    return CLOUDS[config.cluster.kind]


def sections(kind: str) -> dict[str, type[Section]]:
    """Key under `trainyard:` -> class of the section, for a kind of cluster."""
    cloud, shared = CLOUDS[kind], shared_sections()
    found = {
        "cluster": shared["cluster"],
        kind: cloud.section,
        **shared,
        "nodes": cloud.nodes,
        "storage": cloud.storage,
    }
    return {key: section for key, section in found.items() if section}


def keys(kind: str = "") -> dict[str, FieldInfo]:
    """Every key of a stack file, such as nodes.machineType, with its type, default and sentence; of all kinds of
    cluster by default."""
    found: dict[str, FieldInfo] = {}
    for each in [kind] if kind else reversed(CLOUDS):
        for name, section in sections(each).items():
            found |= keys_of(section, to_camel, f"{name}.")
    return found
