"""The section `eks` of a stack's configuration: where on AWS the cluster is, who reaches it, what it consists of."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from infra.sections import Section


def _network(text: str) -> str:
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        raise ValueError(f"'{text}' is no IPv4 range ({error}); give one such as 203.0.113.7/32") from None


Cidr = Annotated[str, AfterValidator(_network)]


class EksConfig(Section):
    region: Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")]
    """Region of everything."""
    zones: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9][a-g]$")], ...] = ()
    """Availability zones, two to six; workers are wanted from the first, and from the next when it has none. Default:
    the first four of the region."""
    api_allowed_cidrs: tuple[Cidr, ...] = ()
    """IPv4 ranges that may reach the cluster's API, such as the address of this machine with /32. Needed: nothing else
    gets in, and the one that runs Pulumi has to."""
    admins: tuple[Annotated[str, StringConstraints(pattern=r"^arn:aws:iam::\d{12}:(role|user)/\S+$")], ...] = ()
    """IAM roles and users that administer the cluster, beside the one that creates it."""
    public_nodes: bool = False
    """true: nodes have public addresses and no NAT gateway is paid for. Nothing may connect to them either way."""
    version: Literal["1.35", "1.36"] = "1.35"
    """Kubernetes."""
    secrets_encryption: bool = True
    """Encrypt the cluster's Secrets with a KMS key of the stack, beside AWS's own encryption of all that it stores."""
    irsa: bool = False
    """Make the cluster an OIDC provider of IAM, for software that knows roles of service accounts only. The stack's own
    uses pod identity, and needs none."""
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 180, 365] = 7
    """Days for which CloudWatch keeps the control plane's logs."""
    system_machine_type: str = "m6i.large"
    """Nodes for etcd, the dataset Job, TensorBoard and the cluster's own: on demand, without accelerators."""
    system_nodes: int = Field(default=3, ge=1, le=10)
    """Most nodes of the system group; one runs at rest."""
    vpc_cidr: Cidr = "10.0.0.0/16"
    """Addresses of the stack's network, /16 to /20; each zone gets an eighth."""
    gpu_metrics: bool = False
    """Run NVIDIA's DCGM exporter on the nodes with accelerators: Prometheus metrics on port 9400."""
