"""The mark on everything that a stack is billed for: the bill and the check for leftovers go by it."""

from __future__ import annotations

from collections.abc import Mapping


def marks(stack: str) -> dict[str, str]:
    """Labels or tags; lower case, since Google's labels know no other."""
    return {"app": "trainyard", "stack": stack.lower()}


def is_marked(found: Mapping[str, str] | None, stack: str) -> bool:
    """Whether labels or tags that a cloud tells are those of this stack."""
    return bool(found) and marks(stack).items() <= found.items()
