"""The provider's own configuration: which cluster, which namespace, which switches; its check and its diff."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import PluginError
from .values import UNKNOWN

# Keys of a kubeconfig that hold paths relative to the file they stand in.
_PATH_KEYS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


@dataclass(frozen=True)
class Settings:
    """What Configure was told. Defaults are the real plugin's."""

    kubeconfig: dict[str, Any]
    context: str | None
    namespace: str
    server_side_apply: bool = True
    delete_unreachable: bool = False
    skip_update_unreachable: bool = False
    patch_force: bool = False
    upsert: bool = False
    mutable_config_maps: bool = False
    mutable_secrets: bool = False
    problem: str | None = None


def _switch(variables: dict[str, str], key: str, environment: str, default: bool = False) -> bool:
    """A provider input, else an environment variable, else the default."""
    value = variables.get(f"kubernetes:config:{key}")
    if value is None:
        value = os.environ.get(environment)
    return default if value is None else value == "true"


def from_variables(variables: dict[str, str]) -> Settings:
    """Settings from Configure's variables. A bad kubeconfig is a `problem`, not an error: previews go on."""
    given = {
        key: variables.get(f"kubernetes:config:{key}", "") for key in ("kubeconfig", "context", "cluster", "namespace")
    }
    config: dict[str, Any] = {}
    context, namespace, problem = None, given["namespace"] or "default", None
    try:
        if given["kubeconfig"] or not _in_cluster():
            config = load_kubeconfig(given["kubeconfig"] or None)
            context, chosen = select_context(config, given["context"], given["cluster"])
            namespace = given["namespace"] or chosen.get("namespace") or "default"
    except (PluginError, OSError) as error:
        problem = str(error)
    return Settings(
        kubeconfig=config,
        context=context,
        namespace=namespace,
        server_side_apply=_switch(variables, "enableServerSideApply", "PULUMI_K8S_ENABLE_SERVER_SIDE_APPLY", True),
        delete_unreachable=_switch(variables, "deleteUnreachable", "PULUMI_K8S_DELETE_UNREACHABLE"),
        skip_update_unreachable=_switch(variables, "skipUpdateUnreachable", "PULUMI_K8S_SKIP_UPDATE_UNREACHABLE"),
        patch_force=_switch(variables, "enablePatchForce", "PULUMI_K8S_ENABLE_PATCH_FORCE"),
        upsert=_switch(variables, "upsertExistingObjects", "PULUMI_K8S_UPSERT_EXISTING_OBJECTS"),
        mutable_config_maps=_switch(variables, "enableConfigMapMutable", "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE"),
        mutable_secrets=_switch(variables, "enableSecretMutable", "PULUMI_K8S_ENABLE_SECRET_MUTABLE"),
        problem=problem,
    )


def _in_cluster() -> bool:
    """Whether this runs in a pod without any kubeconfig."""
    default = os.environ.get("KUBECONFIG") or (Path.home() / ".kube/config").exists()
    return not default and "KUBERNETES_SERVICE_HOST" in os.environ


def load_kubeconfig(given: Any) -> dict[str, Any]:
    """A kubeconfig from its text, a dict, a path, or a list of paths joined by colons; None means kubectl's default.

    As kubectl does, the first file that names a cluster, user, context or current-context wins.

    Raises:
        PluginError: no such file, or not a kubeconfig.
    """
    if isinstance(given, dict):
        return given
    text = given if isinstance(given, str) and given else os.environ.get("KUBECONFIG") or "~/.kube/config"
    if "\n" in text or text.lstrip().startswith("{"):
        return _parse(text, "the kubeconfig given to the provider")
    paths = [Path(part).expanduser() for part in text.split(os.pathsep) if part]
    existing = [path for path in paths if path.is_file()]
    if not existing:
        raise PluginError(
            f"no kubeconfig at {text}: give the provider's kubeconfig (a path or the text itself), or set KUBECONFIG"
        )
    merged: dict[str, Any] = {"clusters": [], "users": [], "contexts": []}
    for path in existing:
        config = _parse(path.read_text(), str(path))
        if config.get("current-context"):
            merged.setdefault("current-context", config["current-context"])
        for section in ("clusters", "users", "contexts"):
            known = {entry.get("name") for entry in merged[section]}
            merged[section] += [
                _with_absolute_paths(entry, path.parent)
                for entry in config.get(section) or []
                if entry.get("name") not in known
            ]
    return merged


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        config = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise PluginError(f"{where} is not YAML{f' (line {mark.line + 1})' if mark else ''}") from None
    if not isinstance(config, dict) or "clusters" not in config:
        raise PluginError(f"{where} is not a kubeconfig: it has no `clusters`")
    return config


def _with_absolute_paths(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    resolved = dict(entry)
    for section in ("cluster", "user"):
        if isinstance(entry.get(section), dict):
            resolved[section] = {
                key: str(folder / value) if key in _PATH_KEYS and value else value
                for key, value in entry[section].items()
            }
    return resolved


def select_context(config: dict[str, Any], context: str, cluster: str) -> tuple[str, dict[str, Any]]:
    """(name, body) of the context to use; with `cluster`, that context points at another cluster of the kubeconfig.

    Raises:
        PluginError: the kubeconfig has no such context or cluster.
    """
    contexts = {entry.get("name"): entry.get("context") or {} for entry in config.get("contexts") or []}
    name = context or config.get("current-context") or ""
    if name not in contexts:
        known = ", ".join(str(key) for key in contexts) or "none"
        raise PluginError(
            f"the kubeconfig has no context {name!r}; it has: {known}"
            if name
            else f"the kubeconfig has no current-context; set the provider's context to one of: {known}"
        )
    chosen = contexts[name]
    if cluster:
        chosen["cluster"] = cluster
    clusters = [entry.get("name") for entry in config.get("clusters") or []]
    if chosen.get("cluster") not in clusters:
        raise PluginError(
            f"the kubeconfig has no cluster {chosen.get('cluster')!r}; it has: {', '.join(map(str, clusters))}"
        )
    return name, chosen


def active_cluster(inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The cluster entry that provider inputs point at, or None where it cannot be told."""
    try:
        given = inputs.get("kubeconfig")
        config = load_kubeconfig(json.loads(given) if isinstance(given, str) and given.startswith("{") else given)
        _, context = select_context(config, inputs.get("context") or "", inputs.get("cluster") or "")
    except (PluginError, OSError, ValueError):
        return None
    return next(entry.get("cluster") for entry in config["clusters"] if entry.get("name") == context["cluster"])


def check(news: dict[str, Any]) -> list[tuple[str, str]]:
    """(property, reason) of every provider input that this plugin refuses."""
    if news.get("renderYamlToDirectory"):
        return [("renderYamlToDirectory", "this stand-in plugin does not render YAML: use the real pulumi-kubernetes")]
    return []


def diff(olds: dict[str, Any], news: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(changed keys, keys that force a replacement) of two provider inputs.

    A provider is replaced, and every object with it, when its cluster is another one: told by clusterIdentifier where
    both sides have it, else by the kubeconfig's active cluster, else (unknown) assumed.
    """
    ignored = {"version", "pluginDownloadURL", "__internal"}
    changed = sorted(key for key in {*olds, *news} - ignored if olds.get(key) != news.get(key))
    old_identifier, new_identifier = olds.get("clusterIdentifier"), news.get("clusterIdentifier")
    if old_identifier and new_identifier and new_identifier is not UNKNOWN:
        return changed, ["clusterIdentifier"] if old_identifier != new_identifier else []
    location = [key for key in changed if key in ("kubeconfig", "context", "cluster")]
    unknown = [key for key in location if news.get(key) is UNKNOWN]
    if unknown:
        return changed, unknown
    old_cluster, new_cluster = active_cluster(olds), active_cluster(news)
    if location and old_cluster and new_cluster and old_cluster != new_cluster:
        return changed, location
    return changed, []
