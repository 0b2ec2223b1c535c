"""The section `aks` of a stack's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from infra.effect import Impossible, changed
from infra.sections import NodesConfig, Section, StorageConfig


class AksConfig(Section):
    location: Annotated[str, Impossible(changed, "a resource group stays where it is")]
    """Where on Azure the cluster is."""
    system_machine_type: str = "Standard_D4s_v5"
    """Machine type of the nodes for etcd and the cluster's own pods."""


class AksNodes(NodesConfig):
    consumption: Literal["on_demand", "spot"] = "on_demand"
    """`on_demand`: now or not at all. `spot`: cheaper, but taken back at any time."""


class AksStorage(StorageConfig):
    kind: Literal["azureFiles"] = "azureFiles"
    """`azureFiles`: Azure's NFS service."""
