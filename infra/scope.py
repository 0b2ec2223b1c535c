"""What all parts of a cluster that a stack makes share on any cloud: names, timeouts, kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

#: A control plane takes 3 to 15 minutes; nodes that wait for capacity took up to 40 (NVIDIA/aicr #2065). What arrives
#: after Pulumi gives up is orphaned.
LONG = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")
#: Network parts are quick, but what a cluster leaves in them disappears some time after the cluster.
NETWORK = pulumi.CustomTimeouts(create="20m", update="20m", delete="30m")


@dataclass(frozen=True, kw_only=True)
class Scope:
    name: str
    """Prefix of all names."""
    region: str
    parent: pulumi.Resource
    """Component that owns all resources, with the provider."""

    def options(self, timeouts: pulumi.CustomTimeouts | None = None, **others: Any) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self.parent, custom_timeouts=timeouts, **others)


def kubeconfig(context: str, cluster: Mapping[str, Any], command: Mapping[str, Any]) -> str:
    """A kubeconfig with one context for a cluster that a stack makes.

    `cluster` is its address, `command` the program that prints credentials at each use (client-go's exec plug-in), so
    that neither the kubeconfig nor the state holds any.
    """
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        **command,
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": dict(cluster)}],
            "users": [{"name": context, "user": {"exec": exec_}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "current-context": context,
        }
    )
