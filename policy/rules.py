"""What a rule is, and a declared resource as rules see it; needs neither Pulumi nor a cloud.

The resources come from Pulumi's engine or from a recorded stack. docs/operations.md lists the rules;
tests/policy/test_rules.py breaks each on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Stands for a value that is unknown at preview, before something exists; it breaks no rule.
UNKNOWN = "(unknown)"


@dataclass(frozen=True, kw_only=True)
class Resource:
    type: str
    """Pulumi's type token, `gcp:container/cluster:Cluster`."""
    name: str
    urn: str
    inputs: Mapping[str, Any]
    """As the program gave them, camelCase; secrets in the form of the source."""
    provider: str = ""
    """URN of its provider; empty: none, or not a custom resource."""
    deleted_with: str | None = None
    """URN; empty: it is deleted on its own; None: unknown (the engine does not tell a policy pack this option)."""

    @property
    def is_kubernetes(self) -> bool:
        return self.type.startswith("kubernetes:")

    def at(self, *path: str) -> Any:
        """The input at a path; None where there is none."""
        value: Any = self.inputs
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


#: All resources of a stack, by URN.
Stack = Mapping[str, Resource]
#: What is wrong with one resource, a sentence each. The first line of the docstring says what the rule demands.
Rule = Callable[[Resource, Stack], Iterator[str]]


@dataclass(frozen=True)
class Violation:
    rule: str
    resource: Resource
    problem: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.resource.type} {self.resource.name}: {self.problem}"


def name(rule: Rule) -> str:
    """Name of a rule in the pack, such as no-open-network."""
    return rule.__name__.replace("_", "-")


def demand(rule: Rule) -> str:
    """What the rule demands, in one sentence."""
    return (rule.__doc__ or "").partition("\n")[0]


def violations(rules: Iterable[Rule], resources: Iterable[Resource]) -> list[Violation]:
    """Everything that breaks one of the rules, in the order of the resources."""
    stack: Stack = {resource.urn: resource for resource in resources}
    return [
        Violation(name(rule), resource, problem)
        for resource in stack.values()
        for rule in rules
        for problem in rule(resource, stack)
    ]
