"""The launch templates: disks, credentials and nodeadm's configuration of the machines in a node group."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.config import StackConfig
from infra.eks.keys import EksConfig, EksNodes
from infra.eks.scope import Scope
from infra.stackfiles import marks

ROOT_DEVICE = "/dev/xvda"
#: The device plugin and the trainers run unprivileged, and name their accelerators in an environment variable. Releases
#: of the image differ in whether the runtime honours it for such containers (awslabs/amazon-eks-ami issue 2706:
#: v20260403 and v20260423). The runtime reads this setting at each start of a container (NVIDIA/k8s-device-plugin
#: issue 856).
DEVICES = """\
#!/bin/sh
nvidia-ctk config --in-place --set accept-nvidia-visible-devices-envvar-when-unprivileged=true
"""


def launch_template(name: str, scope: Scope, disk_gib: int, **options: Any) -> aws.ec2.LaunchTemplate:
    t = aws.ec2
    disk = t.LaunchTemplateBlockDeviceMappingEbsArgs(
        volume_type="gp3", volume_size=disk_gib, encrypted="true", delete_on_termination="true"
    )
    return t.LaunchTemplate(
        name,
        name=f"{scope.name}-{name}",
        update_default_version=True,
        block_device_mappings=[t.LaunchTemplateBlockDeviceMappingArgs(device_name=ROOT_DEVICE, ebs=disk)],
        metadata_options=t.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled",
            http_tokens="required",
            # One hop ends on the node: pods, which have identities of their own, cannot get the node's credentials.
            http_put_response_hop_limit=1,
        ),
        # A node group's own tags reach neither machines nor disks.
        tag_specifications=[
            t.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags={**marks(scope.stack), **scope.named(name)})
            for kind in ("instance", "volume", "network-interface")
        ],
        opts=scope.options(),
        **options,
    )


def worker_template(name: str, config: StackConfig, scope: Scope, group: pulumi.Output[str]) -> aws.ec2.LaunchTemplate:
    """For the nodes that train; `group` is the cluster's security group."""
    nodes, eks, e = config.section(EksNodes), config.section(EksConfig), aws.ec2
    options: dict[str, Any] = {}
    if nodes.compact_placement:
        # As close to each other as possible, in a placement group of their own, which is in one zone.
        near = e.PlacementGroup(name, name=f"{scope.name}-{name}", strategy="cluster", opts=scope.options())
        options["placement"] = e.LaunchTemplatePlacementArgs(group_name=near.name)
    parts = {}
    if config.machine.bundled_ssds if nodes.local_ssds is None else nodes.local_ssds:
        parts["application/node.eks.aws"] = _local_disks()
    if config.machine.accelerators:
        parts["text/x-shellscript"] = DEVICES
    if parts:
        options["user_data"] = _user_data(parts)
    if nodes.efa:
        interface = e.LaunchTemplateNetworkInterfaceArgs(
            device_index=0,
            interface_type="efa",
            delete_on_termination="true",
            associate_public_ip_address="true" if eks.public_nodes else None,
            # EKS adds its security group by itself only if the template has no interface.
            security_groups=[group],
        )
        options["network_interfaces"] = [interface]
    return launch_template(name, scope, nodes.disk_gib, **options)


def _local_disks() -> str:
    """Put images, logs and the pods' scratch on the machine's own NVMe disks (awslabs/amazon-eks-ami, nodeadm).

    From Kubernetes 1.34 on, the image sets the kubelet's shutdown grace period: 150 s, the last 30 of them for the
    node's own pods (nodeadm/internal/kubelet/config.go, pull request 2390). A trainer has its whole grace period.
    """
    spec = {"instance": {"localStorage": {"strategy": "RAID0"}}}
    return json.dumps({"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}, indent=2)


def _user_data(parts: Mapping[str, str]) -> str:
    """User data for the image's cloud-init and nodeadm, from content type -> text."""
    lines = ["MIME-Version: 1.0", 'Content-Type: multipart/mixed; boundary="NODE"', ""]
    for kind, text in parts.items():
        lines += ["--NODE", f"Content-Type: {kind}", "", text, ""]
    return base64.b64encode("\n".join([*lines, "--NODE--", ""]).encode()).decode()
