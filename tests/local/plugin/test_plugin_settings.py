"""The provider's configuration: which kubeconfig, context and namespace, and when a provider is replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local.plugin import settings
from local.plugin.values import UNKNOWN


def kubeconfig(namespace: str | None = None) -> str:
    context = {"cluster": "one", "user": "one", **({"namespace": namespace} if namespace else {})}
    return json.dumps(
        {
            "current-context": "one",
            "clusters": [{"name": "one", "cluster": {"server": "https://a:6443"}}],
            "users": [{"name": "one", "user": {"token": "t"}}],
            "contexts": [{"name": "one", "context": context}],
        }
    )


def configure(**inputs: str) -> settings.Settings:
    return settings.from_variables({f"kubernetes:config:{key}": value for key, value in inputs.items()})


def test_the_namespace_is_the_contexts(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(kubeconfig("team"))
    assert (configure(kubeconfig=str(path)).namespace, configure(kubeconfig=kubeconfig()).namespace) == (
        "team",
        "default",
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kubeconfig": "/nowhere/kubeconfig"}, "/nowhere/kubeconfig"),
        ({"kubeconfig": "a: [\ntoken: secret\n"}, "is not YAML (line 3)"),
        ({"kubeconfig": "{}"}, "not a kubeconfig"),
        ({"kubeconfig": kubeconfig(), "context": "gke"}, "'gke'; it has: one"),
    ],
)
def test_a_bad_kubeconfig_is_one_line_that_says_what_there_is(given: dict[str, str], expected: str) -> None:
    problem = configure(**given).problem
    assert problem is not None
    assert expected in problem
    assert "\n" not in problem
    assert "secret" not in problem


def test_switches_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not configure(kubeconfig=kubeconfig()).delete_unreachable
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")
    assert configure(kubeconfig=kubeconfig()).delete_unreachable


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ([], [])),
        ({"kubeconfig": UNKNOWN}, (["kubeconfig"], [])),
        ({"kubeconfig": kubeconfig("team")}, (["kubeconfig"], [])),
        ({"clusterIdentifier": "b"}, (["clusterIdentifier"], ["clusterIdentifier"])),
    ],
)
def test_only_another_cluster_replaces_the_provider(change: dict[str, Any], expected: tuple[list, list]) -> None:
    old = {"kubeconfig": kubeconfig(), "clusterIdentifier": "a"}
    assert settings.diff(old, {**old, **change}) == expected
