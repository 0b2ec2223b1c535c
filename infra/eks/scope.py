"""What every part of a cluster on AWS shares: names, place, provider and tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.config import StackConfig
from infra.eks.section import EksConfig
from infra.scope import Scope as Common
from infra.stackfiles import marks

#: Of what the provider gives no time for a change: subnets, security groups, mount targets. It has no times at all for
#: networks and file systems, and for an address only those of a change and of its end (hashicorp/terraform-provider-aws
#: 5.100.0, by its schemas).
PART = pulumi.CustomTimeouts(create="20m", delete="30m")
MOUNT = pulumi.CustomTimeouts(create="60m", delete="60m")
ADDRESS = pulumi.CustomTimeouts(delete="30m")


@dataclass(frozen=True, kw_only=True)
class Scope(Common):
    """Where things are made, and by which provider."""

    zones: tuple[str, ...]
    """Of the workers, by their ids, the most wanted first."""
    stack: str

    @property
    def tags(self) -> Mapping[str, str]:
        """On everything that is billed: the bill and the check for leftovers go by them."""
        return marks(self.stack)

    def named(self, suffix: str = "") -> dict[str, str]:
        """The tag that AWS' lists show as the name of what has no other."""
        return {"Name": f"{self.name}-{suffix}" if suffix else self.name}


def provider(config: StackConfig, stack: str) -> aws.Provider:
    """AWS with the credentials of the environment (AWS_PROFILE, `aws sso login`, or CI's OIDC)."""
    return aws.Provider(
        "aws",
        region=config.section(EksConfig).region,
        default_tags=aws.ProviderDefaultTagsArgs(tags=marks(stack)),
    )
