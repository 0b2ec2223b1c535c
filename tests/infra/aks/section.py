"""The section `aks` of a stack's configuration."""

from __future__ import annotations

from infra.sections import Section


class AksConfig(Section):
    location: str
    """Where on Azure the cluster is."""
    system_machine_type: str = "Standard_D4s_v5"
    """Machine type of the nodes for etcd and the cluster's own pods."""
