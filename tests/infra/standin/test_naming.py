"""Names: what a URN says, and when a name is made up."""

from __future__ import annotations

import re
from typing import Any

from tests.standin import naming
from tests.standin.naming import Urn
from tests.standin.values import UNKNOWN


def urn(token: str, name: str = "train") -> Urn:
    return Urn(f"urn:pulumi:dev::project::parent:component$kubernetes:{token}::{name}")


def named(olds: dict[str, Any], seed: bytes = b"seed", **metadata: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {"metadata": metadata}
    naming.assign_name(inputs, olds, urn("v1:ConfigMap"), seed)
    return inputs


def test_urn_parts() -> None:
    job = urn("batch/v1:JobPatch", "a::b")
    assert (job.token, job.name, job.type_name) == ("kubernetes:batch/v1:JobPatch", "a::b", "JobPatch")
    assert job.is_patch("Job")
    assert not job.is_patch("JobPatch")
    assert naming.api_version_and_kind(urn("core/v1:Pod"), {}) == ("v1", "Pod")
    assert naming.api_version_and_kind(urn("apps/v1:DeploymentPatch"), {}) == ("apps/v1", "Deployment")


def test_an_automatic_name_follows_the_seed_and_is_stable_over_updates() -> None:
    first = named({})
    assert re.fullmatch(r"train-[0-9a-f]{8}", first["metadata"]["name"])
    assert naming.is_autonamed(first)
    assert named({}) == first
    assert named(first, b"another seed") == first


def test_a_name_given_by_hand_stays_and_one_dropped_becomes_automatic() -> None:
    for name in ("mine", UNKNOWN):
        assert named({}, name=name) == {"metadata": {"name": name}}
    assert named({"metadata": {"name": "mine"}})["metadata"]["name"].startswith("train-")
