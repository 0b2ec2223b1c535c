"""The provider's own configuration: cluster, namespace and switches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import PluginError
from .values import UNKNOWN


@dataclass(frozen=True)
class Settings:
    """The arguments of Configure. `kubeconfig` is a path or the content."""

    kubeconfig: str | dict[str, Any]
    context: str | None
    namespace: str
    delete_unreachable: bool = False
    patch_force: bool = False
    problem: str | None = None
    """Why the cluster cannot be used. It is no exception, because previews continue without the cluster."""


def from_variables(variables: dict[str, str]) -> Settings:
    """Make Settings from Configure's variables."""
    given, context = (variables.get(f"kubernetes:config:{key}", "") for key in ("kubeconfig", "context"))
    is_text = "\n" in given or given.lstrip().startswith("{")
    name, namespace, problem = None, "default", None
    config: dict[str, Any] = {}
    try:
        config = _load(given if is_text else _read(given), "the provider's kubeconfig" if is_text else given)
        name, body = _select_context(config, context)
        namespace = body.get("namespace") or namespace
    except PluginError as error:
        problem = str(error)
    return Settings(
        # The official client resolves a file's relative paths against its folder.
        kubeconfig=config if is_text else given,
        context=name,
        namespace=namespace,
        delete_unreachable=os.environ.get("PULUMI_K8S_DELETE_UNREACHABLE") == "true",
        patch_force=os.environ.get("PULUMI_K8S_ENABLE_PATCH_FORCE") == "true",
        problem=problem,
    )


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except OSError as error:
        raise PluginError(f"no kubeconfig at {path or '(empty)'}: {error.strerror}") from None


def _load(text: str, source: str) -> dict[str, Any]:
    try:
        config = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:  # its own text quotes the file, which contains keys
        mark = getattr(error, "problem_mark", None)
        raise PluginError(f"{source} is not YAML{f' (line {mark.line + 1})' if mark else ''}") from None
    if not isinstance(config, dict) or not isinstance(config.get("clusters"), list):
        raise PluginError(f"{source} is not a kubeconfig: it has no list of clusters")
    return config


def _select_context(config: dict[str, Any], context: str) -> tuple[str, dict[str, Any]]:
    """Return (name, body) of the context to use."""
    contexts = {entry.get("name"): entry.get("context") or {} for entry in config.get("contexts") or []}
    name = context or config.get("current-context") or ""
    if name not in contexts:
        known = ", ".join(str(key) for key in contexts) or "none"
        raise PluginError(f"the kubeconfig has no context {name!r}; it has: {known}")
    return name, contexts[name]


def diff(olds: dict[str, Any], news: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return (changed keys, keys that replace the provider and with it every object).

    The program always sets clusterIdentifier, and only its change means another cluster.
    """
    ignored = {"version", "pluginDownloadURL", "__internal"}
    changed = sorted(key for key in {*olds, *news} - ignored if olds.get(key) != news.get(key))
    replaces = "clusterIdentifier" in changed and news.get("clusterIdentifier") is not UNKNOWN
    return changed, ["clusterIdentifier"] if replaces else []
