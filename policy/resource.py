"""A declared resource as the rules see it, whoever shows it to them: Pulumi's engine, or a recorded stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
