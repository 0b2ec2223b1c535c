"""The typed configuration of a stack, and every rule about it.

A stack file holds structured values under `trainyard:` (cluster, workers, storage, image, rendezvous, dataset,
training, tensorboard). They are parsed here, before any resource exists, and every problem is reported at once, one
line each: `path: what is wrong; what is allowed`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from infra.catalog import POSITIONS

#: RFC 1123 label; 40 characters leave room for the suffixes that Kubernetes adds to Job and Pod names (63 in all).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]


def _known_model(name: str) -> str:
    if name not in POSITIONS:
        raise ValueError(f"'{name}' is not known; allowed: {', '.join(POSITIONS)}")
    return name


class Section(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class ClusterConfig(Section):
    kind: Literal["existing"] = "existing"
    """Where the cluster comes from. `existing`: one that a kubeconfig reaches; nothing of it is created or
    destroyed."""
    context: str = Field(min_length=1)
    """Context in the kubeconfig. `trainyard-local` is the node that `make up` starts on this machine."""
    kubeconfig: str | None = None
    """Path of the kubeconfig. Default: $KUBECONFIG, else ~/.kube/config, as for kubectl."""
    namespace: Name = "trainyard"
    """Namespace that the stack creates and destroys, with everything in it."""


class WorkersConfig(Section):
    count: int = Field(default=2, ge=1, le=1000)
    """Pods of the training Job."""
    min: int = Field(default=1, ge=1)
    """The training goes on with this many pods when others are lost."""
    processes: int = Field(default=1, ge=1, le=64)
    """Training processes per pod: 1 per accelerator, or per NUMA node on CPUs."""
    cpu: float = Field(default=1.0, gt=0)
    """CPU cores requested per pod; each process gets cpu / processes threads, at least one."""
    memory_gib: float = Field(default=2.0, gt=0)
    """Memory per pod, requested and limit, GiB."""
    gpus: int = Field(default=0, ge=0, le=16)
    """Accelerators (nvidia.com/gpu) per pod."""


class StorageConfig(Section):
    kind: Literal["hostPath", "storageClass"] | None = None
    """`hostPath`: a directory of a single node. `storageClass`: a claim on the cluster's (default) class. Default: the
    directory of the local node, else the cluster's default class."""
    path: str | None = None
    """Directory on the node, for hostPath. Default: the one that the local node offers."""
    class_name: str | None = None
    """StorageClass, for storageClass. Default: the cluster's default class."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = None
    """Default: ReadWriteMany for a class that is named; ReadWriteOnce for the cluster's default class, which is nearly
    everywhere a disk or a directory of one node."""
    size_gib: int = Field(default=10, ge=1)
    """Size of the claim, GiB."""


class ImageConfig(Section):
    builder: Literal["buildah", "buildkit", "prebuilt"] | None = None
    """`buildkit` needs a Docker engine or a remote BuildKit; `buildah` needs none; `prebuilt` builds nothing. Default:
    what the local node offers, else buildkit."""
    registry: str | None = None
    """Registry that this machine pushes to and the cluster pulls from, for example localhost:5001 or ghcr.io/you.
    Default: the local node's."""
    base: str | None = None
    """Base image of the trainer's Dockerfile: Debian or Ubuntu with Python 3.11 or newer. Default: the Dockerfile's."""
    ref: str | None = None
    """With `prebuilt`: the image, by digest (name@sha256:...)."""


class RendezvousConfig(Section):
    image: str | None = None
    """etcd 3.4 or newer, by digest or tag. Default: the local node's, else the upstream image."""


class DatasetConfig(Section):
    name: Name = "opticks"
    """Folder under /data/datasets on the shared volume."""
    input: tuple[str, ...] = Field(default=("sample",), min_length=1)
    """Text files or folders on the shared volume, or `sample`: Newton's Opticks, which the image carries."""
    tokenizer: str = "gpt2"
    """`gpt2`, a folder, or a name on the Hugging Face hub."""
    validation_fraction: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of the text that is held out for the validation loss."""
    timeout_minutes: int = Field(default=60, ge=1)
    """How long `pulumi up` waits for the text to be tokenised."""


class OptimizerConfig(Section):
    learning_rate: float = Field(default=6e-4, gt=0, le=1)
    """Peak learning rate of AdamW."""
    warmup_steps: int = Field(default=100, ge=0)
    """Steps of linear warm-up from 0."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay after the warm-up, to a tenth of the peak at the last step."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of the matrices (not of biases and norms)."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""


class EvaluationConfig(Section):
    every: int = Field(default=250, ge=1)
    """Steps between two measurements of the validation loss."""
    batches: int = Field(default=20, ge=1)
    """Micro-batches in one measurement; always the same ones."""


class CheckpointConfig(Section):
    every_steps: int = Field(default=500, ge=1)
    """Steps between two checkpoints."""
    every_minutes: float = Field(default=10, gt=0)
    """Minutes after which a checkpoint is due whatever the step: what a lost machine can cost at most."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept; older ones are removed."""


class TrainingConfig(Section):
    name: Name | None = None
    """Folder under /data/runs. Default: the model and a hash of what changes the mathematics, so that the same training
    resumes and a different one starts afresh."""
    model: Annotated[str, AfterValidator(_known_model)] = "small"
    """Preset of GPT-2: tiny, micro, distil, small, medium, large or xl."""
    steps: int = Field(default=1000, ge=1)
    """Optimizer steps."""
    tokens_per_step: int = Field(default=524_288, ge=1)
    """Tokens in one step, over all workers: the same mathematics at any number of workers."""
    sequence_length: int = Field(default=1024, ge=2)
    """Tokens in one sample."""
    micro_batch: int = Field(default=8, ge=1)
    """Samples that one process computes at once."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the forward and backward pass."""
    seed: int = Field(default=1337, ge=0)
    """Of the weights and of the order of the data."""
    metrics_every: int = Field(default=10, ge=1)
    """Steps between two lines of metrics."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW and its schedule."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Validation loss."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""


class TensorBoardConfig(Section):
    enabled: bool = True
    """Run TensorBoard beside the training, reached by port-forward."""


class StackConfig(Section):
    """All of a stack's configuration; the field names are the keys under `trainyard:`."""

    cluster: ClusterConfig
    """The cluster to run on."""
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
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    """Curves in the browser."""


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
        section: type[Section] = field.annotation  # type: ignore[assignment]
        try:
            sections[key] = section.model_validate(values.get(key) or {})
        except ValidationError as error:
            problems += [_describe(section, key, detail) for detail in error.errors()]
    for rule in RULES:
        wanted = rule.__code__.co_varnames[: rule.__code__.co_argcount]
        if all(name in sections for name in wanted):
            problems += rule(*(sections[name] for name in wanted))
    if problems:
        raise ConfigError(stack, sorted(problems))
    return StackConfig(**sections)


# Rules: each takes the sections it names and yields one line a problem.


def _worker_range(workers: WorkersConfig) -> Iterator[str]:
    if workers.min > workers.count:
        yield f"workers.min: {workers.min} is more than workers.count; allowed: 1 to {workers.count}"
    if workers.gpus and workers.gpus != workers.processes:
        yield f"workers.processes: {workers.processes} for {workers.gpus} GPUs; allowed: {workers.gpus}, one per GPU"


def _storage_kind(storage: StorageConfig) -> Iterator[str]:
    if storage.path and storage.kind != "hostPath":
        yield "storage.path: only used with storage.kind hostPath; set storage.kind, or remove the path"
    if storage.path and not storage.path.startswith("/"):
        yield f"storage.path: '{storage.path}' is relative; give the absolute directory on the node"
    if storage.class_name and storage.kind != "storageClass":
        yield "storage.className: only used with storage.kind storageClass; set storage.kind, or remove the class"


def _image_source(image: ImageConfig) -> Iterator[str]:
    if image.builder == "prebuilt":
        if not image.ref:
            yield "image.ref: missing; builder prebuilt needs the image as name@sha256:<64 hex digits>"
        elif not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", image.ref):
            yield f"image.ref: '{image.ref}' is not by digest; allowed: name@sha256:<64 hex digits>"
    elif image.ref:
        yield "image.ref: only used with image.builder prebuilt; set the builder, or remove the ref"


def _batch_arithmetic(training: TrainingConfig) -> Iterator[str]:
    sample = training.sequence_length * training.micro_batch
    if training.tokens_per_step % sample:
        nearest = max(1, round(training.tokens_per_step / sample)) * sample
        yield (
            f"training.tokensPerStep: {training.tokens_per_step} is not a multiple of sequenceLength x microBatch = "
            f"{sample}; the nearest is {nearest}"
        )
    if training.optimizer.warmup_steps >= training.steps:
        yield (
            f"training.optimizer.warmupSteps: {training.optimizer.warmup_steps} leaves nothing of {training.steps} "
            f"steps; allowed: 0 to {training.steps - 1}"
        )


def _model_positions(training: TrainingConfig) -> Iterator[str]:
    positions = POSITIONS[training.model]
    if training.sequence_length > positions:
        yield (
            f"training.sequenceLength: {training.sequence_length} is more than the {positions} positions of model "
            f"{training.model}; allowed: 2 to {positions}"
        )


def _work_for_all(training: TrainingConfig, workers: WorkersConfig) -> Iterator[str]:
    micro_batches = training.tokens_per_step // (training.sequence_length * training.micro_batch)
    processes = workers.count * workers.processes
    if 0 < micro_batches < processes:
        yield (
            f"training.microBatch: a step has {micro_batches} micro-batches for {processes} processes, some would "
            f"idle; lower microBatch or raise tokensPerStep"
        )


RULES = (_worker_range, _storage_kind, _image_source, _batch_arithmetic, _model_positions, _work_for_all)


def _describe(section: type[Section], prefix: str, detail: ErrorDetails) -> str:
    """One line for one of pydantic's errors, in the words of a stack file."""
    path = ".".join([prefix, *(str(part) for part in detail["loc"])])
    given, context = detail.get("input"), detail.get("ctx", {})
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
            return f"{path}: '{given}' is not a name; allowed: lower-case letters, digits, '-' inside; at most 40"
        case "model_type" | "model_attributes_type":
            return f"{path}: {given!r} is not a section; give it as keys and values"
        case "value_error":
            return f"{path}: {context['error']}"
        case _:
            rule = detail["msg"].removeprefix("Input ").removeprefix("should be ")
            return f"{path}: {given!r} is not allowed; must be {rule[:1].lower()}{rule[1:]}"


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
