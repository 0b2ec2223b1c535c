"""The provider's configuration: which kubeconfig, context and namespace, and when a provider is replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local.plugin import settings
from local.plugin.errors import PluginError
from local.plugin.values import UNKNOWN


def kubeconfig(name: str, server: str = "https://a:6443", namespace: str | None = None) -> dict[str, Any]:
    context = {"cluster": name, "user": name, **({"namespace": namespace} if namespace else {})}
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"client-certificate": "cert.pem", "token": "t"}}],
        "contexts": [{"name": name, "context": context}],
    }


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / f"{config['current-context']}.yaml"
    path.write_text(json.dumps(config))
    return path


def variables(**inputs: str) -> dict[str, str]:
    return {f"kubernetes:config:{key}": value for key, value in inputs.items()}


def test_files_are_merged_as_kubectl_does_and_paths_made_absolute(tmp_path: Path) -> None:
    first, second = write(tmp_path, kubeconfig("one")), write(tmp_path, kubeconfig("two"))
    config = settings.load_kubeconfig(f"{first}:{second}:{tmp_path}/missing")
    assert config["current-context"] == "one"
    assert [entry["name"] for entry in config["clusters"]] == ["one", "two"]
    assert config["users"][1]["user"] == {"client-certificate": str(tmp_path / "cert.pem"), "token": "t"}


def test_the_namespace_comes_from_the_input_then_the_context_then_default(tmp_path: Path) -> None:
    path = str(write(tmp_path, kubeconfig("one", namespace="team")))
    assert settings.from_variables(variables(kubeconfig=path)).namespace == "team"
    assert settings.from_variables(variables(kubeconfig=path, namespace="mine")).namespace == "mine"
    plain = json.dumps(kubeconfig("one"))
    assert settings.from_variables(variables(kubeconfig=plain)).namespace == "default"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kubeconfig": "/nowhere/kubeconfig"}, "/nowhere/kubeconfig"),
        ({"kubeconfig": "a: [\n"}, "not YAML"),
        ({"kubeconfig": "{}"}, "not a kubeconfig"),
        ({"kubeconfig": json.dumps(kubeconfig("one")), "context": "gke"}, "'gke'; it has: one"),
        ({"kubeconfig": json.dumps(kubeconfig("one")), "cluster": "gke"}, "'gke'; it has: one"),
    ],
)
def test_a_bad_kubeconfig_is_one_line_that_says_what_there_is(given: dict[str, str], expected: str) -> None:
    problem = settings.from_variables(variables(**given)).problem
    assert problem is not None
    assert expected in problem
    assert "\n" not in problem


def test_switches_come_from_the_input_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config = variables(kubeconfig=json.dumps(kubeconfig("one")))
    assert not settings.from_variables(config).delete_unreachable
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")
    assert settings.from_variables(config).delete_unreachable
    assert not settings.from_variables({**config, **variables(deleteUnreachable="false")}).delete_unreachable
    assert settings.from_variables(config).server_side_apply


def test_another_cluster_replaces_another_user_does_not() -> None:
    old = {"kubeconfig": json.dumps(kubeconfig("one"))}
    other_token = kubeconfig("one")
    other_token["users"][0]["user"]["token"] = "fresh"
    assert settings.diff(old, {"kubeconfig": json.dumps(other_token)}) == (["kubeconfig"], [])
    moved = {"kubeconfig": json.dumps(kubeconfig("one", "https://b:6443"))}
    assert settings.diff(old, moved) == (["kubeconfig"], ["kubeconfig"])
    assert settings.diff(old, {"kubeconfig": UNKNOWN}) == (["kubeconfig"], ["kubeconfig"])
    assert settings.diff(old, dict(old)) == ([], [])


def test_the_cluster_identifier_decides_alone() -> None:
    old = {"kubeconfig": json.dumps(kubeconfig("one")), "clusterIdentifier": "a"}
    assert settings.diff(old, {"kubeconfig": UNKNOWN, "clusterIdentifier": "a"}) == (["kubeconfig"], [])
    changed, replaces = settings.diff(old, {**old, "clusterIdentifier": "b"})
    assert (changed, replaces) == (["clusterIdentifier"], ["clusterIdentifier"])


def test_rendering_yaml_is_refused() -> None:
    assert settings.check({"renderYamlToDirectory": "out"})[0][0] == "renderYamlToDirectory"
    assert settings.check({"kubeconfig": "x"}) == []
    with pytest.raises(PluginError):
        settings.select_context({"contexts": [], "clusters": []}, "", "")
