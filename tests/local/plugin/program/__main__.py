"""Registers the Kubernetes objects that the JSON file $PROGRAM lists, so that a test can be read as data.

Each entry: `type` (`batch/v1:Job`), `name`, `properties`, and resource options. In properties, {"$ref": "name.path.to"}
is an output of an earlier entry and {"$secret": value} a secret.
"""

import json
import os
from pathlib import Path
from typing import Any

import pulumi

program = json.loads(Path(os.environ["PROGRAM"]).read_text())
made: dict[str, pulumi.CustomResource] = {}


class Object(pulumi.CustomResource):
    """Any Kubernetes object."""

    metadata: pulumi.Output[dict[str, Any]]

    def __init__(self, entry: dict[str, Any], options: pulumi.ResourceOptions) -> None:
        properties = {"metadata": {}, "status": None, **resolve(entry["properties"])}
        super().__init__(f"kubernetes:{entry['type']}", entry["name"], properties, options)


def resolve(value: Any) -> Any:
    """Properties with references and secrets put in."""
    if isinstance(value, dict) and "$secret" in value:
        return pulumi.Output.secret(value["$secret"])
    if isinstance(value, dict) and "$ref" in value:
        name, *path = value["$ref"].split(".")
        output: Any = getattr(made[name], path[0])
        for part in path[1:]:
            output = output[part]
        return output
    if isinstance(value, dict):
        return {key: resolve(item) for key, item in value.items()}
    return [resolve(item) for item in value] if isinstance(value, list) else value


provider = pulumi.ProviderResource("kubernetes", "cluster", program["provider"])
for entry in program["resources"]:
    options = pulumi.ResourceOptions(
        provider=provider,
        ignore_changes=entry.get("ignore_changes"),
        retain_on_delete=entry.get("retain_on_delete"),
        custom_timeouts=pulumi.CustomTimeouts(**entry.get("timeouts", {})),
        import_=entry.get("import"),
        depends_on=[made[name] for name in entry.get("depends_on", [])],
        deleted_with=made[entry["deleted_with"]] if "deleted_with" in entry else None,
    )
    made[entry["name"]] = Object(entry, options)
