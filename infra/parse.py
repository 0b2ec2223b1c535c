"""Reads a stack's configuration from the values of a stack file, and reports every problem at once.

A stack file holds structured values under `trainyard:`, one section per key (infra/sections.py, and one of each cloud).
This module parses them before any resource exists, fills in defaults from the machine type where the stack makes its
nodes, and applies every rule. Each problem is one line: `path: what is wrong; what is allowed`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from infra.clouds import CLOUDS, cloud_of, keys, sections, tables
from infra.config import Absent, ConfigError, StackConfig, shared_sections
from infra.machine import for_pods
from infra.names import unusable_names
from infra.rules import RULES
from infra.sections import ClusterConfig
from infra.stackfiles import ROOT, unread
from infra.trainings import KEYS, Differing, checkpoints, is_swept, several, shared_data, under
from trainer.config.base import Problems, Section, merge, named, snake, validated
from trainer.config.schema import Config as TrainingConfig
from trainer.config.schema import with_deepspeed_file
from trainer.config.values import encrypted

#: Path -> error text for a value of the wrong form ("": for names).
FORMS = tables("keys.yaml", Path(__file__).parent)


def parse(values: Mapping[str, Any], stack: str) -> StackConfig:
    """Parse the values under `trainyard:` of one stack, and of each of its trainings.

    Raises:
        ConfigError: with all problems of the stack; those of the file's structure come first, since others may follow
            from them.
    """
    structure = sorted(unread(stack, (*shared_sections(), *CLOUDS)))
    problems: list[str] = []
    given = several(values, problems)
    config, shared = _parsed({key: value for key, value in values.items() if key not in KEYS}, stack)
    if given:
        config, shared = _with_trainings(given, shared, stack)
    found = [*structure, *sorted({*problems, *shared})]
    if config is None or found:
        # The given text may contain newlines: each problem stays on one line.
        raise ConfigError(stack, list(dict.fromkeys(" ".join(problem.split()) for problem in found)))
    return config


def _with_trainings(
    given: Mapping[str, Differing], shared: list[str], stack: str
) -> tuple[StackConfig | None, list[str]]:
    """A stack with several trainings, and its problems; `shared` are those of the stack without them."""
    read = {name: _parsed(each.values, stack) for name, each in given.items()}
    # A problem of the stack's own keys is told once. One that every training mends is none.
    problems = [line for line in shared if all(line in lines for _, lines in read.values())]
    told: set[str] = set()
    for name, (_, lines) in read.items():
        path = given[name].path
        # A value of a sweep stands in many of its trainings.
        problems += [under(path, line) for line in lines if line not in (*problems, *(told if is_swept(path) else ()))]
        told |= set(lines)
    trainings = {
        name: replace(config, training_name=name, less_urgent=len(read) - at)
        for at, (name, (config, _)) in enumerate(read.items(), 1)
        if config
    }
    if problems:
        return None, problems
    problems += shared_data(trainings, {name: _data_of(each) for name, each in trainings.items()})
    problems += checkpoints(trainings)
    # Such as in the check of the nodes, which needs as many as any.
    stands_for_all = max(trainings.values(), key=lambda config: config.workers.count)
    return replace(stands_for_all, training_name="", trainings=trainings), problems


def _parsed(values: Mapping[str, Any], stack: str) -> tuple[StackConfig | None, list[str]]:
    """A stack with one training, and its problems.

    It validates section by section, so that a mistake in one does not hide those in the others. The rules between keys
    run once all sections are valid: what they would say of a section with a mistake often follows from that.
    """
    every_key = cache(keys)
    top = Problems(keys=every_key)
    for key in sorted(values.keys() - shared_sections().keys() - CLOUDS.keys()):
        if key.split(".")[0] in {*shared_sections(), *CLOUDS}:
            fix = f"pulumi config rm '{key}', then pulumi config set --path '{key}' VALUE"
            top.add((key,), f"was set without --path; {fix}")
            top.keys.add(snake(key))
        else:
            top.tell_unknown((key,), [*(sections(cluster_kind(values) or "existing")), *KEYS])
    problems = top.lines

    def read(key: str, section: type[Section]) -> tuple[Any, Problems]:
        given = {} if values.get(key) is None or (key == "secrets" and encrypted(values[key])) else values[key]
        wrong = Problems(to_camel, key, forms=FORMS, keys=every_key)
        # A key that stands elsewhere, which is told, is not missing too.
        wrong.keys.update(path.removeprefix(f"{key}.") for path in top.keys if path.startswith(f"{key}."))
        if section is TrainingConfig:
            given = _with_deepspeed_file(named(TrainingConfig, given, wrong), wrong)
        found = validated(section, given, wrong)
        problems.extend(wrong.lines)
        return found, wrong

    cluster, wrong = read("cluster", ClusterConfig)
    kind = "" if {"", "kind"} & wrong.keys or "cluster" in top.keys else cluster.kind
    if kind not in ("", *CLOUDS):
        problems.append(f"cluster.kind: '{kind}' is not known; allowed: {', '.join(CLOUDS)}")
        kind = ""
    known = sections(kind) if kind else {}
    parsed: dict[str, Any] = {"cluster": cluster, "nodes": None}
    for key, section in (known or shared_sections()).items():
        made = key in (*CLOUDS, "nodes")
        if made and not values.get(key):
            if known and key not in top.keys and not any(path.startswith(f"{key}.") for path in top.keys):
                needed = ", ".join(
                    f"{key}.{field.alias}" for field in section.model_fields.values() if field.is_required()
                )
                problems.append(f"{key}: missing; a cluster of kind {kind} needs {needed}")
        elif key != "cluster" and (known or key not in ("nodes", "storage")):
            parsed[key], _ = read(key, section)
    for key in (*CLOUDS, "nodes"):
        if known and key not in known and values.get(key):
            makers = key if key in CLOUDS else " or ".join(name for name, cloud in CLOUDS.items() if cloud.nodes)
            problems.append(
                f"{key}: only used with clusters that the stack makes; set cluster.kind: {makers}, or remove {key}"
            )
    if problems:
        return None, problems
    shared = {key: section for key, section in parsed.items() if key not in CLOUDS}
    config = _fill_in(StackConfig(cloud=parsed.get(kind), **shared), stack)
    for rule in (*RULES, *CLOUDS[kind].rules, lambda config: unusable_names(config.cluster, stack)):
        with suppress(Absent):
            problems += rule(config)
    return config, problems


def _with_deepspeed_file(given: dict[str, Any], wrong: Problems) -> dict[str, Any]:
    """Merge the DeepSpeed file's settings into the training, and replace its path, unknown to pods, by its text."""
    path = given.get("engine", {}).get("deepspeed_config")
    if not path or not isinstance(path, str):
        return given
    here = os.path.relpath(ROOT / os.path.expanduser(path))
    complete = with_deepspeed_file(merge(given, {"engine": {"deepspeed_config": here}}), wrong)
    text = "" if wrong.lines else json.dumps(json.loads(Path(here).read_text("utf-8")))
    return merge(complete, {"engine": {"deepspeed_config": text}})


def cluster_kind(values: Mapping[str, Any]) -> str:
    """The kind of cluster that a stack file names; empty: none that is known."""
    cluster = values.get("cluster")
    given = cluster.get("kind", "existing") if isinstance(cluster, Mapping) else "existing"
    return given if isinstance(given, str) and given in CLOUDS else ""


def _fill_in(config: StackConfig, stack: str) -> StackConfig:
    """Fill in keys that follow from others."""
    cloud = cloud_of(config)
    if cloud.section:
        name = config.cluster.name or f"trainyard-{stack}"
        config = replace(config, cluster=config.cluster.model_copy(update={"name": name}))
    config = _name_dataset(_exchange_text(config))
    if config.nodes:
        config = replace(config, node_machine=cloud.workers().get(config.nodes.machine_type))
    config = cloud.complete(config)
    return _fill_nodes(config) if config.node_machine else config


def _fill_nodes(config: StackConfig) -> StackConfig:
    """Size each pod to a whole node of the machine type, unless the stack file says otherwise."""
    machine, workers = config.machine, config.workers
    cpu, memory = for_pods(machine, config.threads_per_core)
    whole_node: dict[str, Any] = {
        "cpu": cpu,
        "memory_gib": memory,
        "gpus": machine.accelerators,
        "processes": workers.gpus or machine.accelerators or 1,
        "allocator": "tcmalloc" if machine.capability == "amx_bf16" else "glibc",
    }
    given = workers.model_fields_set
    update = {key: value for key, value in whole_node.items() if key not in given}
    return replace(config, workers=workers.model_copy(update=update))


def _exchange_text(config: StackConfig) -> StackConfig:
    """Replace `dataset.input` by the questions where training.task asks for them."""
    if config.training.task != "question_answering":
        return config
    asked = config.training.question_answering
    sources = tuple(dict.fromkeys((asked.train, asked.validation)))
    return replace(config, dataset=config.dataset.model_copy(update={"input": sources}))


def _name_dataset(config: StackConfig) -> StackConfig:
    """Name the dataset's folder by what determines the data: two share one only if given the same name."""
    text = config.dataset
    if text.name:
        return config
    first = re.sub("[^a-z0-9]+", "-", Path(text.input[0]).name.partition(".")[0].lower()).strip("-")[:30]
    digest = hashlib.sha256(json.dumps(_data_of(config)).encode()).hexdigest()[:8]
    return replace(config, dataset=text.model_copy(update={"name": f"{first or 'text'}-{digest}"}))


def _data_of(config: StackConfig) -> list[Any]:
    """All that determines the data of a training."""
    text, training = config.dataset, config.training
    form = "text" if training.task in ("language_model", "distillation") else training.task
    reading = [text.text_field, text.documents]
    return [text.input, text.tokenizer or training.model.name or "gpt2", text.validation_fraction, form, reading]
