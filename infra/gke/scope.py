"""What all parts of a cluster on Google Cloud share: names, place and provider."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi_gcp as gcp

from infra.config import StackConfig
from infra.gke.keys import GkeConfig
from infra.scope import Scope as Common
from infra.stackfiles import marks


@dataclass(frozen=True, kw_only=True)
class Scope(Common):
    """Where things are made, and by which provider."""

    project: str
    zone: str


def provider(config: StackConfig, stack: str) -> gcp.Provider:
    """Google Cloud with the credentials of the environment (`gcloud auth login --update-adc`, or CI's OIDC)."""
    gke = config.section(GkeConfig)
    return gcp.Provider(
        "gcp",
        project=gke.project,
        region=gke.region,
        zone=gke.zone,
        default_labels=marks(stack),
        add_pulumi_attribution_label=False,
    )
