"""A stack's configuration as the rest of the program uses it; infra/parse.py builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

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
from infra.stackfiles import ConfigError as ConfigError
from trainer.config.base import Section
from trainer.config.schema import Config as TrainingConfig

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
    training_name: str = ""
    """Of one of several trainings; empty: the stack has one."""
    less_urgent: int = 0
    """Of several trainings, how many come after this one."""
    trainings: Mapping[str, StackConfig] = field(default_factory=dict)
    """Several trainings by name, the most urgent first, each as a stack that has it alone; empty: there is one."""

    @property
    def each_training(self) -> tuple[StackConfig, ...]:
        """The stack with each of its trainings, the most urgent first."""
        return tuple(self.trainings.values()) or (self,)

    @property
    def name(self) -> str:
        """Name of the cluster that the stack makes."""
        assert self.cluster.name is not None, "parse() fills it in"
        return self.cluster.name

    @property
    def machine(self) -> Machine:
        """The machine type of the nodes that train. Raises Absent."""
        if self.node_machine is None:
            raise Absent
        return self.node_machine

    @property
    def torch(self) -> str:
        """torch's build in the trainer's image: cpu or cuda."""
        return self.image.torch or ("cuda" if self.workers.gpus else "cpu")

    @property
    def threads_per_core(self) -> int | None:
        """`nodes.threadsPerCore`, where the cloud has it. Raises Absent."""
        return getattr(self.section(NodesConfig), "threads_per_core", None)

    def value(self, key: str) -> Any:
        """The value of a key such as nodes.machineType, as a stack file has it; None: the configuration has none."""
        owner, name = self._owner(key)
        found = getattr(owner, name, None)
        return list(found) if isinstance(found, tuple) else found  # as a state returns it

    def gives(self, key: str) -> bool:
        """Whether the stack file gives a key."""
        owner, name = self._owner(key)
        return owner is not None and name in owner.model_fields_set

    def _owner(self, key: str) -> tuple[Section | None, str]:
        """The section that has a key, and the key's name there."""
        first, *inner, last = key.split(".")
        found: Any = self.cloud if first == self.cluster.kind else getattr(self, first, None)
        for part in (*inner, last):
            if not isinstance(found, Section):
                return None, ""
            own = type(found).model_fields
            name = next((name for name, field in own.items() if part in (name, field.alias)), "")
            owner, found = found, getattr(found, name, None)
        return owner, name

    def section(self, wanted: type[_Section]) -> _Section:
        """The section of a class that only some stacks have, such as GkeConfig. Raises Absent without it."""
        for found in (self.cloud, self.nodes, self.storage):
            if isinstance(found, wanted):
                return found
        raise Absent


class Absent(LookupError):
    """A rule reads a section or a machine that only other stacks have. It ends, and finds nothing."""


#: Yields one line per problem: `path: what was given; what is allowed`.
Rule = Callable[[StackConfig], Iterator[str]]


@dataclass(frozen=True)
class Example:
    """A configuration that breaks a rule."""

    stack: str
    """The stack file that is changed; empty: a stack with no more than a context."""
    change: dict[str, dict[str, Any] | None]
    said: str
    """How the rule's line begins: its key, what was given and what is allowed."""


#: Rule -> configurations that break it; one test runs them all (tests/infra/test_rules.py).
EXAMPLES: dict[Rule, list[Example]] = {}


def breaks(stack: str, change: dict[str, dict[str, Any] | None], said: str) -> Callable[[Rule], Rule]:
    """Decorate a rule with a configuration that breaks it, and how its line begins then."""

    def keep(rule: Rule) -> Rule:
        EXAMPLES.setdefault(rule, []).insert(0, Example(stack, change, said))
        return rule

    return keep


def shared_sections() -> dict[str, type[Section]]:
    """Key -> class of the sections that stacks of every kind may have; of `nodes` and `storage` what all have."""
    hints = get_type_hints(StackConfig)
    own = ("cloud", "node_machine", "training_name", "less_urgent", "trainings")
    names = [each.name for each in fields(StackConfig) if each.name not in own]
    return {name: NodesConfig if name == "nodes" else hints[name] for name in names}
