"""Refuses changes of a living stack that cannot succeed, or that would replace its cluster or data unasked, at preview
and at `up`, before anything is changed.

Components in the stack's own state record what it was built with. Their outputs are written once the cluster, and the
volume, exist: a first `up` that fails earlier has recorded nothing, so no change is refused. infra/live.yaml says what
a change of each key does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pulumi

from infra.clouds import CLOUDS, keys
from infra.cluster import Cluster
from infra.config import ConfigError, StackConfig
from infra.gke.keys import band
from infra.needs import load, numbers
from trainer.config.base import Section
from trainer.config.values import typed

TYPE = "trainyard:infra:Built"
#: Component type with a folder on the shared volume -> the output that names it, and the key under which `read` has it.
FOLDERS = {
    "trainyard:workloads:Dataset": ("directory", "folder of the dataset"),
    "trainyard:workloads:Training": ("runDirectory", "folder of the run"),
}
#: The engine's own function to read a state; it needs neither a provider nor set-up, whatever the backend.
STATE = "pulumi:pulumi:readStackResourceOutputs"
#: Parts that only `cluster.replace` lets a change replace.
PRECIOUS = ("cluster", "data", "objects")
#: Lists of changes in a table.
ROWS = ("impossible", "careful")
#: Key of the record for the shared volume's kind, with the default filled in.
VOLUME = "volume"
#: Key of the record for a digest of what the stack file asked for: what to train, and on what.
ASKED = "asked"


class Built(pulumi.ComponentResource):
    """Values that part of the stack was built with, written once `made` exists."""

    def __init__(self, name: str, values: Mapping[str, Any], made: pulumi.Resource | None):
        super().__init__(TYPE, name)
        # As JSON text: a state drops null values.
        recorded = pulumi.Output.from_input(json.dumps(values))
        if isinstance(made, pulumi.CustomResource):
            recorded = pulumi.Output.all(recorded, made.id).apply(lambda both: both[0])
        self.register_outputs({"values": recorded})


def digest_of(values: Mapping[str, Any]) -> str:
    """A digest of what a stack file says of its training and its data."""
    said = {key: values.get(key) for key in ("training", "dataset", "job")}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:12]


def remember(config: StackConfig, written: Mapping[str, Any], cluster: Cluster, claim: pulumi.Resource) -> None:
    """Record what the stack is built with: the volume's keys once it is claimed, the others once the cluster exists.

    written: the stack file's values, as they are.
    """
    values = {key: value_of(config, key) for key in table()["keys"] if _is_guarded(key)} | {ASKED: digest_of(written)}
    values[VOLUME] = built_volume(config, cluster)
    of_volume = {key: value for key, value in values.items() if key == VOLUME or key.startswith("storage.")}
    Built("cluster", {key: values[key] for key in values.keys() - of_volume.keys()}, cluster.resource or claim)
    Built("storage", of_volume, claim)


def hold(config: StackConfig, stack: str) -> dict[str, Any]:
    """What this living stack was built with. Raises ConfigError with every forbidden change."""
    built = read()
    if found := list(problems(config, built)):
        raise ConfigError(stack, found)
    for line in cautions(config, built):
        pulumi.warn(line)
    if config.cluster.replace and built:
        pulumi.warn(
            "cluster.replace is true: set it back to false after this `pulumi up`, or the next replacing change will "
            "not be refused"
        )
    return built


def read() -> dict[str, Any]:
    """What this stack was built with, from its own state; empty for a stack that was never built."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    try:
        state: Any = pulumi.runtime.invoke(STATE, {"stackName": name}).value
    except Exception as error:
        pulumi.warn(
            f"cannot read the stack's state, so changes that would replace its cluster or data are not refused: {error}"
        )
        return {}
    found: dict[str, Any] = {}
    for resource in (state or {}).get("outputs", {}).values():
        if resource["type"] == TYPE:
            found |= json.loads(resource["outputs"].get("values") or "{}")
        elif resource["type"] in FOLDERS:
            output, key = FOLDERS[resource["type"]]
            found[key] = resource["outputs"].get(output)  # of several trainings any: they are not compared
    return found


def problems(config: StackConfig, built: Mapping[str, Any]) -> Iterator[str]:
    """One line for each refused change from what was built."""
    moved = {key for key in table()["keys"] if key in built and built[key] != value_of(config, key)}
    # With another kind of cluster the other keys change as well: report the kind alone.
    for key in ["cluster.kind"] if "cluster.kind" in moved else sorted(moved):
        old, new = built[key], value_of(config, key)
        start = f"{key}: {_shown(new)} on a stack that lives with {_shown(old)}"
        back = "remove it" if old is None else f"set it back to {_shown(old)}"
        if reason := _impossible(key, old, new, built):
            yield f"{start}; {reason}; {back}, or change it after `pulumi destroy`"
        elif not config.cluster.replace and (lost := _lost(key, built)):
            yield f"{start} replaces {lost}; {back}, or set cluster.replace: true to lose what is there"


def cautions(config: StackConfig, built: Mapping[str, Any]) -> Iterator[str]:
    """One line for each change from what was built that is made with an unexpected effect."""
    for row in table()["careful"]:
        old, new = built.get(row["key"]), value_of(config, row["key"])
        moved = row["kind"] == built.get("cluster.kind") and old is not None and old != new
        if (
            moved
            and HOLDS[row.get("when", "changed")](old, new)
            and ("above" not in row or max(old, new) > row["above"])
        ):
            yield f"{row['key']}: {_shown(new)} on a stack that lives with {_shown(old)}; {row['because']}"


def _impossible(key: str, old: Any, new: Any, built: Mapping[str, Any]) -> str:
    """Why a change cannot succeed; "": it can."""
    rows = (row for row in table()["impossible"] if row["key"] == key and HOLDS[row["when"]](old, new))
    there = (row for row in rows if all(built.get(name) in among for name, among in row.get("where", {}).items()))
    return next((row["because"] for row in there), "")


#: `when` of a row in live.yaml -> whether a change from `old` to `new` is of that kind.
HOLDS = {
    "changed": lambda old, new: True,
    "smaller": lambda old, new: new < old,
    # `latest` names no version: it is neither older nor newer.
    "older": lambda old, new: [] < numbers(new) < numbers(old),
    "out of its band": lambda old, new: band("ZONAL", old) != band("ZONAL", new),
    "on": lambda old, new: bool(new),
    "off": lambda old, new: not new,
}


def _lost(key: str, built: Mapping[str, Any]) -> str:
    """The precious parts that a change of a key replaces, in words."""
    parts = [part for part in PRECIOUS if part in _replaced(effect(key, built["cluster.kind"], built.get(VOLUME, "")))]
    if "data" in parts and (built.get("storage.retain") or built.get(VOLUME) == "given"):
        parts.remove("data")
    return " and ".join("all that it has in the cluster" if part == "objects" else f"the {part}" for part in parts)


#: What is feared of a change that a new kind of cluster has not said a word about.
WORST = "replaces cluster, data"


def effect(key: str, kind: str, volume: str = "") -> str:
    """What a change of a key does to a living stack; "": the kind of cluster has no such key."""
    said = effects(key)
    found = (said[each] for each in (volume or kind, kind, "") if each in said)
    return next(found, WORST if key in keys(kind) else "")


def effects(key: str) -> dict[str, str]:
    """Kind of cluster or volume ("": any) -> what a change of a key, or of its section, does to a living stack."""
    return (keys := table()["keys"]).get(key) or keys[key.partition(".")[0]]


def _replaced(said: str) -> list[str]:
    """The parts of "replaces cluster, data; rolls workers" that are replaced."""
    verb, _, parts = said.partition(";")[0].partition(" ")
    return parts.split(", ") if verb == "replaces" else []


def _is_guarded(key: str) -> bool:
    """Whether the value of a key is recorded: some change of it may be refused or warned of."""
    asked = {key for row in table()["impossible"] for key in (row["key"], *row.get("where", {}))}
    asked |= {"cluster.kind", "storage.retain"} | {row["key"] for row in table()["careful"]}
    return key in asked or any(set(PRECIOUS) & {*_replaced(text)} for text in effects(key).values())


def value_of(config: StackConfig, key: str) -> Any:
    """The value of a key, written as in a stack file; None: the configuration has none."""
    first, *inner = key.split(".")
    found: Any = config.cloud if first == config.cluster.kind else getattr(config, first, None)
    for part in inner:
        if not isinstance(found, Section):
            return None
        fields = type(found).model_fields
        found = getattr(found, next((name for name, field in fields.items() if part in (name, field.alias)), ""), None)
    return list(found) if isinstance(found, tuple) else found  # as a state returns it


def built_volume(config: StackConfig, cluster: Cluster) -> str:
    """The kind of the shared volume, with the default filled in; `given`: one that storage.disk names."""
    if getattr(config.storage, "disk", None):
        return "given"
    return config.storage.kind or ("storageClass" if cluster.storage.volume is None else "hostPath")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else typed(value)


def _by_kind(said: str | dict[str, str], kind: str = "") -> dict[str, str]:
    return {kind: said} if isinstance(said, str) else said


@cache
def table() -> dict[str, Any]:
    """infra/live.yaml, with what the clouds' tables say of their own keys, and of shared ones for themselves."""
    shared = load(Path(__file__).with_name("live.yaml"))
    files = {kind: load(cloud.folder / "live.yaml") for kind, cloud in CLOUDS.items() if cloud.folder}
    found = {key: _by_kind(said) for key, said in shared["keys"].items()}
    for kind, file in files.items():
        for key, said in file["keys"].items():
            found[key] = found.get(key, {}) | _by_kind(said, "" if key.startswith(f"{kind}.") else kind)
    rows = {name: [row for file in (shared, *files.values()) for row in file.get(name, ())] for name in ROWS}
    return {"keys": found, **rows}
