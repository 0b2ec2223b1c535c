"""What every part of a cluster on Google Cloud shares: names, place, provider, and how long an operation may take."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.config import StackConfig

#: A cluster takes 3 to 10 minutes; pools that wait for capacity took up to 40 (NVIDIA/aicr #2065). Giving up earlier
#: leaves behind what arrives later.
LONG = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")
#: Network parts are quick, but GKE's own leftovers in them go a while after the cluster.
NETWORK = pulumi.CustomTimeouts(create="20m", update="20m", delete="30m")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where things are made, and by which provider."""

    name: str
    """Beginning of all names."""
    project: str
    region: str
    zone: str
    parent: pulumi.Resource
    """Component that all of it belongs to, with the provider."""

    def options(
        self,
        *,
        depends_on: list[pulumi.Resource] | None = None,
        timeouts: pulumi.CustomTimeouts | None = None,
        deleted_with: pulumi.Resource | None = None,
        ignore_changes: list[str] | None = None,
        delete_before_replace: bool | None = None,
        retain_on_delete: bool | None = None,
        protect: bool | None = None,
    ) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(
            parent=self.parent,
            depends_on=depends_on,
            custom_timeouts=timeouts,
            deleted_with=deleted_with,
            ignore_changes=ignore_changes,
            delete_before_replace=delete_before_replace,
            retain_on_delete=retain_on_delete,
            protect=protect,
        )


def provider(config: StackConfig, stack: str) -> gcp.Provider:
    """Google Cloud with the credentials of the environment (`gcloud auth application-default login`, or CI's OIDC)."""
    assert config.gke is not None
    return gcp.Provider(
        "gcp",
        project=config.gke.project,
        region=region_of(config.gke.zone),
        zone=config.gke.zone,
        # On everything that is billed: the bill and the check for leftovers go by them.
        default_labels={"app": "trainyard", "stack": stack.lower()},
        add_pulumi_attribution_label=False,
    )


def region_of(zone: str) -> str:
    return zone.rsplit("-", 1)[0]
