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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from infra.clouds import CLOUDS, cloud_of, keys, sections, tables
from infra.config import ConfigError, Mistaken, Rule, StackConfig, Unreadable, shared_sections
from infra.machine import for_pods
from infra.names import unusable_names
from infra.rules import RULES
from infra.sections import DATA, NodesConfig
from infra.stackfiles import ROOT, beside_config
from infra.trainings import KEYS, Differing, checkpoints, is_swept, several, shared_data, under
from trainer.config.base import Problems, merge, named, validated
from trainer.config.schema import Config as TrainingConfig
from trainer.config.schema import checked, with_deepspeed_file
from trainer.config.values import encrypted

#: Path -> error text for a value of the wrong form ("": for names).
FORMS = tables("keys.yaml", Path(__file__).parent)


def parse(values: Mapping[str, Any], stack: str) -> StackConfig:
    """Parse the values under `trainyard:` of one stack, and of each of its trainings.

    Raises:
        ConfigError: with all problems of the stack.
    """
    problems: list[str] = []
    given = several(values, problems)
    config, shared = _parsed({key: value for key, value in values.items() if key not in KEYS}, stack)
    if given:
        config, shared = _with_trainings(given, shared, stack)
    if problems := problems + shared:
        # The given text may contain newlines: each problem stays on one line.
        raise ConfigError(stack, sorted({" ".join(problem.split()) for problem in problems}))
    return config


def _with_trainings(given: Mapping[str, Differing], shared: list[str], stack: str) -> tuple[StackConfig, list[str]]:
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
    }
    stands_for_all = next(iter(trainings.values()))
    if not problems:
        problems += shared_data(trainings, {name: _data_of(each) for name, each in trainings.items()})
        problems += checkpoints(trainings)
        # Such as in the check of the nodes, which needs as many as any.
        stands_for_all = max(trainings.values(), key=lambda config: config.workers.count)
    return replace(stands_for_all, training_name="", trainings=trainings), problems


def _parsed(values: Mapping[str, Any], stack: str) -> tuple[StackConfig, list[str]]:
    """A stack with one training, and its problems.

    It validates section by section, so that a mistake in one does not hide those in the others, and runs the rules on
    every section that parsed.
    """
    cluster = cluster_kind(values)
    # Of an unknown kind of cluster, the sections that all kinds have alike.
    known = sections(cluster) if cluster else shared_sections()
    every_key = cache(keys)
    why = f"stands beside `config:` in Pulumi.{stack}.yaml, where nothing reads it; indent it with two spaces below"
    problems = [f"{key}: {why}" for key in beside_config(stack)]
    for key in sorted(values.keys() - known.keys() - CLOUDS.keys() - {"nodes"}):
        wrong = Problems(keys=every_key)
        if key.split(".")[0] in {*known, *CLOUDS, "nodes"}:
            fix = f"pulumi config rm '{key}', then pulumi config set --path '{key}' VALUE"
            wrong.add((key,), f"was set without --path; {fix}")
        else:
            wrong.tell_unknown((key,), [*known, *KEYS])
        problems += wrong.lines
    parsed: dict[str, Any] = {}
    for key, section in known.items():
        given = {} if values.get(key) is None or (key == "secrets" and encrypted(values[key])) else values[key]
        if given == {} and (key in CLOUDS or key == "nodes"):
            parsed[key] = None
            continue
        if not cluster and key in ("nodes", "storage"):
            parsed[key] = Mistaken()
            continue
        wrong = Problems(to_camel, key, forms=FORMS, keys=every_key)
        if section is TrainingConfig:
            found = checked(_with_deepspeed_file(named(TrainingConfig, given, wrong), wrong), wrong)
        else:
            found = validated(section, given, wrong)
        parsed[key] = Mistaken(found, wrong.keys) if wrong.lines else found
        problems += wrong.lines
    kind = _kind(parsed["cluster"])
    if kind not in ("", *CLOUDS):
        problems.append(f"cluster.kind: '{kind}' is not known; allowed: {', '.join(CLOUDS)}")
        kind, parsed["cluster"] = "", Mistaken()
    problems += _misplaced(values, parsed, kind)
    shared: dict[str, Any] = {"nodes": None} | {key: section for key, section in parsed.items() if key not in CLOUDS}
    config = _fill_in(StackConfig(cloud=parsed.get(kind), **shared), kind, stack)
    for rule in (*RULES, *(CLOUDS[kind].rules if kind else ()), lambda config: unusable_names(config.cluster, stack)):
        problems += _ask(rule, config)
    return config, problems


def _with_deepspeed_file(given: dict[str, Any], wrong: Problems) -> dict[str, Any]:
    """Merge the DeepSpeed file's settings into the training, and replace its path, unknown to pods, by its text."""
    path = given.get("engine", {}).get("deepspeed_config")
    if not path or not isinstance(path, str) or path.startswith(f"{DATA}/"):
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


def _kind(section: Any) -> str:
    """The kind that a section names; empty where that key is wrong."""
    with suppress(Unreadable):
        return section.kind
    return ""


def _ask(rule: Rule, config: StackConfig) -> Iterator[str]:
    """The problems that a rule finds until it reads an invalid section."""
    with suppress(Unreadable):
        yield from rule(config)


def _misplaced(values: Mapping[str, Any], parsed: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Sections of another kind of cluster, and missing ones of this kind."""
    for key in (*CLOUDS, "nodes") if kind else ():
        if key not in parsed and values.get(key):
            makers = key if key in CLOUDS else " or ".join(name for name, cloud in CLOUDS.items() if cloud.nodes)
            yield f"{key}: only used with clusters that the stack makes; set cluster.kind: {makers}, or remove {key}"
    for key in (kind, "nodes") if kind in parsed else ():
        if parsed[key] is None:
            fields = sections(kind)[key].model_fields.values()
            needed = ", ".join(f"{key}.{field.alias}" for field in fields if field.is_required())
            yield f"{key}: missing; a cluster of kind {kind} needs {needed}"


def _fill_in(config: StackConfig, kind: str, stack: str) -> StackConfig:
    """Fill in keys that follow from others, where the others are valid."""

    def name_cluster(config: StackConfig) -> StackConfig:
        if cloud_of(config).section is None:
            return config
        name = config.cluster.name or f"trainyard-{stack}"
        return replace(config, cluster=config.cluster.model_copy(update={"name": name}))

    def find_machine(config: StackConfig) -> StackConfig:
        machines = CLOUDS[kind].workers() if kind else {}
        return replace(config, node_machine=machines.get(config.section(NodesConfig).machine_type))

    complete = CLOUDS[kind].complete if kind else lambda config: config
    for step in (name_cluster, _exchange_text, _name_dataset, find_machine, complete, _fill_nodes):
        with suppress(Unreadable):
            config = step(config)
    return config


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
    made_of = [text.input, text.tokenizer or training.model.name or "gpt2", text.validation_fraction, form]
    return [*made_of, text.reading] if text.reading else made_of
