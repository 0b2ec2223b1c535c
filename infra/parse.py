"""Reads a stack's configuration from the values of a stack file, and reports every problem at once.

A stack file holds structured values under `trainyard:`, one section a key (infra/sections.py, and one of each cloud).
They are parsed here, before any resource exists, filled in from the machine type where the stack makes its nodes, and
held to every rule; problems come as one line each: `path: what is wrong; what is allowed`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from infra.clouds import CLOUDS, sections, storage_kinds
from infra.config import ConfigError, Mistaken, Rule, StackConfig, Unreadable
from infra.machine import for_pods
from infra.names import unfit
from infra.rules import RULES
from infra.sections import ClusterConfig, NodesConfig, Section


def parse(values: Mapping[str, Any], stack: str) -> StackConfig:
    """Parse the values under `trainyard:` of one stack.

    Sections are validated one by one, so that a mistake in one does not hide the mistakes in the others, and the rules
    run on every section that parsed.

    Raises:
        ConfigError: with all problems of the stack.
    """
    known = sections()
    problems = [_unknown(key, list(known), key) for key in values.keys() - known.keys()]
    parsed: dict[str, Any] = {}
    for key, section in known.items():
        given = values.get(key) or {}
        if not given and (key in CLOUDS or key == "nodes"):
            parsed[key] = None
            continue
        try:
            parsed[key] = section.model_validate(given)
        except ValidationError as error:
            parsed[key] = Mistaken()
            problems += [_describe(section, key, detail) for detail in error.errors()]
    for key, allowed in (("cluster", list(CLOUDS)), ("storage", storage_kinds())):
        if isinstance(parsed[key], Section) and parsed[key].kind not in (None, *allowed):
            given = parsed[key].kind
            problems.append(f"{key}.kind: '{given}' is not known; allowed: {', '.join(map(repr, allowed))}")
            parsed[key] = Mistaken()
    kind = parsed["cluster"].kind if isinstance(parsed["cluster"], ClusterConfig) else ""
    problems += _misplaced(parsed, kind)
    shared = {key: section for key, section in parsed.items() if key not in CLOUDS}
    config = _fill_in(StackConfig(cloud=parsed.get(kind), **shared), kind, stack)
    for rule in (*RULES, *(CLOUDS[kind].rules if kind else ()), lambda config: unfit(config.cluster, stack)):
        problems += _ask(rule, config)
    if problems:
        # One line each, whatever text was given.
        raise ConfigError(stack, sorted(" ".join(problem.split()) for problem in problems))
    return config


def _ask(rule: Rule, config: StackConfig) -> Iterator[str]:
    """What a rule finds, up to where it looks into a section with mistakes of its own."""
    try:
        yield from rule(config)
    except Unreadable:
        return


def _misplaced(parsed: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Sections of another kind of cluster, and missing ones of this kind."""
    for key in CLOUDS if kind else ():
        if key != kind and parsed.get(key) is not None:
            yield f"{key}: only used with clusters that the stack makes; set cluster.kind: {key}, or remove {key}"
    for key in (kind, "nodes") if kind in parsed else ():
        if parsed[key] is None:
            fields = sections()[key].model_fields.values()
            needed = ", ".join(f"{key}.{field.alias}" for field in fields if field.is_required())
            yield f"{key}: missing; a cluster of kind {kind} needs {needed}"


def _fill_in(config: StackConfig, kind: str, stack: str) -> StackConfig:
    """What follows from other keys, as far as those can be read."""

    def name_cluster(config: StackConfig) -> StackConfig:
        name = config.cluster.name or f"trainyard-{stack}"
        return replace(config, cluster=config.cluster.model_copy(update={"name": name}))

    def find_machine(config: StackConfig) -> StackConfig:
        machines = CLOUDS[kind].workers() if kind else {}
        return replace(config, node_machine=machines.get(config.section(NodesConfig).machine_type))

    complete = CLOUDS[kind].complete if kind else lambda config: config
    for step in (name_cluster, _exchange_training, find_machine, complete, _fill_nodes):
        try:
            config = step(config)
        except Unreadable:
            continue
    return config


def _fill_nodes(config: StackConfig) -> StackConfig:
    """A pod for each node, as large as the machine type allows."""
    machine, workers = config.machine, config.workers
    cpu, memory = for_pods(machine, config.section(NodesConfig).threads_per_core)
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


def _exchange_training(config: StackConfig) -> StackConfig:
    """One key, training.task, exchanges the whole training."""
    training, answering = config.training, config.answering
    if training.task != "question_answering":
        return config
    rate = {"learning_rate": answering.learning_rate, "warmup_steps": 0, "schedule": "linear", "weight_decay": 0.0}
    shape = {
        "weights": answering.weights,
        "steps": answering.steps,
        "tokens_per_step": answering.tokens_per_step,
        "sequence_length": answering.sequence_length,
        "micro_batch": answering.micro_batch,
        "optimizer": training.optimizer.model_copy(update=rate),
        "evaluation": training.evaluation.model_copy(update={"every": answering.evaluate_every}),
    }
    dataset = config.dataset.model_copy(update={"name": "questions", "input": answering.data})
    return replace(config, training=training.model_copy(update=shape), dataset=dataset)


def _describe(section: type[Section], prefix: str, detail: ErrorDetails) -> str:
    """One line for one of pydantic's errors, in the words of a stack file."""
    path = ".".join([prefix, *(str(part) for part in detail["loc"])])
    given, context = detail.get("input"), detail.get("ctx", {})
    if prefix == "secrets":
        given = "(secret)"
    match detail["type"]:
        case "extra_forbidden":
            owner = section
            for part in detail["loc"][:-1]:
                owner = _field(owner, str(part)) or owner
            keys = [field.alias or name for name, field in owner.model_fields.items()]
            return _unknown(str(detail["loc"][-1]), keys, path)
        case "missing":
            return f"{path}: missing; set it with `pulumi config set --path {path} VALUE`"
        case "literal_error":
            return f"{path}: '{given}' is not known; allowed: {context['expected'].replace(' or ', ', ')}"
        case "string_pattern_mismatch":
            key = ".".join(part for part in path.split(".") if not part.isdigit())
            return f"{path}: '{given}' {PATTERNS.get(key, PATTERNS[''])}"
        case "model_type" | "model_attributes_type":
            return f"{path}: {given!r} is not a section; give it as keys and values"
        case "value_error":
            return f"{path}: {context['error']}"
        case _:
            rule = detail["msg"].removeprefix("Input ").removeprefix("should be ")
            return f"{path}: {given!r} is not allowed; must be {rule[:1].lower()}{rule[1:]}"


#: What to say about text of the wrong form: by path, and for names.
PATTERNS = {
    "": "is not a name; allowed: lower-case letters, digits, '-' inside; at most 40",
    "gke.project": "is not a project id; `gcloud projects list` shows yours (the id, not the name or the number)",
    "gke.zone": "is not a zone; give one such as us-central1-a, with the letter",
    "eks.region": "is not a region; give one such as us-east-2",
    "eks.zones": "is no zone's id; give one such as use2-az1 (`aws ec2 describe-availability-zones` lists ZoneId)",
    "eks.nodeRelease": "is no release of EKS's images; give latest, or one such as 1.36.0-20261101",
    "eks.admins": "is not an IAM role or user; give its ARN, such as arn:aws:iam::123456789012:role/ops",
    "eks.viewers": "is not an IAM role or user; give its ARN, such as arn:aws:iam::123456789012:role/trainyard-preview",
    "gke.noUpgradesSince": "is not a time in UTC; give one such as 2026-11-01T00:00:00Z",
}


def _unknown(key: str, keys: list[str], path: str) -> str:
    close = difflib.get_close_matches(key, keys, n=1)
    hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(keys)}"
    return f"{path}: unknown key; {hint}"


def _field(section: type[Section], alias: str) -> type[Section] | None:
    for name, field in section.model_fields.items():
        if (
            alias in (name, field.alias)
            and isinstance(field.annotation, type)
            and issubclass(field.annotation, Section)
        ):
            return field.annotation
    return None
