"""The nodes of the AWS stack: what they are, in which zones, and what pods find on them."""

from __future__ import annotations

import base64
import json
from email import message_from_string
from typing import Any

import pytest

from infra.eks.keys import KEEP_RELEASES
from review.recording import Recording
from tests.infra.eks import ZONES, stack, workers
from tests.infra.recorded import PLUGIN, pod


def template(found: Recording, name: str = "workers") -> dict[str, Any]:
    return found.one("LaunchTemplate", name).inputs


def user_data(found: Recording, name: str = "workers") -> dict[str, str]:
    """The parts of the user data by content type."""
    message = message_from_string(base64.b64decode(template(found, name)["userData"]).decode())
    return {part.get_content_type(): str(part.get_payload()) for part in message.walk() if not part.is_multipart()}


def test_more_nodes_change_the_autoscaler_and_no_group_that_trains() -> None:
    """A changed limit would also send the group's size from the state, and end the nodes that train."""
    few, more, most = stack(), stack(nodes={"max": 50}), stack(nodes={"max": 150})
    assert [group.inputs for group in workers(more)] == [group.inputs for group in workers(few)]
    assert {group.inputs["scalingConfig"]["maxSize"] for group in workers(most)} == {150}
    for found, nodes in ((few, 4), (more, 50), (most, 150)):
        arguments = pod(found, "Deployment", "cluster-autoscaler")["containers"][0]
        system = found.one("NodeGroup", "system").inputs["scalingConfig"]["maxSize"]
        assert f"--max-nodes-total={nodes + system:g}" in str(arguments)


def test_local_disks_are_scratch_and_the_times_of_a_shutdown_are_the_images() -> None:
    """The image has 150 s, 30 of them for the node's pods: a drop-in of ours would cut a trainer's grace period."""
    assert "application/node.eks.aws" in user_data(stack())
    assert "application/node.eks.aws" not in user_data(stack(nodes={"localSsds": 0}))
    assert pod(stack(), "Job", "training")["terminationGracePeriodSeconds"] <= 150 - 30


def test_pods_without_privileges_get_their_accelerators_whatever_the_image_says() -> None:
    for found in (stack(), stack(nodes={"localSsds": 0})):
        script = user_data(found)["text/x-shellscript"]
        assert script.startswith("#!/bin/sh\n")
        assert "accept-nvidia-visible-devices-envvar-when-unprivileged=true" in script


def test_a_newer_image_of_aws_is_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workers(stack())[0].inputs["releaseVersion"]
    monkeypatch.setenv(KEEP_RELEASES, "true")
    assert "releaseVersion" not in workers(stack(nodes={"max": 8}))[0].inputs


def test_a_placement_group_is_in_one_zone() -> None:
    assert not [item for item in stack().resources if item.kind == "PlacementGroup"]
    found = stack(nodes={"compactPlacement": True})
    for zone in ZONES:
        group = found.one("PlacementGroup", f"workers-{zone}")
        assert group.inputs["strategy"] == "cluster"
        assert template(found, f"workers-{zone}")["placement"] == {"groupName": group.inputs["name"]}
        assert (
            found.one("LaunchTemplate", f"workers-{zone}").urn in found.one("NodeGroup", f"workers-{zone}").dependencies
        )


def test_a_fallback_is_the_last_choice_and_no_other_kind_of_node_for_a_pod() -> None:
    found = stack(nodes={"fallback": "on_demand"})
    text = found.one("ConfigMap", "cluster-autoscaler-priorities").inputs["data"]["priorities"]
    ranks = {json.loads(names)[0]: int(rank) for rank, names in (line.split(": ", 1) for line in text.splitlines())}
    spot, on_demand = (
        [rank for name, rank in ranks.items() if name.startswith(f"^eks-{kind}-")] for kind in ("workers", "fallback")
    )
    assert len(spot) == len(on_demand) == len(ZONES)
    assert min(spot) > max(on_demand) > ranks[".*"]
    for zone in ZONES:
        group, other = (found.one("NodeGroup", f"{kind}-{zone}").inputs for kind in ("fallback", "workers"))
        assert (group["capacityType"], group["instanceTypes"]) == ("ON_DEMAND", ["g4dn.xlarge"])
        same = ("labels", "taints", "subnetIds", "launchTemplate", "amiType", "scalingConfig")
        assert {key: group[key] for key in same} == {key: other[key] for key in same}, "one training runs on both"
    assert not [item for item in stack().resources if item.name.startswith("fallback-")]
    with_adapter = stack(
        nodes={"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True, "fallback": "on_demand"},
        eks={"efaPlugin": PLUGIN},
    )
    assert {item.name for item in with_adapter.resources if item.kind == "Tag"} == {
        "efa-use2-az1",
        "efa-fallback-use2-az1",
    }


def test_larger_sizes_have_an_elastic_fabric_adapter_in_one_zone() -> None:
    assert "networkInterfaces" not in template(stack())
    nodes = {"machineType": "g4dn.8xlarge", "alternatives": ["g4dn.16xlarge"], "efa": True}
    found = stack(nodes=nodes, eks={"efaPlugin": PLUGIN})
    (interface,) = template(found)["networkInterfaces"]
    assert interface["interfaceType"] == "efa"
    assert interface["securityGroups"], "EKS adds its group only where no interface is spelled out"
    assert [group.name for group in workers(found)] == ["workers-use2-az1"], "it does not reach another zone"
    # From node to NCCL: announced by the device plugin, requested by the pod, known to the autoscaler before a node.
    training = pod(found, "Job", "training")["containers"][0]
    assert training["resources"]["limits"]["vpc.amazonaws.com/efa"] == "1"
    assert {"name": "FI_PROVIDER", "value": "efa"} in training["env"]
    plugin = pod(found, "DaemonSet", "efa-device-plugin")
    assert (plugin["nodeSelector"], plugin["containers"][0]["image"]) == ({"trainyard/pool": "workers"}, PLUGIN)
    tag = found.one("Tag").inputs
    assert tag["autoscalingGroupName"].startswith("eks-workers-use2-az1-")
    assert tag["tag"] == {
        "key": "k8s.io/cluster-autoscaler/node-template/resources/vpc.amazonaws.com/efa",
        "value": "1",
        "propagateAtLaunch": False,
    }


def test_figures_of_accelerators_are_read_where_the_device_plugin_runs() -> None:
    plugin = pod(stack(), "DaemonSet", "nvidia-device-plugin")
    exporter = pod(stack(eks={"gpuMetrics": True}), "DaemonSet", "dcgm-exporter")
    assert exporter["nodeSelector"] == plugin["nodeSelector"]
