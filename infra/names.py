"""Refuses names with which a cloud or Kubernetes would refuse a part of the stack, when the cluster is half made."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.clouds import CLOUDS
from infra.facts import load
from infra.sections import ClusterConfig


def unusable_names(cluster: ClusterConfig, stack: str) -> Iterator[str]:
    """One line for each name that the user chooses, and that names.yaml of the cloud's folder does not allow."""
    if re.match("default$|kube-", cluster.namespace):
        yield (
            f"cluster.namespace: '{cluster.namespace}' is Kubernetes' own, and the stack's is destroyed with it; "
            "give another name"
        )
    folder = CLOUDS[cluster.kind].folder
    rules = load(folder / "names.yaml") if folder and (folder / "names.yaml").exists() else {}
    chosen = {"cluster.name": (cluster.name or "", "set cluster.name"), "stack": (stack.lower(), "rename the stack")}
    for key, rule in rules.items():
        value, remedy = chosen[key]
        if not re.fullmatch(rule["pattern"], value):
            yield f"{key}: '{value}' is no name that all parts can have; allowed: {rule['allowed']}; {remedy}"
