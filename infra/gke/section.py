"""The section `gke` of a stack's configuration: where on Google Cloud the cluster is, and what it consists of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainer.config.section import Section


class GkeConfig(Section):
    project: Annotated[str, StringConstraints(pattern=r"^[a-z][-a-z0-9]{4,28}[a-z0-9]$")]
    """Id of the Google Cloud project; it has to exist, with billing."""
    zone: Annotated[str, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
    """Zone of everything: accelerators are zonal, and a zonal control plane is quicker to make and costs the same."""
    release_channel: Literal["RAPID", "REGULAR", "STABLE"] = "REGULAR"
    """What GKE upgrades the control plane to."""
    no_upgrades_since: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = (
        "2026-11-01T00:00:00Z"
    )
    """Start of the time in which neither minor version nor nodes are upgraded, up to the version's end of support; an
    upgrade of the nodes restarts a training. null: upgrades come as the channel brings them."""
    system_machine_type: str = "e2-standard-4"
    """Nodes for etcd, the dataset Job, TensorBoard and the NFS server: on demand, without accelerators."""
    system_nodes: int = Field(default=3, ge=1, le=10)
    """Most nodes of the system pool; one runs at rest."""

    @property
    def region(self) -> str:
        return self.zone.rsplit("-", 1)[0]
