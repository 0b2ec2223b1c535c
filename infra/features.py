"""What a feature needs of its cloud before it works: infra/gke/features.yaml and infra/eks/features.yaml, by a schema.

The program enables and grants from these tables, the doctor checks from them, and tests/infra/test_features_gke.py and
test_features_aws.py check every stack's graph against them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from infra.facts import load


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Trace(_Fact):
    """How a feature shows in a resource."""

    type: str
    """Pulumi's type token, such as gcp:container/nodePool:NodePool, or a pattern: gcp:compute/*."""
    where: dict[str, Any] = {}
    """Dotted path of an input -> its value, a pattern of its text, or a list of allowed ones; "*": any value that is
    not empty. All paths must match; a path goes through lists."""

    def matches(self, type_: str, inputs: Mapping[str, Any]) -> bool:
        return fnmatchcase(type_, self.type) and all(_has(inputs, *condition) for condition in self.where.items())


class Feature(_Fact):
    """One feature, and everything that it needs."""

    why: str
    """What happens without it, in one line."""
    source: str
    """Where it was read."""
    date: datetime.date
    """When it was read."""
    seen: tuple[Trace, ...] = ()
    """Resources that use it."""
    apis: tuple[str, ...] = ()
    """Services of Google Cloud that must be enabled."""
    roles: dict[str, tuple[str, ...]] = {}
    """Identity -> its roles or policies. `nodes`: the nodes' identity; the file explains any other."""
    permissions: dict[str, str] = {}
    """Permission that `pulumi up` needs -> a role or policy that grants it."""
    addons: tuple[str, ...] = ()
    """Add-ons of the cluster."""
    quotas: tuple[str, ...] = ()
    """Names of the quotas that it counts against."""
    versions: dict[str, str] = {}
    """Component -> its oldest version that has the feature."""


@cache
def features(cloud: str) -> dict[str, Feature]:
    """Every feature of a cloud by its name, in the order of the file."""
    content = load(Path(__file__).parent / cloud / "features.yaml")
    return {name: Feature.model_validate(entry) for name, entry in content.items()}


def features_of(cloud: str, type_: str, inputs: Mapping[str, Any]) -> dict[str, Feature]:
    """The features that a resource uses."""
    return {
        name: feature
        for name, feature in features(cloud).items()
        if any(trace.matches(type_, inputs) for trace in feature.seen)
    }


def _has(inputs: Mapping[str, Any], path: str, wanted: Any) -> bool:
    wanted = wanted if isinstance(wanted, list) else [wanted]
    return any(_equals(value, one) for value in _values(inputs, path.split(".")) for one in wanted)


def _equals(value: Any, wanted: Any) -> bool:
    if wanted == "*":
        return value not in (None, "", [], {})
    return fnmatchcase(value, wanted) if isinstance(value, str) and isinstance(wanted, str) else value == wanted


def _values(content: Any, path: list[str]) -> Iterator[Any]:
    """Every value under a path, through lists on the way."""
    if isinstance(content, list):
        for item in content:
            yield from _values(item, path)
    elif not path:
        yield content
    elif isinstance(content, Mapping) and path[0] in content:
        yield from _values(content[path[0]], path[1:])
