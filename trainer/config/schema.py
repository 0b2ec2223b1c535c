"""Every setting of a training run and its default; rules.py has the rules about them.

Read from an optional YAML file, then from overrides (`steps=200`), so that one file serves several runs.
All problems are reported together: a person mends them in one go, and no accelerator is rented to find the second.
"""

import dataclasses
import os
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from trainer.config import deepspeed_json, rules
from trainer.config.values import Size, Switch, from_yaml, parse
from trainer.errors import UserError

RENAMED = {
    "task.name": "task",
    "train.steps": "steps",
    "train.tokens_per_step": "tokens_per_step",
    "train.sequence_length": "sequence_length",
    "train.micro_batch": "micro_batch",
    "train.precision": "precision",
    "train.compile": "compile",
    "train.require_capability": "require_capability",
}
"""Former names of keys."""


@dataclass(frozen=True)
class Model:
    preset: str = "small"
    """A GPT-2 size by name: see presets.py. weights: whatever size model.weights has."""
    weights: str = ""
    """Where training begins: a Hugging Face folder or name, one of our run or checkpoint folders; preset is then only
    checked. Empty: from scratch."""


@dataclass(frozen=True)
class Data:
    directory: str = ""
    """Where `python -m trainer.prepare` wrote its shards and index.json. Required, but for question answering."""
    verify: str = "auto"
    """auto | always | never: read every shard at the start and compare its checksum. auto: up to 1 GB."""


@dataclass(frozen=True)
class Run:
    directory: str = ""
    """Where checkpoints, metrics and DONE go: on storage that every worker mounts. Required."""
    seed: int = 1337
    """Initial weights and the order of the data follow from it."""
    collective_timeout_seconds: int = 120
    """How long a worker waits for its peers in one exchange before it calls them lost."""


@dataclass(frozen=True)
class Optimizer:
    learning_rate: float = 6e-4
    """Peak value. 6e-4 is GPT-3's for 124M parameters (arXiv 2005.14165, table 2.1)."""
    name: str = "adamw"
    """adamw | muon: torch.optim.Muon for the hidden matrices, AdamW for the rest."""
    warmup_steps: int = 100
    """Updates over which the rate rises from 0 to its peak: linearly, but for warmup_decay_log."""
    schedule: str = "cosine"
    """What follows the warm-up. cosine | linear | constant | wsd (constant, then a linear decay) | warmup_decay_log |
    warmup_decay_linear (DeepSpeed's WarmupDecayLR with each of its warm-ups; both end at 0)."""
    schedule_steps: int = 0
    """Updates until the decay ends. 0: steps."""
    final_fraction: float = 0.1
    """What cosine, linear and wsd end at, as a part of learning_rate."""
    decay_fraction: float = 0.2
    """The part of the steps after the warm-up in which wsd decays."""
    weight_decay: float = 0.1
    """AdamW's, on matrices only; biases and norms have none."""
    beta1: float = 0.9
    """AdamW's decay of the gradient's mean."""
    beta2: float = 0.95
    """AdamW's decay of the gradient's square."""
    epsilon: float = 1e-8
    """AdamW's, added to the root of the gradient's square."""
    clip: float = 1.0
    """Greatest norm of the whole gradient. 0 switches clipping off."""
    skipped_steps_limit: int = 20
    """After this many steps in a row without a finite gradient the training ends, with the last good checkpoint kept.
    fp16 begins with a few: its loss scale starts high and halves at each."""


@dataclass(frozen=True)
class Engine:
    name: str = "ddp"
    """ddp | deepspeed: who keeps the optimizer's state. ddp: every worker all of it; deepspeed: each worker a part."""
    zero_stage: int = 1
    """1 | 2: what DeepSpeed divides among the workers: the optimizer's state, or the gradients, too."""
    deepspeed_config: str = ""
    """A DeepSpeed JSON file. Its optimizer, scheduler and precision become ours; deepspeed_json.py lists what it may
    hold. Empty: none."""


@dataclass(frozen=True)
class Communication:
    sync: str = "step"
    """step | diloco: workers exchange gradients at each step, or weights every inner_steps (see diloco.py)."""
    compression: str = "auto"
    """auto | none | bf16 | fp16: the type in which gradients (diloco: differences of weights) travel; half of fp32's
    bytes. auto: bf16 between accelerators that do not compute in fp32, each step; else none."""
    bucket_megabytes: int = 25
    """Gradients are exchanged in portions of this size, while the backward pass goes on."""
    inner_steps: int = 50
    """diloco: steps that each worker makes alone between two exchanges."""
    outer_learning_rate: float = 0.7
    """diloco: the rate of the outer step (Nesterov SGD); 0.7 is that of arXiv 2311.08105."""
    outer_momentum: float = 0.9
    """diloco: the momentum of the outer step."""


@dataclass(frozen=True)
class Evaluation:
    every: int = 250
    """Steps between two evaluations. 0: only before the first step and after the last."""
    batches: int = 32
    """Validation micro-batches in each evaluation: the same ones each time."""
    prompt: str = "The"
    """What the text sample in DONE begins with."""
    sample_tokens: int = 120
    """Length of that sample. 0: none."""


@dataclass(frozen=True)
class Checkpoint:
    every_steps: int = 500
    """Steps between two checkpoints. 0: not by steps."""
    every_minutes: float = 10.0
    """Minutes between two checkpoints. 0: not by time."""
    keep: int = 3
    """How many of the newest checkpoints stay."""
    keep_every: int = 0
    """A checkpoint at each multiple of this many steps is made and never deleted. 0: none."""
    asynchronous: bool = True
    """Write from a thread: training waits only for the copy to host memory, as large as weights and optimizer state."""


@dataclass(frozen=True)
class Metrics:
    every: int = 10
    """Steps between two log lines; the only steps at which the host waits for the device."""
    profile: str = ""
    """FIRST:LAST, such as 20:22: torch.profiler writes a trace of these steps of the first worker to profile/ in the
    run directory; see docs/model.md. Empty: none."""
    attention_statistics: bool = True
    """At every tenth log step, the greatest and least attention logit of each layer for one window: a sign of trouble
    before the loss shows it. Costs one forward pass of a window."""
    tensorboard: bool = True
    """Write TensorBoard event files too."""
    wandb_project: str = ""
    """Log to this Weights & Biases project too; WANDB_API_KEY and WANDB_MODE=offline work as usual. Empty: not."""
    prometheus_port: int = 0
    """Port of a Prometheus endpoint (/metrics) on the first worker. 0: none."""


@dataclass(frozen=True)
class Distillation:
    teacher: str = ""
    """The model to learn from: a Hugging Face folder or name, one of our runs or checkpoints. Same tokens as the
    data's. Required by task=distillation."""
    temperature: float = 2.0
    """How much both distributions are softened before they are compared. 1: not at all."""
    alpha: float = 0.5
    """The teacher's part in the loss; the text's is 1 - alpha."""
    student_from_teacher: bool = False
    """Begin with layers of the teacher (of 12 the 0, 2, 4, 7, 9 and 11, as DistilGPT-2) instead of fresh weights."""


@dataclass(frozen=True)
class QuestionAnswering:
    train: str = ""
    """Questions to learn from: a SQuAD JSON file (v1.1 or v2) here or at any URL, or hf:squad."""
    validation: str = ""
    """Questions to be judged by, likewise; hf:squad means its validation split."""
    validation_examples: int = 0
    """How many of these are asked, evenly spread. 0: all."""
    document_stride: int = 128
    """Tokens by which the windows of a long text overlap."""
    question_tokens: int = 64
    """Longer questions are cut to this."""
    answer_tokens: int = 30
    """The longest answer that is given."""
    null_threshold: float = 0.0
    """v2: how much better than the best answer "no answer" must score to be given."""


@dataclass(frozen=True)
class Config:
    task: str = "language_model"
    """language_model | distillation | question_answering: what is learned, see work.py."""
    steps: int = 1000
    """Optimizer steps from the beginning of the run, however often it is interrupted."""
    tokens_per_step: int = 524_288
    """Tokens in one optimizer step, whatever the number of workers: it fixes the mathematics."""
    sequence_length: int = 1024
    """Tokens in one training window."""
    micro_batch: Size = 0
    """Windows in one forward pass on one worker. 0 or auto: as many as fit the accelerator's memory, up to 32,768
    tokens (memory.py); 8 on a CPU and in other tasks than language_model."""
    precision: str = "auto"
    """auto | fp32 | bf16 | fp16. auto asks the hardware (optimizer state and weights stay fp32)."""
    compile: Switch = "auto"
    """auto | true | false: torch.compile the model. auto: on accelerators. It costs half a minute before the first step
    of a run; later workers find the compiled code in the run directory."""
    require_capability: str = ""
    """Processor flag that every node must have, such as amx_bf16: see processor.py. Empty: any processor will do."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    run: Run = field(default_factory=Run)
    optimizer: Optimizer = field(default_factory=Optimizer)
    engine: Engine = field(default_factory=Engine)
    communication: Communication = field(default_factory=Communication)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    metrics: Metrics = field(default_factory=Metrics)
    distillation: Distillation = field(default_factory=Distillation)
    question_answering: QuestionAnswering = field(default_factory=QuestionAnswering)


def keys() -> dict[str, tuple[Any, Any]]:
    """Every dotted key with its type and default."""
    result: dict[str, tuple[Any, Any]] = {}
    for section in fields(Config):
        cls = get_type_hints(Config, include_extras=True)[section.name]
        if not is_dataclass(cls):
            result[section.name] = (cls, section.default)
            continue
        for item in fields(cls):
            kind = get_type_hints(cls, include_extras=True)[item.name]
            result[f"{section.name}.{item.name}"] = (kind, item.default)
    return result


def load(arguments: list[str]) -> Config:
    """The configuration from the arguments of `python -m trainer.train`.

    Raises UserError naming every problem, one a line.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--config" or argument.startswith("--config="):
            path = argument.partition("=")[2] or (rest.pop(0) if rest else "")
            values.update(from_yaml(path, problems))
        elif "=" in argument and not argument.startswith("-"):
            key, _, text = argument.partition("=")
            values[key] = text
        else:
            problems.append(f"{argument}: not an argument; write --config FILE.yaml or key=value")
    parsed = parse(values, keys(), RENAMED, problems)
    if parsed.get("engine.deepspeed_config"):
        from_json = deepspeed_json.read(parsed["engine.deepspeed_config"], problems).settings
        for key, value in parse(from_json, keys(), RENAMED, problems).items():
            if key in parsed and parsed[key] != value:
                problems.append(
                    f"{key}: {parsed[key]} was given, but {parsed['engine.deepspeed_config']} says {value}; make them "
                    "equal or give only one"
                )
            parsed[key] = value
    sections: dict[str, Any] = {
        section.name: section.type(
            **{k.split(".")[1]: v for k, v in parsed.items() if k.startswith(f"{section.name}.")}
        )
        for section in _sections()
    }
    config = Config(**sections, **{key: value for key, value in parsed.items() if "." not in key})
    problems += rules.broken(config, failed=set(values) - set(parsed))
    if problems:
        raise UserError("\n".join(problems))
    return config


def resolved(config: Config) -> str:
    """The whole configuration as YAML, as stored in each checkpoint."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)


@dataclass(frozen=True)
class _Section:
    name: str
    type: type


def _sections() -> list[_Section]:
    hints = get_type_hints(Config)
    return [_Section(item.name, hints[item.name]) for item in fields(Config) if is_dataclass(hints[item.name])]


def stored(text: str) -> dict[str, Any]:
    """What `resolved` wrote, by dotted key; in runs that began before a key got its present name, under that."""
    flat: dict[str, Any] = {}
    for section, content in yaml.safe_load(text).items():
        for key, value in content.items() if isinstance(content, dict) else [("", content)]:
            dotted = f"{section}.{key}" if key else section
            flat[RENAMED.get(dotted, dotted)] = value
    return flat


def run_directory(config: Config) -> Path:
    """The run directory, made if missing. Raises UserError when it cannot be written."""
    path = Path(config.run.directory)
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run.directory: {path} cannot be made ({error.strerror}); give a writable folder") from None
    if not os.access(path, os.W_OK):
        raise UserError(f"run.directory: {path} cannot be written by user {os.getuid()}; give a writable folder")
    return path
