"""What every part of a cluster that a stack makes shares on any cloud: names, kubeconfig, how long things may take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

#: A control plane takes 3 to 15 minutes; nodes that wait for capacity took up to 40 (NVIDIA/aicr #2065). Giving up
#: earlier leaves behind what arrives later.
LONG = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")
#: Network parts are quick, but what a cluster leaves in them goes a while after it.
NETWORK = pulumi.CustomTimeouts(create="20m", update="20m", delete="30m")


@dataclass(frozen=True, kw_only=True)
class Scope:
    name: str
    """Beginning of all names."""
    region: str
    parent: pulumi.Resource
    """Component that all of it belongs to, with the provider."""

    def options(self, timeouts: pulumi.CustomTimeouts | None = None, **others: Any) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self.parent, custom_timeouts=timeouts, **others)


def kubeconfig(context: str, cluster: Mapping[str, Any], command: Mapping[str, Any]) -> str:
    """A kubeconfig with one context for a cluster that a stack makes.

    `cluster` is its address, `command` what prints credentials (client-go's exec plug-in): they are asked for when they
    are used, so none is in it, nor in the state.
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
