"""Check stacks against the policy rules, without Pulumi's engine or credentials.

Unlike the policy pack it sees `deletedWith`, but nothing that the cloud adds.
"""

from __future__ import annotations

from cli.target import StackNames
from policy import RULES
from policy.rules import Resource, Violation, violations
from review.recording import SIGNATURE, Recorded, Recording, record_anywhere


def recorded(item: Recorded) -> Resource:
    return Resource(
        type=item.type,
        name=item.name,
        urn=item.urn,
        inputs={key: _revealed(value) for key, value in item.inputs.items()},
        provider=item.provider.rsplit("::", 1)[0],
        deleted_with=item.deleted_with,
    )


def _revealed(value: object) -> object:
    """Replace secrets by their values, as the engine shows them to a pack."""
    if isinstance(value, dict):
        return _revealed(value["value"]) if SIGNATURE in value else {key: _revealed(v) for key, v in value.items()}
    return [_revealed(item) for item in value] if isinstance(value, list) else value


def broken(stack: Recording) -> list[Violation]:
    return violations(RULES, (recorded(item) for item in stack.resources))


def check(names: StackNames = None) -> int:
    failed = False
    for name in names or []:
        stack = record_anywhere(name)
        found = broken(stack)
        failed |= bool(found)
        print(f"{name}: {len(stack.resources)} resources, {len(RULES)} rules, {len(found) or 'none'} broken")
        for violation in found:
            print(f"  {violation}")
    return int(failed)
