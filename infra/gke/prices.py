"""Google's list prices of what a stack creates, USD, with their date and source.

Compute and disks: Google's Cloud Billing Catalog as of `DATE`, as published region by region in pricing.yml of
github.com/Cyclenerd/google-cloud-pricing-cost-calculator (commit dac3128). Spot prices change up to once in 30 days:
they are those of the same day. Fees that are the same everywhere name their own page.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.bill import Rate
from infra.machine import Machine

DATE = "2026-08-20"
SOURCE = "Google Cloud Billing Catalog"

#: One GKE cluster, zonal or regional, per hour (cloud.google.com/kubernetes-engine/pricing). A credit of 74.40 a month
#: pays for one zonal cluster of a billing account; it is not counted, since another cluster may have used it.
GKE_CLUSTER = 0.10
#: Cloud NAT, per hour: each VM behind it, up to the price of 32 of them, and the address that it holds
#: (cloud.google.com/nat/pricing). Each GiB through it is 0.045 on top.
NAT_VM, NAT_MOST, NAT_ADDRESS = 0.0014, 0.044, 0.005
#: GiB-month of stored images, after the first half GiB (cloud.google.com/artifact-registry/pricing).
REGISTRY_GIB = 0.10
#: GiB-month of provisioned Filestore in us-central1, by tier (cloud.google.com/filestore/pricing, 2025; not among the
#: dated prices above); other regions are up to a third dearer.
FILESTORE_GIB = {"BASIC_HDD": 0.16, "BASIC_SSD": 0.30, "ZONAL": 0.25, "REGIONAL": 0.45, "ENTERPRISE": 0.45}
#: GB of one local SSD; a2-highgpu has none of its own, a2-ultragpu includes its own.
LOCAL_SSD_GB = 375


@dataclass(frozen=True)
class Region:
    """Prices of one region."""

    e2_standard: Rate
    """One vCPU with its 4 GiB."""
    c3_standard: Rate
    """One vCPU with its 4 GiB."""
    c3_highmem: Rate
    """One vCPU with its 8 GiB."""
    a2_highgpu: Rate | None
    """One A100 40 GB with its 12 vCPU and 85 GiB; None: not offered."""
    g2: Rate | None
    """One vCPU of G2 with its 4 GiB, without an L4: the prices of g2-standard-4 (1 L4) and -48 (4 L4), taken apart;
    None: not offered."""
    l4: Rate | None
    """One L4."""
    pd_standard: float
    """GiB-month, as are the next two."""
    pd_balanced: float
    pd_ssd: float
    local_ssd: Rate
    """GB-month."""


_IOWA = Region(
    e2_standard=Rate(0.53609136 / 16, 0.321696 / 16),
    c3_standard=Rate(9.677184 / 192, 3.014016 / 192),
    c3_highmem=Rate(0.529232 / 8, 0.164848 / 8),
    a2_highgpu=Rate(3.673385, 2.12081),
    g2=Rate(0.036698004, 0.022014),
    l4=Rate(0.560040239, 0.335900),
    pd_standard=0.04,
    pd_balanced=0.10,
    pd_ssd=0.17,
    local_ssd=Rate(0.08, 0.048),
)
REGIONS = {
    "us-central1": _IOWA,
    "us-east1": _IOWA,
    "us-west1": _IOWA,
    "us-east4": Region(
        e2_standard=Rate(0.60376656 / 16, 0.34656 / 16),
        c3_standard=Rate(9.677184 / 192, 2.602752 / 192),
        c3_highmem=Rate(0.529232 / 8, 0.142336 / 8),
        a2_highgpu=None,
        g2=Rate(0.036577837, 0.017740),
        l4=Rate(0.558206460, 0.270700),
        pd_standard=0.044,
        pd_balanced=0.11,
        pd_ssd=0.187,
        local_ssd=Rate(0.088, 0.0528),
    ),
    "us-west3": Region(
        e2_standard=Rate(0.64391904 / 16, 0.186816 / 16),
        c3_standard=Rate(11.632944 / 192, 6.9792 / 192),
        c3_highmem=Rate(0.63618984 / 8, 0.38168 / 8),
        a2_highgpu=Rate(4.325068684, 2.594965),
        g2=None,
        l4=None,
        pd_standard=0.048,
        pd_balanced=0.12,
        pd_ssd=0.204,
        local_ssd=Rate(0.096, 0.0576),
    ),
    "us-west4": Region(
        e2_standard=Rate(0.60376656 / 16, 0.07616 / 16),
        c3_standard=Rate(10.89941376 / 192, 4.762752 / 192),
        c3_highmem=Rate(0.59607408 / 8, 0.260496 / 8),
        a2_highgpu=Rate(3.934354926, 2.10321),
        g2=Rate(0.041332960, 0.024802),
        l4=Rate(0.630773300, 0.378500),
        pd_standard=0.044,
        pd_balanced=0.11,
        pd_ssd=0.187,
        local_ssd=Rate(0.088, 0.0525),
    ),
    "europe-west1": Region(
        e2_standard=Rate(0.58972368 / 16, 0.330656 / 16),
        c3_standard=Rate(10.65554688 / 192, 3.854592 / 192),
        c3_highmem=Rate(0.58273728 / 8, 0.210816 / 8),
        a2_highgpu=None,
        g2=Rate(0.040408176, 0.022514),
        l4=Rate(0.616660300, 0.343500),
        pd_standard=0.04,
        pd_balanced=0.10,
        pd_ssd=0.17,
        local_ssd=Rate(0.08, 0.048),
    ),
    "europe-west4": Region(
        e2_standard=Rate(0.59017632 / 16, 0.295424 / 16),
        c3_standard=Rate(10.1610432 / 192, 5.203584 / 192),
        c3_highmem=Rate(0.5556936 / 8, 0.284592 / 8),
        a2_highgpu=Rate(3.747972, 2.24787),
        g2=Rate(0.038571440, 0.023144),
        l4=Rate(0.588630286, 0.353200),
        pd_standard=0.044,
        pd_balanced=0.11,
        pd_ssd=0.187,
        local_ssd=Rate(0.088, 0.0528),
    ),
    "asia-northeast1": Region(
        e2_standard=Rate(0.68772576 / 16, 0.412672 / 16),
        c3_standard=Rate(12.42744 / 192, 2.479872 / 192),
        c3_highmem=Rate(0.67963976 / 8, 0.135616 / 8),
        a2_highgpu=Rate(4.049590926, 2.429675),
        g2=Rate(0.047127576, 0.028274),
        l4=Rate(0.719203700, 0.431500),
        pd_standard=0.052,
        pd_balanced=0.13,
        pd_ssd=0.221,
        local_ssd=Rate(0.104, 0.0624),
    ),
    "asia-southeast1": Region(
        e2_standard=Rate(0.66132912 / 16, 0.361568 / 16),
        c3_standard=Rate(11.9387424 / 192, 6.164352 / 192),
        c3_highmem=Rate(0.65291352 / 8, 0.337136 / 8),
        a2_highgpu=Rate(4.013757926, 2.40826),
        g2=Rate(0.045274332, 0.027168),
        l4=Rate(0.690921600, 0.414600),
        pd_standard=0.044,
        pd_balanced=0.11,
        pd_ssd=0.187,
        local_ssd=Rate(0.088, 0.0448),
    ),
}


#: Of E2, in us-central1: (vCPU with 8 GiB) / (vCPU with 4 GiB); vCPU 0.02181159, GiB 0.00292353. Regions scale both.
_E2_HIGHMEM = (0.02181159 + 8 * 0.00292353) / (0.02181159 + 4 * 0.00292353)
#: An A100's share of an a2-highgpu machine, vCPU.
_A2_VCPUS = 12


def of_machine(region: str, machine: Machine) -> Rate | None:
    """A machine with its memory and its accelerators, an hour; None: no price is known."""
    each = vcpu(region, machine.family)
    if each is None:
        return None
    rate = _scaled(each, machine.vcpus)
    l4 = REGIONS[region].l4 if machine.family == "g2-standard" else None
    # The others' accelerators are in the price of their vCPU.
    extra = _scaled(l4, machine.accelerators) if l4 else Rate(0, 0)
    return Rate(rate.on_demand + extra.on_demand, rate.spot + extra.spot)


def vcpu(region: str, family: str) -> Rate | None:
    """One vCPU of a machine family with its memory, and its accelerators but those of G2; None: no price is known.

    `family` is infra/catalog.py's: c3-highmem, a2-highgpu, e2-standard ...
    """
    prices = REGIONS.get(region)
    if prices is None:
        return None
    match family:
        case "e2-standard":
            return prices.e2_standard
        case "e2-highmem":
            return _scaled(prices.e2_standard, _E2_HIGHMEM)
        case "c3-standard":
            return prices.c3_standard
        case "c3-highmem":
            return prices.c3_highmem
        case "c3-highcpu":
            # Half of the memory of c3-standard, of which c3-highmem has twice as much.
            standard, highmem = prices.c3_standard, prices.c3_highmem
            return Rate(
                standard.on_demand - (highmem.on_demand - standard.on_demand) / 2,
                standard.spot - (highmem.spot - standard.spot) / 2,
            )
        case "g2-standard":
            return prices.g2
        case "a2-highgpu":
            return _scaled(prices.a2_highgpu, 1 / _A2_VCPUS) if prices.a2_highgpu else None
    return None


def _scaled(rate: Rate, factor: float) -> Rate:
    return Rate(rate.on_demand * factor, rate.spot * factor)


def disk(region: str, type_: str) -> float | None:
    """GiB-month of a persistent disk; None: no price is known."""
    prices = REGIONS.get(region)
    if prices is None:
        return None
    return {"pd-standard": prices.pd_standard, "pd-balanced": prices.pd_balanced, "pd-ssd": prices.pd_ssd}.get(type_)
