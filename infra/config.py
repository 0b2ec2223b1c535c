"""The configuration of a stack: read from the values of a stack file, with every problem reported at once.

A stack file holds structured values under `trainyard:`, one section a key (infra/sections.py). They are parsed here,
before any resource exists, filled in from the machine type where the stack makes its nodes, and held to every rule
(infra/rules.py); problems come as one line each: `path: what is wrong; what is allowed`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from infra.catalog import MACHINES
from infra.eks.machines import default_zones
from infra.eks.section import EksConfig
from infra.machine import for_pods
from infra.names import unfit
from infra.rules import rules_for
from infra.sections import (
    AnsweringConfig,
    CheckConfig,
    ClusterConfig,
    DatasetConfig,
    GkeConfig,
    ImageConfig,
    NodesConfig,
    RendezvousConfig,
    SecretsConfig,
    Section,
    StorageConfig,
    TensorBoardConfig,
    TrainingConfig,
    WorkersConfig,
)

#: Sections that a kind of cluster cannot do without.
REQUIRED = {"gke": ("gke", "nodes"), "eks": ("eks", "nodes")}


class StackConfig(Section):
    """All of a stack's configuration; the field names are the keys under `trainyard:`."""

    cluster: ClusterConfig
    """The cluster to run on."""
    gke: GkeConfig | None = None
    """Where on Google Cloud the stack makes its cluster, with kind gke."""
    eks: EksConfig | None = None
    """Where on AWS the stack makes its cluster, with kind eks."""
    nodes: NodesConfig | None = None
    """The nodes that train, where the stack makes them."""
    workers: WorkersConfig = WorkersConfig()
    """The pods that train."""
    storage: StorageConfig = StorageConfig()
    """The shared volume for data, checkpoints and caches."""
    image: ImageConfig = ImageConfig()
    """The trainer's container image."""
    rendezvous: RendezvousConfig = RendezvousConfig()
    """etcd, where the workers find each other."""
    dataset: DatasetConfig = DatasetConfig()
    """The text to train on."""
    training: TrainingConfig = TrainingConfig()
    """What is trained, and how."""
    answering: AnsweringConfig = AnsweringConfig()
    """The training of task question_answering: the defaults are BERT large on SQuAD 1.1."""
    check: CheckConfig = CheckConfig()
    """A measurement of the nodes before the training."""
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    """Curves in the browser."""
    secrets: SecretsConfig = SecretsConfig()
    """Tokens, encrypted in the stack file."""

    @property
    def name(self) -> str:
        """What a cluster that the stack makes is called."""
        assert self.cluster.name is not None, "parse() fills it in"
        return self.cluster.name


class ConfigError(ValueError):
    """Every problem of a stack's configuration, one line each."""

    def __init__(self, stack: str, problems: list[str]):
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"invalid configuration of stack {stack} ({count})", *problems]))


def parse(values: Mapping[str, Any], stack: str) -> StackConfig:
    """Parse the values under `trainyard:` of one stack.

    Sections are validated one by one, so that a mistake in one does not hide the mistakes in the others, and the rules
    run on every section that parsed.

    Raises:
        ConfigError: with all problems of the stack.
    """
    problems: list[str] = []
    sections: dict[str, Any] = {}
    for key in values.keys() - StackConfig.model_fields.keys():
        problems.append(_unknown(key, StackConfig))
    for key, field in StackConfig.model_fields.items():
        section = section_class(field.annotation)
        given = values.get(key) or {}
        if not given and field.default is None:
            sections[key] = None
            continue
        try:
            sections[key] = section.model_validate(given)
        except ValidationError as error:
            problems += [_describe(section, key, detail) for detail in error.errors()]
    problems += _missing_sections(sections)
    _fill_in(sections, stack)
    for rule in rules_for(sections):
        wanted = rule.__code__.co_varnames[: rule.__code__.co_argcount]
        if all(name in sections for name in wanted):
            problems += rule(*(sections[name] for name in wanted))
    if "cluster" in sections:
        problems += unfit(sections["cluster"], stack)
    if problems:
        # One line each, whatever text was given.
        raise ConfigError(stack, sorted(" ".join(problem.split()) for problem in problems))
    return StackConfig(**sections)


def section_class(annotation: Any) -> type[Section]:
    """The class of a section, which may be optional."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    raise TypeError(f"{annotation} is no section")


def _missing_sections(sections: Mapping[str, Any]) -> list[str]:
    kind = sections["cluster"].kind if "cluster" in sections else "existing"
    return [
        f"{key}: missing; a cluster of kind {kind} needs {_needed(key)}"
        for key in REQUIRED.get(kind, ())
        if key in sections and sections[key] is None
    ]


def _needed(key: str) -> str:
    fields = section_class(StackConfig.model_fields[key].annotation).model_fields
    return ", ".join(f"{key}.{field.alias}" for field in fields.values() if field.is_required())


def _fill_in(sections: dict[str, Any], stack: str) -> None:
    """What follows from other keys: names from the stack's, the pods' size from the machine type's."""
    cluster, nodes, workers = (sections.get(name) for name in ("cluster", "nodes", "workers"))
    if cluster is not None and cluster.name is None:
        sections["cluster"] = cluster.model_copy(update={"name": f"trainyard-{stack}"})
    _fill_in_answering(sections)
    eks = sections.get("eks")
    if eks is not None and not eks.zones:
        wanted = default_zones(eks.region, nodes.machine_type if nodes is not None else "")
        sections["eks"] = eks.model_copy(update={"zones": wanted})
    machine = MACHINES.get(nodes.machine_type) if nodes is not None else None
    if nodes is None or workers is None or machine is None:
        return
    cpu, memory = for_pods(machine, nodes.threads_per_core)
    whole_node: dict[str, Any] = {
        "cpu": cpu,
        "memory_gib": memory,
        "gpus": machine.accelerators,
        "processes": workers.gpus or machine.accelerators or 1,
        "allocator": "tcmalloc" if machine.capability == "amx_bf16" else "glibc",
    }
    given = workers.model_fields_set
    sections["workers"] = workers.model_copy(update={k: v for k, v in whole_node.items() if k not in given})


def _fill_in_answering(sections: dict[str, Any]) -> None:
    """One key, training.task, exchanges the whole training."""
    training, dataset, answering = (sections.get(name) for name in ("training", "dataset", "answering"))
    if training is None or dataset is None or answering is None or training.task != "question_answering":
        return
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
    sections["training"] = training.model_copy(update=shape)
    sections["dataset"] = dataset.model_copy(update={"name": "questions", "input": answering.data})


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
            return _unknown(str(detail["loc"][-1]), owner, path)
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


def _unknown(key: str, section: type[Section], path: str | None = None) -> str:
    keys = [field.alias or name for name, field in section.model_fields.items()]
    close = difflib.get_close_matches(key, keys, n=1)
    hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(keys)}"
    return f"{path or key}: unknown key; {hint}"


def _field(section: type[Section], alias: str) -> type[Section] | None:
    for name, field in section.model_fields.items():
        if (
            alias in (name, field.alias)
            and isinstance(field.annotation, type)
            and issubclass(field.annotation, Section)
        ):
            return field.annotation
    return None
