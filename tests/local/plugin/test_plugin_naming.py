"""Names: what a URN says, when a name is made up, and what the plugin refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from local.plugin import naming
from local.plugin.errors import PluginError
from local.plugin.naming import Urn
from local.plugin.values import UNKNOWN


def urn(token: str, name: str = "train") -> Urn:
    return Urn(f"urn:pulumi:dev::project::parent:component$kubernetes:{token}::{name}")


def test_urn_parts() -> None:
    job = urn("batch/v1:JobPatch", "a::b")
    assert (job.token, job.name, job.type_name) == ("kubernetes:batch/v1:JobPatch", "a::b", "JobPatch")
    assert job.is_patch("Job")
    assert not job.is_patch("JobPatch")
    assert naming.api_version_and_kind(urn("core/v1:Pod"), {}) == ("v1", "Pod")
    assert naming.api_version_and_kind(urn("apps/v1:DeploymentPatch"), {}) == ("apps/v1", "Deployment")


@pytest.mark.parametrize("token", ["helm.sh/v3:Release", "yaml/v2:ConfigGroup", "core/v1:PodList", "yaml:ConfigFile"])
def test_what_is_no_kubernetes_object_is_refused_by_name(token: str) -> None:
    with pytest.raises(PluginError, match=token.split(":")[1]) as caught:
        naming.require_supported(urn(token))
    assert "\n" not in str(caught.value)


def test_automatic_name_is_stable_over_updates() -> None:
    first: dict[str, Any] = {"metadata": {}}
    naming.assign_name(first, {}, urn("v1:ConfigMap"), b"seed", None)
    name = first["metadata"]["name"]
    assert re.fullmatch(r"train-[0-9a-f]{8}", name)
    assert naming.is_autonamed(first)
    second: dict[str, Any] = {"metadata": {}}
    naming.assign_name(second, first, urn("v1:ConfigMap"), b"another seed", None)
    assert second == first


def test_the_same_seed_gives_the_same_name() -> None:
    names = set()
    for _ in range(2):
        inputs: dict[str, Any] = {"metadata": {}}
        naming.assign_name(inputs, {}, urn("v1:ConfigMap"), b"seed", None)
        names.add(inputs["metadata"]["name"])
    assert len(names) == 1


def test_a_name_given_by_hand_stays() -> None:
    for name in ("mine", UNKNOWN):
        inputs = {"metadata": {"name": name}}
        naming.assign_name(inputs, {}, urn("v1:ConfigMap"), b"seed", "engine")
        assert inputs == {"metadata": {"name": name}}


def test_a_name_dropped_from_the_program_becomes_automatic() -> None:
    inputs: dict[str, Any] = {"metadata": {}}
    naming.assign_name(inputs, {"metadata": {"name": "mine"}}, urn("v1:ConfigMap"), b"seed", None)
    assert inputs["metadata"]["name"].startswith("train-")


def test_the_engines_naming_rules_win() -> None:
    inputs: dict[str, Any] = {"metadata": {}}
    naming.assign_name(inputs, {}, urn("v1:ConfigMap"), b"seed", "chosen-by-engine")
    assert inputs["metadata"]["name"] == "chosen-by-engine"
    with pytest.raises(PluginError, match=r"metadata\.name"):
        naming.assign_name({"metadata": {}}, {}, urn("v1:ConfigMap"), b"seed", "")


def test_generate_name_is_refused() -> None:
    with pytest.raises(PluginError, match="generateName"):
        naming.assign_name({"metadata": {"generateName": "x-"}}, {}, urn("v1:ConfigMap"), b"", None)


def test_ids() -> None:
    assert naming.parse_id("demo/train") == ("demo", "train")
    assert naming.parse_id("demo") == ("", "demo")
    assert naming.object_id({"metadata": {"namespace": "demo", "name": "train"}}) == "demo/train"
    assert naming.object_id({"metadata": {"name": "demo"}}) == "demo"


def test_the_field_manager_is_the_annotation_then_the_state_then_new() -> None:
    annotated = {"metadata": {"annotations": {naming.PATCH_FIELD_MANAGER: "me"}}}
    assert naming.field_manager(annotated, {"__fieldManager": "old"}) == "me"
    assert naming.field_manager({}, {"__fieldManager": "old"}) == "old"
    assert re.fullmatch(r"pulumi-kubernetes-[0-9a-f]{8}", naming.field_manager({}, {}))
