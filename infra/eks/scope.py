"""What all parts of a cluster on AWS share: names, place, provider and tags."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.config import StackConfig
from infra.eks.keys import EksConfig
from infra.scope import Scope as Common
from infra.stackfiles import marks

#: Timeouts of resources for which the provider takes none for updates: subnets, security groups, mount targets. It
#: takes none at all for networks and file systems, and for an address only those of update and delete
#: (hashicorp/terraform-provider-aws 5.100.0, by its schemas).
PART = pulumi.CustomTimeouts(create="20m", delete="30m")
MOUNT = pulumi.CustomTimeouts(create="60m", delete="60m")
ADDRESS = pulumi.CustomTimeouts(delete="30m")


@dataclass(frozen=True, kw_only=True)
class Scope(Common):
    """Where things are made, and by which provider."""

    zones: tuple[str, ...]
    """Ids of the workers' zones, the preferred first."""
    stack: str

    def named(self, suffix: str = "") -> dict[str, str]:
        """The tag that AWS's lists show as the name of a resource without another."""
        return {"Name": f"{self.name}-{suffix}" if suffix else self.name}


def provider(config: StackConfig, stack: str) -> aws.Provider:
    """AWS with the credentials of the environment (AWS_PROFILE, `aws sso login`, or CI's OIDC)."""
    return aws.Provider(
        "aws",
        region=config.section(EksConfig).region,
        default_tags=aws.ProviderDefaultTagsArgs(tags=marks(stack)),
    )
