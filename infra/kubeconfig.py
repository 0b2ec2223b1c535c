"""A kubeconfig for a cluster that a stack makes.

Its credentials are asked for when they are used, so none is in it, nor in the state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def kubeconfig(context: str, cluster: Mapping[str, Any], command: Mapping[str, Any]) -> str:
    """One context; `cluster` is its address, `command` what prints credentials (client-go's exec plug-in)."""
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
