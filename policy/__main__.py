"""The policy pack for `pulumi preview --policy-pack policy`: connects the rules of this package to Pulumi's engine.

The engine starts it in this folder, in an environment of its own (.venv/policy).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# The engine puts this folder on the path, not the one that the package `policy` is in.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pulumi_policy import (  # noqa: E402
    EnforcementLevel,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError  # noqa: E402

from policy import RULES  # noqa: E402
from policy.rules import UNKNOWN, Resource, Rule, demand, name  # noqa: E402


def validation(rule: Rule) -> Callable[[ResourceValidationArgs, ReportViolation], None]:
    """A rule as Pulumi calls it: with each resource's inputs, before the resource is made.

    A policy over the whole stack would run after everything is made, and see the cloud's outputs instead, the
    autoscaler's nodes included.
    """

    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        resource = Resource(
            type=args.resource_type,
            name=args.name,
            urn=args.urn,
            inputs=_plain(args.props),
            provider=args.provider.urn if args.provider else "",
        )
        stack = {resource.urn: resource}
        if args.provider:
            made_by = args.provider
            stack[made_by.urn] = Resource(
                type=made_by.resource_type, name=made_by.name, urn=made_by.urn, inputs=_plain(made_by.props)
            )
        for problem in rule(resource, stack):
            report(problem)

    return validate


def _plain(value: Any) -> Any:
    """Values without Pulumi's guard, which raises for a value that is not known yet."""
    if isinstance(value, str):
        return value
    if hasattr(value, "keys"):
        return {key: _guarded(lambda key=key: value[key]) for key in value}
    if isinstance(value, Iterable):
        # pyrefly: ignore[bad-argument-type, bad-index]
        return [_guarded(lambda at=at: value[at]) for at in range(len(value))]
    return value


def _guarded(read: Callable[[], Any]) -> Any:
    try:
        return _plain(read())
    except UnknownValueError:
        return UNKNOWN


PolicyPack(
    name="trainyard",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        ResourceValidationPolicy(name=name(rule), description=demand(rule), validate=validation(rule)) for rule in RULES
    ],
)
