"""The sections of a training's settings, and the types of their values; schema.py puts them together."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from trainer.config.presets import PRESETS
from trainer.config.section import Section


def _number(given: Any) -> Any:
    """YAML reads 1e-3 as text, and the command line gives text only: 1e5 is a whole number all the same."""
    if isinstance(given, bool):
        raise ValueError(f"{given} is not a number")
    if isinstance(given, str) and "e" in given.lower():
        try:
            return int(number) if (number := float(given)).is_integer() else number
        except ValueError:
            return given
    return given


def _size(given: Any) -> Any:
    if str(given).lower() == "auto":
        return 0
    if not str(given).removeprefix("-").isdecimal():
        raise ValueError(f"{given!r} is not a whole number or auto")
    return given


def _preset(name: str) -> str:
    if name and name not in PRESETS:
        raise ValueError(f"'{name}' is not known; allowed: {', '.join(PRESETS)}, or model.name for any other model")
    return name


def _switch(given: Any) -> Any:
    word = str(given).lower()
    return {"yes": "true", "1": "true", "no": "false", "0": "false"}.get(word, word)


Preset = Annotated[str, AfterValidator(_preset)]
Switch = Annotated[Literal["auto", "true", "false"], BeforeValidator(_switch)]
"""On or off, or chosen by the hardware."""
Size = Annotated[int, BeforeValidator(_size), Field(ge=0)]
"""A number, or 0 or auto where it is chosen by the hardware."""
Natural = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[int, BeforeValidator(_number), Field(gt=0)]
Number = Annotated[float, BeforeValidator(_number)]
From0 = Annotated[Number, Field(ge=0)]
Above0 = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Decay = Annotated[Number, Field(ge=0, lt=1)]


class Settings(Section):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class Model(Settings):
    preset: Preset = ""
    """A GPT-2 from scratch, by its size: tiny, micro, distil, small, medium, large, xl. Empty: small, unless name or
    config says what to train."""
    name: str = ""
    """The weights to begin with: a name on the Hugging Face hub, a Hugging Face folder, or a run or checkpoint of ours.
    Any causal language model of transformers."""
    config: str = ""
    """A config.json of transformers, to train a model of that shape from scratch."""
    checkpointing: bool = False
    """Keep no activations of a layer for the way back, compute them again: a third more time, a fraction of the
    memory."""

    @property
    def size(self) -> str:
        """The preset to begin from scratch; empty where name or config says what to train."""
        return self.preset or ("" if self.name or self.config else "small")


class Adapter(Settings):
    kind: Literal["none", "lora"] = "none"
    """none | lora: train the whole model, or small matrices beside its frozen layers (LoRA, arXiv 2106.09685)."""
    rank: Positive = 16
    """The width of these matrices."""
    alpha: Above0 = 32.0
    """Their product is scaled by alpha / rank."""
    dropout: Decay = 0.0
    """The part of a layer's input that the adapter does not see, drawn anew at each pass."""
    targets: str = "all-linear"
    """Layers that get an adapter: all-linear, or their names with commas between, such as q_proj,v_proj."""


class Data(Settings):
    directory: str = ""
    """Where `python -m trainer.prepare` wrote its shards and index.json. Required, but for question answering."""
    verify: Literal["auto", "always", "never"] = "auto"
    """auto | always | never: read every shard at the start and compare its checksum. auto: up to 1 GB."""


class Run(Settings):
    directory: str = ""
    """Where checkpoints, metrics and DONE go: on storage that every worker mounts. Required."""
    seed: Natural = 1337
    """Initial weights and the order of the data follow from it."""
    collective_timeout_seconds: Positive = 120
    """How long a worker waits for its peers in one exchange before it calls them lost."""


class Optimizer(Settings):
    learning_rate: Above0 = 6e-4
    """Peak value. 6e-4 is GPT-3's for 124M parameters (arXiv 2005.14165, table 2.1)."""
    name: Literal["adamw", "muon"] = "adamw"
    """adamw | muon: torch.optim.Muon for the hidden matrices, AdamW for the rest."""
    warmup_steps: Natural = 100
    """Updates over which the rate rises from 0 to its peak: linearly, but for warmup_decay_log."""
    schedule: Literal["cosine", "linear", "constant", "wsd", "warmup_decay_log", "warmup_decay_linear"] = "cosine"
    """What follows the warm-up. cosine | linear | constant | wsd (constant, then a linear decay) | warmup_decay_log |
    warmup_decay_linear (DeepSpeed's WarmupDecayLR with each of its warm-ups; both end at 0)."""
    schedule_steps: Natural = 0
    """Updates until the decay ends. 0: steps."""
    final_fraction: Fraction = 0.1
    """What cosine, linear and wsd end at, as a part of learning_rate."""
    decay_fraction: Fraction = 0.2
    """The part of the steps after the warm-up in which wsd decays."""
    weight_decay: From0 = 0.1
    """AdamW's, on matrices only; biases and norms have none."""
    beta1: Decay = 0.9
    """AdamW's decay of the gradient's mean."""
    beta2: Decay = 0.95
    """AdamW's decay of the gradient's square."""
    epsilon: Above0 = 1e-8
    """AdamW's, added to the root of the gradient's square."""
    clip: From0 = 1.0
    """Greatest norm of the whole gradient. 0 switches clipping off."""
    skipped_steps_limit: Positive = 20
    """After this many steps in a row without a finite gradient the training ends, with the last good checkpoint kept.
    fp16 begins with a few: its loss scale starts high and halves at each."""


class Engine(Settings):
    name: Literal["ddp", "deepspeed", "fsdp"] = "ddp"
    """ddp | deepspeed | fsdp: what each worker holds. ddp: everything; deepspeed: a part of the optimizer's state;
    fsdp: a part of the weights, the gradients and the optimizer's state."""
    zero_stage: Annotated[Natural, Field(ge=1, le=2)] = 1
    """1 | 2: what DeepSpeed divides among the workers: the optimizer's state, or the gradients, too."""
    deepspeed_config: str = ""
    """A DeepSpeed JSON file; in a stack a path from Pulumi.yaml on, or under /data. Its optimizer, scheduler and
    precision become ours; deepspeed_json.py lists what it may hold. Empty: none."""


class Communication(Settings):
    sync: Literal["step", "diloco"] = "step"
    """step | diloco: workers exchange gradients at each step, or train alone and exchange weights every inner_steps,
    for nodes on a slow link (arXiv 2311.08105)."""
    compression: Literal["auto", "none", "bf16", "fp16"] = "auto"
    """auto | none | bf16 | fp16: the type in which gradients (diloco: differences of weights) travel; half of fp32's
    bytes. auto: bf16 between accelerators that do not compute in fp32, each step; else none."""
    bucket_megabytes: Positive = 25
    """Gradients are exchanged in portions of this size, while the backward pass goes on."""
    inner_steps: Positive = 50
    """diloco: steps that each worker makes alone between two exchanges."""
    outer_learning_rate: Above0 = 0.7
    """diloco: the rate of the outer step (Nesterov SGD); 0.7 is that of arXiv 2311.08105."""
    outer_momentum: Decay = 0.9
    """diloco: the momentum of the outer step."""


class Evaluation(Settings):
    every: Natural = 250
    """Steps between two evaluations. 0: only before the first step and after the last."""
    batches: Positive = 32
    """Validation micro-batches in each evaluation: the same ones each time."""
    prompt: str = "The"
    """What the text sample in DONE begins with."""
    sample_tokens: Natural = 120
    """Length of that sample. 0: none."""


class Checkpoint(Settings):
    every_steps: Natural = 500
    """Steps between two checkpoints. 0: not by steps."""
    every_minutes: From0 = 10.0
    """Minutes between two checkpoints. 0: not by time."""
    keep: Positive = 3
    """How many of the newest checkpoints stay."""
    keep_every: Natural = 0
    """A checkpoint at each multiple of this many steps is made and never deleted. 0: none."""
    asynchronous: bool = True
    """Write from a thread: training waits only for the copy to host memory, as large as weights and optimizer state."""


class Metrics(Settings):
    every: Positive = 10
    """Steps between two log lines. At each the host waits for the device."""
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
    prometheus_port: Annotated[Natural, Field(le=65_535)] = 0
    """Port of a Prometheus endpoint (/metrics) on the first worker. 0: none."""


class Distillation(Settings):
    teacher: str = ""
    """The model to learn from: a Hugging Face folder or name, one of our runs or checkpoints. Same tokens as the
    data's. Required by task=distillation."""
    temperature: Above0 = 2.0
    """How much both distributions are softened before they are compared. 1: not at all."""
    alpha: Fraction = 0.5
    """The teacher's part in the loss; the text's is 1 - alpha."""
    student_from_teacher: bool = False
    """Begin with layers of the teacher (of 12 the 0, 2, 4, 7, 9 and 11, as DistilGPT-2) instead of fresh weights."""


class QuestionAnswering(Settings):
    train: str = ""
    """Questions to learn from: a SQuAD JSON file (v1.1 or v2) here or at any URL, or hf:squad."""
    validation: str = ""
    """Questions to be judged by, likewise; hf:squad means its validation split."""
    validation_examples: Natural = 0
    """How many of these are asked, evenly spread. 0: all."""
    document_stride: Natural = 128
    """Tokens by which the windows of a long text overlap."""
    question_tokens: Positive = 64
    """Longer questions are cut to this."""
    answer_tokens: Positive = 30
    """The longest answer that is given."""
    null_threshold: Number = 0.0
    """v2: how much better than the best answer "no answer" must score to be given."""
