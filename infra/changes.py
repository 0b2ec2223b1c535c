"""Refuses changes of a living stack that cannot succeed, or that would replace its cluster or data unasked, at preview
and at `up`, before anything is changed.

Components in the stack's own state record what it was built with. Their outputs are written once the cluster, and the
volume, exist: a first `up` that fails earlier has recorded nothing, so no change is refused. Marks beside the type of a
key say what its change does (infra/effect.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pulumi

from infra.clouds import keys
from infra.cluster import Cluster
from infra.config import ConfigError, StackConfig
from infra.effect import Careful, Impossible, Mark, Replaces, marks
from infra.state import BUILT, KEY
from trainer.config.values import typed

#: Component type with a folder on the shared volume -> the output that names it, and the key under which `read` has it.
FOLDERS = {
    "trainyard:workloads:Dataset": ("directory", "folder of the dataset"),
    "trainyard:workloads:Training": ("runDirectory", "folder of the run"),
}
#: The engine's own function to read a state; it needs neither a provider nor set-up, whatever the backend.
STATE = "pulumi:pulumi:readStackResourceOutputs"
#: Parts that only `cluster.replace` lets a change replace.
PRECIOUS = ("cluster", "data", "objects")
KIND = "cluster.kind"
#: The key under which Pulumi refuses to replace the cluster: without a preview in the middle of the `up`, when a new
#: disk is made and the old one is to go, and no `up` leads back (3.200.0).
PROTECTED = f"cluster.{KEY}"
#: Keys that say what a change of another one loses.
READ = ("storage.retain", "storage.tier", PROTECTED)
#: Key of the record for the shared volume's kind, with the default filled in.
VOLUME = "volume"
#: Key of the record for a digest of what the stack file asked for: what to train, and on what.
ASKED = "asked"


class Built(pulumi.ComponentResource):
    """Values that part of the stack was built with, written once `made` exists."""

    def __init__(self, name: str, values: Mapping[str, Any], made: pulumi.Resource | None):
        super().__init__(BUILT, name)
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
    values = {key: config.value(key) for key in recorded(config.cluster.kind)} | {ASKED: digest_of(written)}
    values[VOLUME] = built_volume(config, cluster)
    of_volume = {key: value for key, value in values.items() if key == VOLUME or key.startswith("storage.")}
    Built("cluster", {key: values[key] for key in values.keys() - of_volume.keys()}, cluster.resource or claim)
    Built("storage", of_volume, claim)


def hold(config: StackConfig, stack: str) -> dict[str, Any]:
    """What this living stack was built with. Raises ConfigError with every forbidden change."""
    try:
        built = read()
    except Exception as error:
        refused = (
            f"the stack's state cannot be read ({error}), and so not whether this would replace its cluster or data; "
            f"`pulumi stack export --stack {stack}` reads it too; then the same command again, or set "
            "cluster.replace: true to go on and lose what is there"
        )
        if not config.cluster.replace:
            raise ConfigError(stack, [refused]) from None
        pulumi.warn(refused)
        built = {}
    if found := list(problems(config, built)):
        raise ConfigError(stack, found)
    for line in cautions(config, built):
        pulumi.warn(line)
    if config.cluster.replace and built:
        # Pulumi deletes the old objects last, at the old cluster's address (pulumi 3.200.0; `deleted_with` does not
        # count where the cluster was replaced before), and the plug-in fails where nobody answers there.
        pulumi.warn(
            "cluster.replace is true: set it back to false after this `pulumi up`, or the next replacing change will "
            "not be refused; if it ends with `configured Kubernetes cluster is unreachable`, the old cluster is gone, "
            "and PULUMI_K8S_DELETE_UNREACHABLE=true for one more `up` forgets its objects"
        )
    return built


def read() -> dict[str, Any]:
    """What this stack was built with, from its own state; empty for a stack that was never built."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    state: Any = pulumi.runtime.invoke(STATE, {"stackName": name}).value
    found: dict[str, Any] = {}
    for resource in (state or {}).get("outputs", {}).values():
        if resource["type"] == BUILT:
            found |= json.loads(resource["outputs"].get("values") or "{}")
        elif resource["type"] in FOLDERS:
            output, key = FOLDERS[resource["type"]]
            found[key] = resource["outputs"].get(output)  # of several trainings any: they are not compared
    return found


def problems(config: StackConfig, built: Mapping[str, Any]) -> Iterator[str]:
    """One line for each refused change from what was built."""
    moved = dict(_moved(config, built))
    # With another kind of cluster the other keys change as well: report the kind alone.
    for key in [KIND] if KIND in moved else sorted(moved):
        old, new = built[key], config.value(key)
        start = f"{key}: {_shown(new)} on a stack that lives with {_shown(old)}"
        back = "remove it" if old is None else f"set it back to {_shown(old)}"
        if reason := _impossible(moved[key], old, new, _stays(config, built)):
            yield f"{start}; {reason}; {back}, or change it after `pulumi destroy`"
        elif (lost := _lost(moved[key], built)).startswith("the cluster") and built.get(PROTECTED):
            yield f"{start} replaces {lost}, which {PROTECTED} protects; {back}, or first run `trainyard up` with false"
        elif lost and not config.cluster.replace:
            yield f"{start} replaces {lost}; {back}, or set cluster.replace: true to lose what is there"


def cautions(config: StackConfig, built: Mapping[str, Any]) -> Iterator[str]:
    """One line for each change from what was built that is made with an unexpected effect."""
    moved = dict(_moved(config, built))
    for key, said in ({} if KIND in moved else moved).items():
        old, new = built[key], config.value(key)
        for mark in said:
            if isinstance(mark, Careful) and mark.when(old, new):
                yield f"{key}: {_shown(new)} on a stack that lives with {_shown(old)}; {mark.because}"


def _moved(config: StackConfig, built: Mapping[str, Any]) -> Iterator[tuple[str, list[Mark]]]:
    """The keys that differ from what was built, with their marks."""
    for key, field in keys(config.cluster.kind).items():
        if key in built and built[key] != config.value(key):
            yield key, marks(field)


def _stays(config: StackConfig, built: Mapping[str, Any]) -> set[str]:
    """The kind of the volume that a stack keeps, alone and with its tier; empty where it gets another one."""
    volume, storage = built.get(VOLUME, ""), config.storage
    if storage.kind not in (None, volume) or getattr(storage, "disk", None):
        return set()
    return {volume, f"{volume} {built.get('storage.tier')}"}


def _impossible(said: list[Mark], old: Any, new: Any, there: set[str]) -> str:
    """Why a change cannot succeed; "": it can."""
    rows = (mark for mark in said if isinstance(mark, Impossible) and (not mark.on or there & {*mark.on}))
    return next((mark.because for mark in rows if mark.when(old, new)), "")


def _lost(said: list[Mark], built: Mapping[str, Any]) -> str:
    """The precious parts that a change of a key replaces, in words."""
    volume = built.get(VOLUME, "")
    gone = [part for mark in said if isinstance(mark, Replaces) for part in mark.there(built[KIND], volume)]
    kept = ("data",) if built.get("storage.retain") or volume == "given" else ()
    parts = [part for part in PRECIOUS if part in gone and part not in kept]
    return " and ".join("all that it has in the cluster" if part == "objects" else f"the {part}" for part in parts)


def recorded(kind: str) -> list[str]:
    """The keys whose values are recorded: some change of them may be refused or warned of, or they say what is lost."""
    return [key for key, field in keys(kind).items() if key in READ or any(map(_is_felt, marks(field)))]


def _is_felt(mark: Mark) -> bool:
    return not isinstance(mark, Replaces) or {mark.parts, *mark.on.values()} - {"", "workers"} != set()


def built_volume(config: StackConfig, cluster: Cluster) -> str:
    """The kind of the shared volume, with the default filled in; `given`: one that storage.disk names."""
    if getattr(config.storage, "disk", None):
        return "given"
    return config.storage.kind or ("storageClass" if cluster.storage.volume is None else "hostPath")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else typed(value)
