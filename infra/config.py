"""A stack's configuration as the rest of the program uses it; infra/parse.py builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TypeVar, get_type_hints

from infra.machine import Machine
from infra.sections import (
    CheckConfig,
    ClusterConfig,
    DatasetConfig,
    ImageConfig,
    JobConfig,
    NodesConfig,
    RendezvousConfig,
    SecretsConfig,
    StorageConfig,
    TensorBoardConfig,
    WorkersConfig,
)
from infra.stackfiles import for_stack
from trainer.config.schema import Config as TrainingConfig
from trainer.config.section import Section

_Section = TypeVar("_Section", bound=Section)


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """All sections of a stack file, with every default filled in."""

    cluster: ClusterConfig
    cloud: Section | None
    """The section named after `cluster.kind`, with which the stack makes its cluster; None: the cluster exists."""
    nodes: NodesConfig | None
    """The nodes that train; None: the stack makes none."""
    workers: WorkersConfig
    storage: StorageConfig
    image: ImageConfig
    rendezvous: RendezvousConfig
    dataset: DatasetConfig
    training: TrainingConfig
    job: JobConfig
    check: CheckConfig
    tensorboard: TensorBoardConfig
    secrets: SecretsConfig
    node_machine: Machine | None = None
    """Facts about `nodes.machineType`; None: unknown, or no nodes."""

    @property
    def name(self) -> str:
        """Name of the cluster that the stack makes."""
        assert self.cluster.name is not None, "parse() fills it in"
        return self.cluster.name

    @property
    def machine(self) -> Machine:
        """The machine type of the nodes that train. Raises Unreadable."""
        if self.node_machine is None:
            raise Unreadable
        return self.node_machine

    def section(self, wanted: type[_Section]) -> _Section:
        """The section of a class that only some stacks have, such as GkeConfig. Raises Unreadable without it."""
        for found in (self.cloud, self.nodes):
            if isinstance(found, wanted):
                return found
        raise Unreadable


class Unreadable(LookupError):
    """A section that a rule reads is missing or invalid. The rule ends: the mistakes are reported already."""


class Mistaken:
    """Stands in for an invalid section: reading a key of it ends the rule."""

    def __getattr__(self, name: str) -> object:
        raise Unreadable


#: Yields one line per problem: `path: what was given; what is allowed`.
Rule = Callable[[StackConfig], Iterator[str]]


class ConfigError(ValueError):
    """Every problem of a stack's configuration, one line each."""

    def __init__(self, stack: str, problems: list[str]):
        self.problems = problems = [for_stack(problem, stack) for problem in problems]
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"invalid configuration of stack {stack} ({count})", *problems]))


def shared_sections() -> dict[str, type[Section]]:
    """Key -> class of the sections that stacks of every kind may have."""
    hints = get_type_hints(StackConfig)
    own = ("cloud", "node_machine")
    return {
        field.name: NodesConfig if field.name == "nodes" else hints[field.name]
        for field in fields(StackConfig)
        if field.name not in own
    }
