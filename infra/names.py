"""Checks the names that a stack gives its parts against each service's limits: names.yaml, here for Kubernetes and in
each cloud's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from infra.clouds import CLOUDS
from infra.facts import load
from infra.sections import ClusterConfig

#: Stands for a zone's name, as long as the longest.
ZONE = "z" * 15
REMEDY = {"stack": "take another name for the stack (`pulumi stack init`)"}


@cache
def rows(kind: str) -> list[dict[str, Any]]:
    """The rows of names.yaml for a kind of cluster, the tightest first."""
    folders = [Path(__file__).parent, CLOUDS[kind].folder]
    files = [folder / "names.yaml" for folder in folders if folder]
    return [row for file in files if file.exists() for row in load(file)["names"]]


def unusable_names(cluster: ClusterConfig, stack: str) -> Iterator[str]:
    """For each name that the user chooses, one line about the first part that would get an invalid name from it."""
    chosen = {
        "cluster.name": ("{name}", cluster.name or ""),
        "cluster.namespace": ("{namespace}", cluster.namespace),
        "stack": ("{stack}", stack.lower()),
    }
    for key, (placeholder, value) in chosen.items():
        for row in rows(cluster.kind):
            if placeholder in row["made"] and (problem := _problem(row, placeholder, value)):
                yield f"{key}: '{value}' {problem}; {REMEDY.get(key, f'set {key}')}"
                break


def resource_name(row: dict[str, Any], **chosen: str) -> str:
    """The name of one part."""
    return row["made"].format(zone=ZONE, **{"name": "", "namespace": "", "stack": "", **chosen})


def _problem(row: dict[str, Any], placeholder: str, value: str) -> str:
    found = resource_name(row, **{placeholder.strip("{}"): value})
    most = row["most"] - len(resource_name(row))
    if len(value) > most:
        return f"has {len(value)} characters; allowed: {most}, because {row['of']} is called '{row['made']}'"
    if not row.get("least", 1) <= len(found) or not re.fullmatch(row["pattern"], found):
        return f"makes {row['of']} '{found}'; allowed: {row['allowed']}"
    if "not" in row and re.match(row["not"], found):
        return f"makes {row['of']} '{found}'; allowed: {row['allowed']}"
    return ""
