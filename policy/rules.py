"""What a rule is, and a declared resource as rules see it: no Pulumi, no cloud.

Pulumi's engine shows resources to the rules, or a recorded stack does. docs/operations.md lists the rules; each is
broken on purpose in tests/policy/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: In place of a value that is not known before something exists, at preview; no rule can be broken by it.
UNKNOWN = "(unknown)"


@dataclass(frozen=True, kw_only=True)
class Resource:
    type: str
    """Pulumi's type token, `gcp:container/cluster:Cluster`."""
    name: str
    urn: str
    inputs: Mapping[str, Any]
    """As the program gave them, camelCase; secrets as whatever the observer shows."""
    provider: str = ""
    """URN of its provider; empty: none, or not a custom resource."""
    deleted_with: str | None = None
    """URN; empty: it is deleted by itself; None: not told (the engine tells a policy pack no such option)."""

    @property
    def is_kubernetes(self) -> bool:
        return self.type.startswith("kubernetes:")

    def at(self, *path: str) -> Any:
        """What the inputs have at a path; None where there is nothing."""
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
    """As the pack calls it: no-open-network."""
    return rule.__name__.replace("_", "-")


def demand(rule: Rule) -> str:
    """What the rule asks for, one sentence."""
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
