"""AWS's list prices of what a stack creates, USD, with their date and source.

Fees and storage: AWS Price List API of 2026-09-21, as published region by region in the pricing table of
github.com/xbill9/zombiescan (commit 0771551). Machines in us-east-1: the same API on 2026-07-20, as generated into
Karpenter (aws/karpenter-provider-aws, zz_generated.pricing_aws.go). Machines elsewhere, and Spot: SkyPilot's catalog v8
(skypilot-org/skypilot-catalog, commit 00148f2), which agrees with the former to the cent. Fees that are the same
everywhere name their own page.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.bill import Rate

#: The oldest of them.
DATE = "2026-07-20"
SOURCE = "AWS Price List"

#: One EKS cluster, per hour, in standard support; 0.60 in extended support (aws.amazon.com/eks/pricing).
EKS_CLUSTER = 0.10
#: A public IPv4 address, per hour, in use or not (aws.amazon.com/vpc/pricing).
PUBLIC_ADDRESS = 0.005
#: A GB of logs that CloudWatch takes in, in us-east-1 and us-east-2; 0.50 to 0.90 elsewhere
#: (aws.amazon.com/cloudwatch/pricing).
LOGS_GB = 0.50
#: GB-month of stored images (aws.amazon.com/ecr/pricing).
REGISTRY_GIB = 0.10
#: A KMS key, per month; one that waits for its deletion is free (aws.amazon.com/kms/pricing).
KMS_KEY = 1.00

#: USD per hour on demand in us-east-1. Other regions scale a family as a whole: g4dn.metal / g4dn.xlarge is the same
#: everywhere to 0.2 %.
US_EAST_1 = {
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.4xlarge": 1.204,
    "g4dn.8xlarge": 2.176,
    "g4dn.16xlarge": 4.352,
    "g4dn.12xlarge": 3.912,
    "g4dn.metal": 7.824,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.16xlarge": 4.096,
    "g5.12xlarge": 5.672,
    "g5.24xlarge": 8.144,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048,
    "g6.2xlarge": 0.9776,
    "g6.4xlarge": 1.3232,
    "g6.8xlarge": 2.0144,
    "g6.16xlarge": 3.3968,
    "g6.12xlarge": 4.6016,
    "g6.24xlarge": 6.6752,
    "g6.48xlarge": 13.3504,
    "m5.large": 0.096,
    "m5.xlarge": 0.192,
    "m5.2xlarge": 0.384,
    "m6i.large": 0.096,
    "m6i.xlarge": 0.192,
    "m6i.2xlarge": 0.384,
    "t3.large": 0.0832,
    "t3.xlarge": 0.1664,
    "t3.2xlarge": 0.3328,
}


@dataclass(frozen=True)
class Region:
    """Prices of one region."""

    g4dn: Rate
    """g4dn.xlarge; Spot is the mean over the zones of that day."""
    newer: float | None
    """g5 and g6, on demand, as a multiple of us-east-1; None: not known."""
    m6i: float
    """m6i.large."""
    nat: float
    """A NAT gateway, per hour; each GB through it costs the same again."""
    gp3: float
    """GB-month of a volume, with its 3,000 IOPS and 125 MiB/s."""
    efs: float
    """GB-month of EFS Standard. With elastic throughput a GB read is 0.03 and a GB written 0.06 on top."""


REGIONS = {
    "us-east-1": Region(Rate(0.526, 0.2052), 1.0, 0.096, 0.045, 0.08, 0.30),
    "us-east-2": Region(Rate(0.526, 0.1910), 1.0, 0.096, 0.045, 0.08, 0.30),
    "us-west-1": Region(Rate(0.631, 0.3094), None, 0.112, 0.048, 0.096, 0.33),
    "us-west-2": Region(Rate(0.526, 0.2443), 1.0, 0.096, 0.045, 0.08, 0.30),
    "ca-central-1": Region(Rate(0.584, 0.2004), 1.1103, 0.107, 0.050, 0.088, 0.33),
    "eu-central-1": Region(Rate(0.658, 0.2694), 1.2505, 0.115, 0.052, 0.0952, 0.36),
    "eu-north-1": Region(Rate(0.558, 0.1865), 1.0606, 0.102, 0.046, 0.0836, 0.30),
    "eu-south-1": Region(Rate(0.616, 0.0992), None, 0.112, 0.050, 0.0924, 0.36),
    "eu-west-1": Region(Rate(0.587, 0.3212), 1.1163, 0.107, 0.048, 0.088, 0.33),
    "eu-west-2": Region(Rate(0.615, 0.1984), 1.2694, 0.111, 0.050, 0.0928, 0.33),
    "eu-west-3": Region(Rate(0.615, 0.1759), 1.2694, 0.112, 0.050, 0.0928, 0.33),
    "me-south-1": Region(Rate(0.645, 0.1220), None, 0.132, 0.0528, 0.0968, 0.36),
    "af-south-1": Region(Rate(0.698, 0.1284), None, 0.127, 0.057, 0.1047, 0.39),
    "ap-east-1": Region(Rate(0.810, 0.1557), None, 0.132, 0.065, 0.1056, 0.39),
    "ap-northeast-1": Region(Rate(0.710, 0.2846), 1.4503, 0.124, 0.062, 0.096, 0.36),
    "ap-northeast-2": Region(Rate(0.647, 0.2871), 1.2296, 0.118, 0.059, 0.0912, 0.33),
    "ap-northeast-3": Region(Rate(0.710, 0.2550), None, 0.124, 0.062, 0.096, 0.36),
    "ap-south-1": Region(Rate(0.579, 0.2508), 1.2008, 0.101, 0.056, 0.0912, 0.33),
    "ap-southeast-1": Region(Rate(0.736, 0.3149), None, 0.120, 0.059, 0.096, 0.36),
    "ap-southeast-2": Region(Rate(0.684, 0.2797), 1.3002, 0.120, 0.059, 0.096, 0.36),
}


def machine(region: str, instance_type: str, *, spot: bool = False) -> float | None:
    """USD per hour; None: no price is known.

    Spot prices of the sizes other than g4dn.xlarge are taken to be as much below theirs on demand.
    """
    prices, base = REGIONS.get(region), US_EAST_1.get(instance_type)
    if prices is None or base is None:
        return None
    match instance_type.split(".")[0]:
        case "g4dn":
            return base / US_EAST_1["g4dn.xlarge"] * (prices.g4dn.spot if spot else prices.g4dn.on_demand)
        case "g5" | "g6" if prices.newer is not None and not spot:
            return base * prices.newer
        case "m6i" if not spot:
            return base / US_EAST_1["m6i.large"] * prices.m6i
        case "m5" | "t3" if region == "us-east-1" and not spot:
            return base
    return None
