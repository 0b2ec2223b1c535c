"""The objects of every stack on the oldest and the newest Kubernetes that a stack may meet: applied to the real API
server with strict validation, nothing is refused, warned of, dropped or changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from kubernetes.utils import parse_quantity

from infra.stackfiles import ROOT
from local import toolchain
from review.policy import revealed
from review.recording import Recorded, record_anywhere
from tests.e2e.control_plane import ApiServer, Refused, api_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STACKS = sorted(file.name.split(".")[1] for file in ROOT.glob("Pulumi.*.yaml"))
#: Version -> the tool that has it, or that emulates it. What a version in between takes, both of these do.
VERSIONS = {
    "1.34": ("kubernetes", "1.34"),
    "1.37": ("kubernetes-1.37", ""),
}
#: Groups whose definitions come with a cloud or an operator.
CUSTOM = ("autoscaling.x-k8s.io", "monitoring.googleapis.com", "trainer.kubeflow.org")


@cache
def objects(stack: str) -> list[tuple[str, dict[str, Any]]]:
    """What a stack declares in its cluster, in the order in which it is made, and who owns its fields."""
    return [
        (
            "size" if item.kind == "JobPatch" else "trainyard",
            _plain(revealed(item.inputs)) | {"metadata": _named(item, stack)},
        )
        for item in record_anywhere(stack).resources
        if item.is_kubernetes and "apiVersion" in item.inputs
    ]


def _named(item: Recorded, stack: str) -> dict[str, Any]:
    """Its metadata, in a namespace of the stack's own: all stacks meet on one server."""
    found = {"name": item.plain_name, **_plain(revealed(item.inputs["metadata"]))}
    if item.kind == "Namespace":
        return found | {"name": stack}
    inside = found.get("namespace") not in (None, "kube-system")
    return found | ({"namespace": stack} if inside else {})


def _plain(value: Any) -> Any:
    """Pulumi's numbers are all floats, but Kubernetes takes 2 and not 2.0."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def lost(sent: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Paths at which what the server keeps differs from what it was sent; it may add."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            if key != "stringData":  # it is kept as `data`
                yield from lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for number, (one, other) in enumerate(zip(sent, kept, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif sent != kept and (sent or kept) and not _same_quantity(sent, kept):  # what is empty is left out
        yield f"{path}: {sent!r} became {kept!r}"


def _same_quantity(sent: Any, kept: Any) -> bool:
    try:
        return parse_quantity(str(sent)) == parse_quantity(str(kept))
    except ValueError:
        return False


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    tool, emulated = VERSIONS[version]
    if not toolchain.is_built(toolchain.BY_NAME[tool]):
        pytest.skip(f"{tool} is not built: trainyard local toolchain {tool}")
    with api_server(tmp_path_factory.mktemp("api"), tool, emulated) as made:
        found = made.ask("GET", "/version")
        minor = found.get("emulationMinor") or found["minor"]
        assert f"{found['major']}.{minor}" == version
        yield made


def test_the_objects_of_all_stacks_are_taken_as_they_are(server: ApiServer) -> None:
    problems, applied = [], 0
    for stack in STACKS:
        for manager, thing in objects(stack):
            name = f"{stack}: {thing['kind']} {thing['metadata']['name']}"
            if thing["apiVersion"].startswith(CUSTOM):
                continue
            try:
                kept = server.apply(thing, manager)
            except Refused as error:
                problems.append(f"{name}: {error}")
                continue
            applied += 1
            problems += [f"{name}{path}" for path in lost(thing, kept)]
    assert not problems, "\n".join(problems)
    assert not server.warnings
    assert applied > 100
