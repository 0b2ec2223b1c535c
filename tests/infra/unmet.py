"""What must exist before a resource is created on Google Cloud, by infra/gke/features.yaml and zones.yaml.

The cloud refuses some resources that come too early. It accepts others, but then no node comes, or no pod starts on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.features import features_of
from infra.gke.machines import machines

Inputs = Mapping[str, Any]
SERVICE, CLUSTER, POOL, COMPUTE_CLASS = (
    "gcp:projects/service:Service",
    "gcp:container/cluster:Cluster",
    "gcp:container/nodePool:NodePool",
    "kubernetes:cloud.google.com/v1:ComputeClass",
)


def unmet(type_: str, inputs: Inputs, living: Sequence[tuple[str, Inputs]]) -> str:
    """Say why a resource cannot be created, or would not work, with what exists already; "": no reason."""
    enabled = {other.get("service") for kind, other in living if kind == SERVICE}
    for name, feature in features_of("gke", type_, inputs).items():
        if type_ == SERVICE and inputs.get("service") in feature.apis:
            continue
        for api in feature.apis:
            if api not in enabled:
                return f"403 {api} has not been used in this project before or it is disabled ({name})"
        for role in feature.roles.get("nodes", ()):
            for account in _accounts(type_, inputs, living):
                if not _is_granted(role, account, living):
                    return f"{feature.why}: {account} lacks {role} ({name})"
    if type_ == COMPUTE_CLASS:
        return _not_of_the_class(inputs, living)
    return _not_offered(inputs) if type_ == POOL else ""


def _not_of_the_class(inputs: Inputs, living: Sequence[tuple[str, Inputs]]) -> str:
    """Say why a node pool is not of a compute class: GKE recognises it by its label and its taint."""
    label, name = "cloud.google.com/compute-class", inputs["metadata"]["name"]
    pools = {other["name"]: other["nodeConfig"] for kind, other in living if kind == POOL}
    for wanted in (pool for rule in inputs["spec"]["priorities"] for pool in rule["nodepools"]):
        config = pools.get(wanted, {})
        tainted = any((taint["key"], taint["value"]) == (label, name) for taint in config.get("taints") or [])
        if (config.get("labels") or {}).get(label) != name or not tainted:
            return f"the node pool {wanted} is not of the class {name}: it lacks its label or its taint"
    return ""


def _accounts(type_: str, inputs: Inputs, living: Sequence[tuple[str, Inputs]]) -> list[str]:
    """List the accounts of the nodes that a resource makes, or that its pods run on."""
    if type_ in (CLUSTER, POOL):
        return [(inputs.get("nodeConfig") or {}).get("serviceAccount") or "Compute Engine's default account"]
    return sorted({_accounts(kind, other, living)[0] for kind, other in living if kind == POOL})


def _is_granted(role: str, account: str, living: Sequence[tuple[str, Inputs]]) -> bool:
    member = f"serviceAccount:{account}"
    return any(other.get("role") == role and other.get("member") == member for _, other in living)


def _not_offered(pool: Inputs) -> str:
    name = (pool.get("nodeConfig") or {}).get("machineType", "")
    machine = machines().get(name)
    for zone in pool.get("nodeLocations") or []:
        if machine is not None and machine.zones is not None and zone not in machine.zones:
            return f"400 machine type {name} does not exist in zone {zone}"
    return ""
