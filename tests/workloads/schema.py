"""Validates an object against a custom resource definition as the API server would: unknown fields are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import yaml

from local import toolchain


def kubeflow_definitions() -> list[Path]:
    """The definitions of Kubeflow Trainer, from its Go module."""
    module = toolchain.module_directory("kubeflow-trainer", "github.com/kubeflow/trainer/v2")
    return sorted((module / "manifests" / "base" / "crds").glob("trainer.kubeflow.org_*.yaml"))


def schema(definition: Path) -> dict[str, Any]:
    """The schema of a definition's only version, which refuses unknown fields."""
    content = yaml.load(definition.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = content["spec"]["versions"]
    return _closed(version["schema"]["openAPIV3Schema"])


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]


def _closed(node: dict[str, Any]) -> dict[str, Any]:
    """Kubernetes' OpenAPI 3 -> JSON schema: objects refuse unknown fields, except those that accept any."""
    node = dict(node)
    if node.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if "properties" in node:
        node["properties"] = {name: _closed(inner) for name, inner in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            node["additionalProperties"] = False
    elif isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _closed(node["additionalProperties"])
    if isinstance(node.get("items"), dict):
        node["items"] = _closed(node["items"])
    # Go's number sizes (int32, ...) are no formats of JSON schema.
    node.pop("format", None)
    return node
