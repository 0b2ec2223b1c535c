"""Recordings of the cloud stacks for tests: configurations with changes, and what comes before what."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from infra.recording import Recorded, Recording, record, stack_file_values

Values = dict[str, Any]


def changed(stack: str, **sections: dict[str, Any] | None) -> Values:
    """The values of a stack file with keys of sections changed; None removes a section."""
    values = stack_file_values(stack)
    for name, change in sections.items():
        if change is None:
            values.pop(name, None)
        else:
            values[name] = {**values.get(name, {}), **change}
    return values


@lru_cache(maxsize=4)
def recorded(stack: str) -> Recording:
    """What a stack file declares; one recording for all tests that only look."""
    return record(stack)


def earlier(stack: Recording, item: Recorded) -> set[str]:
    """URNs of everything that is made before `item`, and so destroyed after it: over all levels, providers included."""
    by_urn = {other.urn: other for other in stack.resources}
    found: set[str] = set()
    waiting = [item]
    while waiting:
        current = waiting.pop()
        provider = current.provider.rsplit("::", 1)[0]
        for urn in {*current.dependencies, provider} - found:
            if urn in by_urn:
                found.add(urn)
                waiting.append(by_urn[urn])
    return found
