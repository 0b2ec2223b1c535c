"""Several trainings of one stack: `trainings` and `sweep` say in which keys each differs from the stack's own.

Cluster, volume, image, rendezvous and tokens are shared. infra/parse.py reads each training as a stack that has it
alone, so the same rules hold for it.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from infra.config import StackConfig
from infra.sections import DatasetConfig, WorkersConfig
from infra.stackfiles import object_name
from infra.training_rules import shape_of
from trainer.config.base import keys_of, nested
from trainer.config.memory import saved
from trainer.config.schema import Config
from trainer.config.values import shown, typed
from trainer.plain import counted

#: Keys of a stack file that this module reads.
KEYS = ("trainings", "sweep")
#: Each has a Job, a Service and a folder; more are no sweep but a mistake in one, and many small pods for one etcd.
MOST = 64
#: In an object's name after a prefix and before a hash and an index of a pod (Kubernetes: 63 characters in all).
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,38}[a-z0-9])?")
#: Sections in which a training may differ, besides its own keys.
SECTIONS = {"training": Config, "dataset": DatasetConfig, "workers": WorkersConfig}
#: Keys of which one says how long a training is.
_LENGTH = ("steps", "epochs")
#: What names say for a key, where the field has a shorter word.
_SHORT = {"learningRate": "lr", "tokensPerStep": "tokens", "model.preset": "model", "model.name": "model"}


@dataclass(frozen=True)
class Differing:
    """One of several trainings."""

    path: str
    """Of its keys in messages, such as trainings.small."""
    values: Mapping[str, Any]
    """The stack's values with its own in them."""


def several(values: Mapping[str, Any], problems: list[str]) -> dict[str, Differing]:
    """The trainings of a stack file by name, in its order; empty where it has one. Adds what is wrong to `problems`."""
    found: dict[str, Differing] = {}
    for name, path, differing in (*_listed(values, problems), *_swept(values, problems)):
        twin = next((other for other in found if object_name(other) == object_name(name)), None)
        if twin is not None:
            both = f"both are {name}" if twin == name else f"{twin} and {name} are one name to Kubernetes"
            problems.append(f"{path}: {both}; give one another name, under `trainings`")
            continue
        found[name] = Differing(path, {key: value for key, value in values.items() if key not in KEYS} | differing)
    if len(found) > MOST:
        problems.append(f"trainings: {len(found)} with those of sweep; allowed: at most {MOST}")
    job = values.get("job")
    if found and isinstance(job, Mapping) and job.get("name"):
        problems.append(
            f"job.name: {job['name']} for {counted(len(found), 'training')}; each has its own folder; remove it"
        )
    return found


def _map_of(values: Mapping[str, Any], key: str, form: str, problems: list[str]) -> Mapping[str, Any]:
    """What a stack file has under one of KEYS; nothing where it has none, or no map, which is a problem."""
    given = values.get(key)
    if given is None or (isinstance(given, Mapping) and given):
        return given or {}
    what = "is empty" if not given else f"{shown(given)} is no map of {'trainings' if key == 'trainings' else 'keys'}"
    problems.append(f"{key}: {what}; give {form}")
    return {}


def _listed(values: Mapping[str, Any], problems: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, path and differing sections of each entry of `trainings`."""
    form = "NAME: {KEY: VALUE}, such as small: {model: {preset: tiny}}"
    for name, keys in _map_of(values, "trainings", form, problems).items():
        path = f"trainings.{name}"
        if not _NAME.fullmatch(str(name)):
            allowed = "lower-case letters, digits, '-' and '.' inside; at most 40"
            problems.append(f"{path}: '{name}' is not a name; allowed: {allowed}")
        elif keys is not None and not isinstance(keys, Mapping):
            problems.append(f"{path}: {shown(keys)} is not a section; give it as keys and values")
        else:
            yield str(name), path, _differing(values, keys or {})


def _differing(values: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a stack with a training's own keys in them."""
    own: dict[str, Any] = {"training": {key: value for key, value in keys.items() if key not in SECTIONS}}
    own |= {key: keys[key] for key in ("dataset", "workers") if keys.get(key) is not None}
    if keys.get("training") is not None:  # an unknown key in its own section, which says so
        own["training"]["training"] = keys["training"]
    found: dict[str, Any] = {}
    for section, inner in own.items():
        below = values.get(section)
        if section == "training" and isinstance(below, Mapping) and set(inner) & set(_LENGTH):
            below = {key: value for key, value in below.items() if key not in _LENGTH}
        if isinstance(below, Mapping) and isinstance(inner, Mapping):
            found[section] = _joined(below, inner)
        elif inner or below is None:
            found[section] = inner
    return found


def _joined(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `below` with those of `above` in their place, whichever spelling a key has."""
    found = dict(below)
    for key, value in above.items():
        same = next((each for each in found if to_camel(str(each)) == to_camel(str(key))), key)
        under = found.pop(same, None)
        found[key] = _joined(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return found


def _swept(values: Mapping[str, Any], problems: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, path and differing sections of each combination of the values of `sweep`."""
    form = "KEY: [VALUE, ...], such as optimizer.learningRate: [0.0003, 0.001]"
    given = _map_of(values, "sweep", form, problems)
    if not given:
        return
    known = _sweepable()
    found: dict[str, list[Any]] = {}
    for key, choices in given.items():
        path = ".".join(map(to_camel, str(key).removeprefix("training.").split(".")))
        if path not in known:
            last = path.rpartition(".")[2]
            close = [each for each in known if last in (each.rpartition(".")[2], _word(each))][:3]
            close = close or difflib.get_close_matches(path, known, n=1)
            hint = f"did you mean {' or '.join(close)}?" if close else "give one of `training`, `dataset` or `workers`"
            problems.append(f"sweep.{key}: unknown key; {hint}")
        elif not isinstance(choices, (list, tuple)) or not choices:
            problems.append(f"sweep.{key}: {shown(choices)} is no list of values; give one, as [1, 2]")
        elif wrong := [each for each in choices if isinstance(each, (Mapping, list, tuple)) or each is None]:
            problems.append(f"sweep.{key}: {shown(wrong[0])} is no plain value; such trainings go under `trainings`")
        elif len({typed(each) for each in choices}) < len(choices):
            problems.append(f"sweep.{key}: a value stands twice in {shown(list(choices))}; give each once")
        else:
            found[path] = list(choices)
    if len(found) < len(given):
        return
    if (count := math.prod(map(len, found.values()))) > MOST:
        problems.append(f"sweep: {count} trainings; allowed: at most {MOST} combinations")
        return
    for point in itertools.product(*found.values()):
        name = "-".join(f"{_word(key)}-{_word_of(value)}" for key, value in zip(found, point, strict=True))[:40]
        keys = nested(dict(zip(found, point, strict=True)))
        yield name.strip("-."), f"sweep ({name.strip('-.')})", _differing(values, keys)


def _sweepable() -> list[str]:
    """Every key that a sweep may have, as a stack file spells it."""
    parts = (keys_of(section, to_camel, "" if key == "training" else f"{key}.") for key, section in SECTIONS.items())
    return [key for part in parts for key in part]


def _word(key: str) -> str:
    last = key.rpartition(".")[2]
    return _SHORT.get(key) or _SHORT.get(last) or re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", last)


def _word_of(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else typed(value)
    return re.sub(r"[^a-z0-9.]+", "-", text.rpartition("/")[2].lower()).strip("-.") or "none"


def is_swept(path: str) -> bool:
    return path.startswith("sweep ")


def under(path: str, line: str) -> str:
    """A problem of a stack that has one training alone, told of the training at `path`."""
    section, _, key = line.partition(": ")[0].partition(".")
    if is_swept(path) or section not in SECTIONS or (section == "training" and not key):
        return f"{path}: {line}"
    return f"{path}.{line.removeprefix('training.')}"


def shared_data(trainings: Mapping[str, StackConfig], made_of: Mapping[str, Any]) -> Iterator[str]:
    """Refuse two trainings that would write other data into one folder; `made_of`: name -> what determines its data."""
    first: dict[str, str] = {}
    for name, config in trainings.items():
        owner = first.setdefault(config.dataset.name, name)
        if made_of[owner] != made_of[name]:
            folder = config.dataset.name
            yield f"dataset.name: {folder} for {owner} and {name}, whose data differ; remove it: each gets its own"


#: Kinds of volumes that are as large as storage.sizeGib says.
_SIZED = ("nfs", "filestore", "storageClass")


def checkpoints(trainings: Mapping[str, StackConfig]) -> Iterator[str]:
    """Refuse trainings whose checkpoints together are more than their volume holds; those of unknown size count 0."""
    first = next(iter(trainings.values()))
    there, needed = first.storage.size_gib, 0.0
    for each in trainings.values():
        shape, kept = shape_of(each), each.training.checkpoint.keep + 1
        needed += saved(shape, each.training) / 2**30 * kept if shape else 0.0
    if first.storage.kind in _SIZED and needed > there:
        yield (
            f"storage.sizeGib: {there} for the checkpoints of {counted(len(trainings), 'training')}, which take "
            f"{needed:,.0f} (checkpoint.keep, and one that is being written); allowed: {math.ceil(needed)} or more"
        )


def at_once(config: StackConfig) -> int:
    """How many trainings have all of their workers at once; all of them where the nodes are not the stack's."""
    if config.nodes is None:
        return len(config.each_training)
    most, running = config.nodes.max, 0
    for each in config.each_training:
        if (pods := each.workers.count + each.workers.spares) <= most:
            most, running = most - pods, running + 1
    return running


def held(config: StackConfig) -> tuple[str, int]:
    """The training that would hold nodes and train nothing, and how many; "", 0: none would.

    Kubernetes places each pod by itself: what the trainings that run leave goes to the next, also when it is less than
    the `workers.min` without which that one waits.
    """
    left = config.nodes.max if config.nodes else 0
    for name, each in config.trainings.items():
        if (pods := each.workers.count + each.workers.spares) <= left:
            left -= pods
        elif left:
            return (name, left) if each.workers.min > left else ("", 0)
    return "", 0


#: Names in a line.
_SHOWN = 8


def plan(config: StackConfig) -> list[str]:
    """What a stack with several trainings does with its nodes and data, in words; nothing for one training."""
    if not config.trainings:
        return []
    count, running = len(config.trainings), at_once(config)
    some = ", ".join([*config.trainings][:_SHOWN]) + (", ..." if count > _SHOWN else "")
    found = [f"{counted(count, 'training')}: {some}"]
    if config.nodes is None:
        found.append("the first has priority; the others run as far as the cluster has room, and wait or give way else")
    elif running < count:
        nodes = f"nodes.max {config.nodes.max}"
        found.append(f"{nodes} lets {running} run at once, the first first; the others wait, or give way and resume")
        waiting, held_nodes = held(config)
        if waiting:
            minutes = config.job.hold_minutes
            limit = f", {minutes:g} minutes at a time (job.holdMinutes)" if minutes else ""
            found.append(
                f"{waiting} gets the {counted(held_nodes, 'node')} left, paid while it waits for workers.min "
                f"{config.trainings[waiting].workers.min} and trains nothing{limit}: raise nodes.max, or lower "
                "workers.min"
            )
    data = {each.dataset.name for each in config.trainings.values()}
    if len(data) > 1:
        most = max(each.dataset.timeout_minutes for each in config.trainings.values())
        found.append(f"{len(data)} data sets are prepared, each in at most {most} minutes (dataset.timeoutMinutes)")
    return found
