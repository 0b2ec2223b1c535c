"""The section `eks` of a stack's configuration: where on AWS the cluster is, who reaches it, what it consists of."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from infra.effect import Careful, Impossible, OnlyWith, Replaces, changed, older, turned_off, turned_on
from infra.facts import load
from infra.sections import NodesConfig, StorageConfig, has_been
from trainer.config.base import Section


def _range(hint: str) -> AfterValidator:
    """An IPv4 range in its one spelling; `hint` says which to give."""

    def check(text: str) -> str:
        try:
            return str(ipaddress.IPv4Network(text))
        except ValueError as error:
            raise ValueError(f"'{text}' is no IPv4 range ({error}); give {hint}") from None

    return AfterValidator(check)


Caller = Annotated[str, _range("this machine's public address (`curl https://checkip.amazonaws.com`) with /32")]
Network = Annotated[str, _range("one such as 10.0.0.0/16")]
Identity = Annotated[str, StringConstraints(pattern=r"^arn:aws:iam::\d{12}:(role|user)/([\w+=,.@-]+/)*[\w+=,.@-]+$")]


def _release(text: str) -> str:
    """`latest`, or VERSION-DATE, whose date is one that has been."""
    if text == "latest":
        return text
    found, when = re.fullmatch(r"1\.\d\d\.\d+-(\d{8})", text, re.ASCII), None
    with suppress(ValueError):
        when = datetime.strptime(f"{found[1]}+0000", "%Y%m%d%z") if found else None
    if when is None:
        hint = "give latest, or one of eks.version such as 1.36.0-20261101"
        raise ValueError(f"'{text}' is no release of EKS's images; {hint}")
    return has_been(text, when)


@cache
def versions() -> dict[str, dict[str, Any]]:
    """Kubernetes version on EKS -> its facts."""
    return load(Path(__file__).parent / "versions.yaml")["versions"]


if TYPE_CHECKING:
    Version = str
else:
    Version = Literal[tuple(versions())]


#: Environment variable with which nodes and add-ons keep their release even if AWS has a newer one, so that a drift
#: check shows only what somebody changed by hand.
KEEP_RELEASES = "TRAINYARD_KEEP_NODE_RELEASES"
#: Maximum number of nodes of a worker group, or `nodes.max` if that is larger; the autoscaler limits all groups to
#: `nodes.max` together. A change of a group's maximum makes the provider send the state's number of nodes, 0, and EKS
#: ends those that train (terraform-provider-aws, internal/service/eks/node_group.go). EKS's default quota was 100
#: nodes, and is 450 now.
GROUP_LIMIT = 100
#: Said of another maximum (docs.aws.amazon.com/eks/latest/userguide/update-managed-node-group.html, read 2026-11-22).
_SIZE = "without `pulumi up --refresh` EKS ends the nodes that the autoscaler has added, at once"


def larger_than_one_group(old: int, new: int) -> bool:
    """Below, only the autoscaler's limit changes, and no group."""
    return max(old, new) > GROUP_LIMIT


#: Boot disk of the system group's nodes.
SYSTEM_DISK_GIB = 50


class EksConfig(Section):
    region: Annotated[
        str,
        StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$"),
        Impossible(changed, "what is in one region cannot be deleted by a provider of another"),
    ]
    """Region of everything."""
    zones: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z]{3,4}[0-9]-az[1-6]$")], ...] = ()
    """Ids of one to six zones for the workers, the preferred first (use2-az1; letters mean another zone in each
    account). A zone that does not offer the machines gets no nodes. Zones can be added and removed at any time.
    Default: the first four of the region that offer `nodes.machineType`."""
    api_allowed_cidrs: tuple[Caller, ...] = ()
    """IPv4 ranges that may reach the cluster's API, such as the address of this machine with /32. Required: nothing
    else gets in, and the machine that runs Pulumi must."""
    admins: tuple[Identity, ...] = ()
    """IAM roles and users that administer the cluster, besides its creator."""
    viewers: tuple[Identity, ...] = ()
    """IAM roles and users that may read every object of the cluster, Secrets too, and change nothing. The role of a
    preview with a refresh needs that, such as the workflows' (docs/operations.md)."""
    # A subnet's MapPublicIpOnLaunch counts for machines that start (docs.aws.amazon.com/vpc/latest/userguide,
    # modify-subnets), read 2026-11-22.
    public_nodes: Annotated[
        bool,
        Impossible(
            turned_on, "running nodes have no public addresses, and would lose their way out with the NAT gateway"
        ),
    ] = False
    """true: nodes have public addresses, which saves the NAT gateway. Nothing may connect to them either way."""
    # botocore 1.43.117, eks UpdateClusterVersion (VersionRollback, RollbackConfig); docs.aws.amazon.com/eks/latest/
    # userguide/rollback-cluster.html (since 2026-07-01), read 2026-11-28. The provider's "Downgrades are not supported
    # by EKS" (pulumi_aws 7, eks.Cluster.version) is older.
    version: Annotated[
        Version,
        Careful(
            older,
            "EKS takes a cluster back by one version, within 7 days of its upgrade and if its checks for a rollback "
            "pass; otherwise this `up` fails and the cluster stays as it is",
        ),
    ] = list(versions())[-1]
    """Kubernetes version. When its standard support ends, EKS upgrades the control plane by itself."""
    # docs.aws.amazon.com/eks/latest/APIReference/API_UpdateNodegroupVersion.html, read 2026-11-22
    node_release: Annotated[
        str, AfterValidator(_release), Impossible(older, "EKS takes no nodes back to an older image")
    ] = "latest"
    """Release of the nodes' image. `latest`: each `pulumi up` rolls out the newest, node by node, with the pods' grace
    period. A release such as 1.36.0-20261101 stays until it is changed."""
    # Turned on in place (terraform-provider-aws internal/service/eks/cluster.go at 00555dc5, read 2026-11-22).
    secrets_encryption: Annotated[bool, Impossible(turned_off, "EKS takes no encryption of Secrets back")] = True
    """Encrypt the cluster's Secrets with a KMS key of the stack, on top of AWS's own encryption at rest."""
    irsa: bool = False
    """Make the cluster an OIDC provider of IAM, for software that supports only IAM roles for service accounts. The
    stack itself uses pod identity."""
    logs: tuple[Literal["api", "audit", "authenticator", "controllerManager", "scheduler"], ...] = (
        "api",
        "authenticator",
    )
    """Logs that the control plane writes to CloudWatch, which bills each GB; `audit` is most of them."""
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 180, 365] = 7
    """Days for which CloudWatch keeps the control plane's logs."""
    system_machine_type: str = "m6i.large"
    """Machine type of the nodes for etcd, the dataset Job, TensorBoard and the cluster's own pods: on demand, without
    accelerators."""
    system_nodes: Annotated[int, Careful(changed, _SIZE), Field(ge=1, le=10)] = 3
    """Maximum number of nodes of the system group; one runs at rest."""
    # docs.aws.amazon.com/eks/latest/APIReference/API_UpdateClusterConfig.html, read 2026-11-22
    vpc_cidr: Annotated[Network, Impossible(changed, "EKS keeps a cluster in the network that it was made in")] = (
        "10.0.0.0/16"
    )
    """Address range of the stack's network, /16 to /20; each zone gets an eighth."""
    efa_plugin: Annotated[
        Annotated[str, StringConstraints(pattern=r"^\S+@sha256:[0-9a-f]{64}$")] | None, OnlyWith("nodes.efa")
    ] = None
    """The device plugin of the adapters, NAME@sha256:DIGEST; required with `nodes.efa`. AWS publishes it as
    public.ecr.aws/eks/aws-efa-k8s-device-plugin:v0.5.20."""
    gpu_metrics: bool = False
    """Run NVIDIA's DCGM exporter on the nodes with accelerators: Prometheus metrics on port 9400."""


class EksNodes(NodesConfig):
    max: Annotated[int, Careful(larger_than_one_group, _SIZE), Field(ge=1, le=1000)] = 2
    """Maximum number of nodes that train. At rest there are none: the autoscaler adds them for the Job and removes them
    after it."""
    consumption: Annotated[Literal["on_demand", "spot"], Replaces("workers")] = "on_demand"
    """How the nodes are obtained. `on_demand`: now or not at all. `spot`: 40 to 70 % cheaper, but taken back at any
    time."""
    fallback: Annotated[Literal["none", "on_demand"], OnlyWith("nodes.consumption", "spot")] = "none"
    """What to do when no zone has such a Spot machine. `none`: wait, or continue with the workers that are there.
    `on_demand`: add the same machine at full price until its pod ends."""
    alternatives: Annotated[tuple[str, ...], Replaces("workers"), Field(max_length=10)] = ()
    """Larger instance types with the same accelerators, any of which AWS may choose. Pods are sized for
    `nodes.machineType`."""
    efa: Annotated[bool, Replaces("workers")] = False
    """Attach an Elastic Fabric Adapter, on the sizes that have it. The trainer's base image must have libfabric and
    aws-ofi-nccl, or NCCL keeps using TCP."""

    @property
    def machine_types(self) -> tuple[str, ...]:
        return (self.machine_type, *self.alternatives)


class EksStorage(StorageConfig):
    kind: Literal["efs"] = "efs"
    """`efs`: Amazon's NFS service. It grows by itself: `storage.sizeGib` is only an estimate for the bill."""
    retain: bool = False
    """The file system stays when the stack is destroyed, and is still billed; `storage.disk` brings it back."""
    disk: Annotated[Annotated[str, StringConstraints(pattern=r"^fs-[0-9a-f]{8,40}$")] | None, Replaces("data")] = None
    """Id of an existing file system (fs-...) in the region to use, which is never deleted."""
    throughput: Literal["bursting", "elastic"] = "bursting"
    """`bursting` costs nothing beyond the space and gives 100 MiB/s until 2.1 TiB of credit are used; `elastic` gives
    more, at 3 cents per GB read and 6 cents per GB written."""
