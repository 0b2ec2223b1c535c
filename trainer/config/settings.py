"""The settings of a training, section by section, and the types of their values; schema.py reads them."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from trainer.config.addresses import address
from trainer.config.base import NO_MATHEMATICS, Effect, Free, Section, merge
from trainer.config.paths import expanded
from trainer.config.presets import PRESETS
from trainer.config.values import shown


def _size(given: Any) -> Any:
    if str(given).lower() == "auto":
        return 0
    if not str(given).removeprefix("-").isdecimal():
        raise ValueError(f"{shown(given)} is not a whole number or auto")
    return given


def _preset(name: str) -> str:
    if name and name not in PRESETS:
        raise ValueError(f"'{name}' is not known; allowed: {', '.join(PRESETS)}, or model.name for any other model")
    return name


def _unless_json(text: str) -> str:
    return text if text.startswith("{") else expanded(text)


def _switch(given: Any) -> Any:
    word = str(given).lower()
    return {"yes": "true", "1": "true", "no": "false", "0": "false"}.get(word, word)


PathOrName = Annotated[str, AfterValidator(expanded)]
"""A path, or a name."""
Preset = Annotated[str, AfterValidator(_preset)]
Switch = Annotated[Literal["auto", "true", "false"], BeforeValidator(_switch)]
"""On or off, or chosen by the hardware."""
MOST = 2**31 - 1
"""A number above it is a typing error, and would fill the memory or overflow where it is used."""
Size = Annotated[int, BeforeValidator(_size), Field(ge=0, le=MOST)]
"""A number; 0 or auto: chosen by the hardware."""
Natural = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(gt=0, le=MOST)]
From0 = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


_ORDER = "the order of the data changes; in this epoch some windows come twice, others not"
_COMPARED = "validation losses cannot be compared with earlier ones"
CURVE = Effect("the learning rate continues on another curve")
FRESH = Effect("the optimizer's state begins afresh where it does not fit")
UPDATES = Effect("the next updates differ from the earlier ones")
OBJECTIVE = Effect("the training loss is defined differently from here on")
WINDOWS = Effect(f"the windows change, and their order; {_COMPARED}")
VALIDATION = Effect(_COMPARED, mathematical=False)
ANSWERS = Effect("exact match and F1 cannot be compared with earlier ones", mathematical=False)


class Settings(Section):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class Model(Settings):
    preset: Preset = ""
    """Model to train from scratch: a GPT-2 (tiny, micro, distil, small, medium, large, xl), or a modern decoder
    (modern-micro, modern-small, modern-medium). Empty: small, unless name or config is set."""
    name: PathOrName = ""
    """Initial weights, of any causal language model of transformers: a name on the Hugging Face hub, a Hugging Face
    folder, or a run or checkpoint of trainyard."""
    config: PathOrName = ""
    """A config.json of transformers, to train a model of that shape from scratch."""
    checkpointing: Annotated[bool, NO_MATHEMATICS] = False
    """Recompute each layer's activations in the backward pass instead of keeping them: a third more time, a fraction
    of the memory."""

    @property
    def size(self) -> str:
        """The preset to train from scratch; empty where name or config is set."""
        return self.preset or ("" if self.name or self.config else "small")


ALL_LINEAR = "all-linear"


class Adapter(Settings):
    kind: Literal["none", "lora"] = "none"
    """none | lora: train the whole model, or small matrices beside its frozen layers (LoRA, arXiv 2106.09685)."""
    rank: Positive = 16
    """The rank of the adapter's matrices. At 1024 an adapter has about a third of the numbers of a 7B model."""
    alpha: Annotated[Above0, Effect("the adapter has another part in the model from here on")] = 32.0
    """The product of the adapter's matrices is scaled by alpha / rank."""
    dropout: Annotated[Decay, UPDATES] = 0.0
    """The fraction of a layer's input that is hidden from the adapter, drawn anew at each pass."""
    targets: str = ALL_LINEAR
    """Layers that get an adapter: all-linear, or comma-separated names such as q_proj,v_proj. The experts of a mixture
    are no layers of their own in transformers 5 and get none."""


class Data(Settings):
    directory: Annotated[PathOrName, Effect(_ORDER, mathematical=False)] = ""
    """Folder with the shards and index.json of `python -m trainer.prepare`. Required, except for question answering."""
    verify: Annotated[Literal["auto", "always", "never"], NO_MATHEMATICS] = "auto"
    """auto | always | never: verify the checksum of every shard at the start. auto: of data up to 1 GB."""


class Run(Settings):
    directory: Annotated[PathOrName, NO_MATHEMATICS] = ""
    """Folder for checkpoints, metrics and DONE, on storage that every worker mounts. Required."""
    seed: Annotated[int, Field(ge=0, lt=2**63), Effect(_ORDER)] = 1337
    """Determines the initial weights and the order of the data."""
    collective_timeout_seconds: Annotated[Positive, NO_MATHEMATICS] = 120
    """How long a worker waits for its peers in one collective before it considers them lost."""


class Optimizer(Settings):
    learning_rate: Annotated[Above0, CURVE] = 6e-4
    """Peak value. 6e-4 is GPT-3's for 124M parameters (arXiv 2005.14165, table 2.1)."""
    name: Annotated[Literal["adamw", "muon"], FRESH] = "adamw"
    """adamw | muon: Muon for the hidden matrices, AdamW for the rest."""
    warmup_steps: Annotated[Natural, CURVE] = 100
    """Updates over which the rate rises from 0 to its peak: linearly, except with warmup_decay_log."""
    schedule: Annotated[
        Literal["cosine", "linear", "constant", "wsd", "warmup_decay_log", "warmup_decay_linear"], CURVE
    ] = "cosine"
    """Schedule after the warm-up: cosine | linear | constant | wsd (constant, then a linear decay) | warmup_decay_log |
    warmup_decay_linear (DeepSpeed's WarmupDecayLR with each of its warm-ups; both end at 0)."""
    schedule_steps: Annotated[Natural, CURVE] = 0
    """Updates until the decay ends. 0: steps."""
    final_fraction: Annotated[Fraction, CURVE] = 0.1
    """Final rate of cosine, linear and wsd, as a fraction of learning_rate."""
    decay_fraction: Annotated[Fraction, CURVE] = 0.2
    """Fraction of the steps after the warm-up in which wsd decays."""
    weight_decay: Annotated[From0, UPDATES] = 0.1
    """Weight decay of matrices; biases and norms have none."""
    beta1: Annotated[Decay, UPDATES] = 0.9
    """AdamW's decay rate of the gradient's mean."""
    beta2: Annotated[Decay, UPDATES] = 0.95
    """AdamW's decay rate of the gradient's square."""
    epsilon: Annotated[Above0, UPDATES] = 1e-8
    """AdamW's epsilon, added to the root of the mean square of the gradient."""
    clip: Annotated[From0, UPDATES] = 1.0
    """Largest norm of the whole gradient. 0: no clipping."""
    skipped_steps_limit: Annotated[Positive, NO_MATHEMATICS] = 20
    """The training ends after this many consecutive steps without a finite gradient and keeps the last good checkpoint.
    fp16 begins with a few: its loss scale starts high and halves at each."""


class Engine(Settings):
    name: Annotated[Literal["ddp", "deepspeed", "fsdp"], NO_MATHEMATICS] = "ddp"
    """ddp | deepspeed | fsdp: what each worker holds. ddp: everything; deepspeed: a shard of the optimizer's state;
    fsdp: a shard of the weights, the gradients and the optimizer's state."""
    zero_stage: Annotated[Natural, Field(ge=1, le=2), NO_MATHEMATICS] = 1
    """1 | 2: what DeepSpeed shards among the workers: the optimizer's state, or the gradients too."""
    deepspeed_config: Annotated[str, AfterValidator(_unless_json)] = ""
    """A DeepSpeed JSON file; in a stack, a path relative to Pulumi.yaml. Its optimizer, scheduler and precision become
    settings; deepspeed_json.py lists what it may hold. Empty: none."""


class Communication(Settings):
    compression: Literal["auto", "none", "bf16", "fp16"] = "auto"
    """auto | none | bf16 | fp16: the type in which gradients are sent; 16 bits halve the bytes. auto: bf16 between
    accelerators that do not compute in fp32; else none."""
    bucket_megabytes: Annotated[Positive, NO_MATHEMATICS] = 25
    """Size of a gradient bucket; buckets are exchanged while the backward pass goes on."""


class Evaluation(Settings):
    every: Natural = 250
    """Steps between two evaluations. 0: only before the first step and after the last."""
    batches: Annotated[Positive, VALIDATION] = 32
    """Validation micro-batches in each evaluation: the same ones each time."""
    prompt: Annotated[str, Free()] = "The"
    """Prompt of the text sample in DONE. Empty: the beginning of the validation text."""
    sample_tokens: Natural = 120
    """Length of that sample. 0: none."""
    sample_temperature: From0 = 0.8
    """Temperature of that sample, of a language model; a small model reads better below 0.8. 0: the likeliest token
    each time."""


class Checkpoint(Settings):
    every_steps: Natural = 500
    """Steps between two checkpoints. 0: not by steps."""
    every_minutes: From0 = 10.0
    """Minutes between two checkpoints. 0: not by time."""
    keep: Positive = 3
    """How many of the newest checkpoints to keep."""
    keep_every: Natural = 0
    """Write a checkpoint at each multiple of this many steps and never delete it. 0: none."""
    asynchronous: bool = True
    """Write from a thread: training waits only for the copy to host memory, as large as weights and optimizer state."""


class Metrics(Settings):
    every: Positive = 10
    """Steps between two log lines. At each the host waits for the device."""
    profile: str = ""
    """FIRST:LAST, such as 20:22: torch.profiler writes a trace of these steps of the first worker to profile/ in the
    run directory; see docs/model.md. Empty: none."""
    attention_statistics: bool = True
    """At every tenth log step, log the largest and smallest attention logit of each layer for one window, which show
    trouble before the loss does. Costs one forward pass of a window."""
    tensorboard: bool = True
    """Write TensorBoard event files too."""
    wandb_project: str = ""
    """Log to this Weights & Biases project too; WANDB_API_KEY and WANDB_MODE=offline work as usual. Empty: none."""
    prometheus_port: Annotated[Natural, Field(le=65_535)] = 0
    """Port of a Prometheus endpoint (/metrics) on the first worker, which any pod of the cluster may read. 0: none."""


def _source(text: str) -> str:
    return text and address(text if "://" in text else expanded(text))


Questions = Annotated[str, AfterValidator(_source)]


class Distillation(Settings):
    teacher: Annotated[PathOrName, OBJECTIVE] = ""
    """The model to learn from: a Hugging Face folder or name, or a run or checkpoint of trainyard, with the same tokens
    as the data. Required by task=distillation."""
    temperature: Annotated[Above0, OBJECTIVE] = 2.0
    """Temperature that softens both distributions before they are compared. 1: not at all."""
    alpha: Annotated[Fraction, OBJECTIVE] = 0.5
    """The teacher's weight in the loss; the text's is 1 - alpha."""
    student_from_teacher: bool = False
    """Begin with layers of the teacher (0, 2, 4, 7, 9 and 11 of 12, as in DistilGPT-2) instead of fresh weights."""


class QuestionAnswering(Settings):
    train: Annotated[Questions, Effect(_ORDER)] = ""
    """Questions to learn from: a SQuAD JSON file (v1.1 or v2), local or at any URL, or hf:squad."""
    validation: Annotated[Questions, VALIDATION] = ""
    """Validation questions, in the same form; hf:squad means its validation split."""
    validation_examples: Annotated[Natural, VALIDATION] = 0
    """How many validation questions to ask, evenly spread. 0: all."""
    document_stride: Annotated[Natural, WINDOWS] = 128
    """Tokens by which the windows of a long text overlap."""
    question_tokens: Annotated[Positive, WINDOWS] = 64
    """Longer questions are cut to this."""
    answer_tokens: Annotated[Positive, ANSWERS] = 30
    """Tokens in the longest answer."""
    null_threshold: Annotated[float, ANSWERS] = 0.0
    """v2: margin by which "no answer" must outscore the best answer."""


DEFAULTS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("defaults.yaml").read_text("utf-8"))
"""Defaults of tasks, recipes and adapters, where they differ from those below."""


class Config(Settings):
    task: Literal["language_model", "finetune", "distillation", "question_answering"] = "language_model"
    """language_model | finetune | distillation | question_answering: learn to continue text, to answer as in given
    conversations, to imitate a teacher, or to find answers in a text."""
    recipe: Annotated[Literal["gpt2", "modern"], NO_MATHEMATICS] = "gpt2"
    """gpt2 | modern: how a model is trained from scratch. modern: a modern decoder with Muon, which reaches the same
    loss with fewer tokens (docs/training.md); it changes the defaults of model.preset and optimizer."""
    steps: Annotated[Natural, CURVE] = 1000
    """Optimizer steps of the whole run, however often it is interrupted."""
    epochs: From0 = 0.0
    """Passes over the training data, in place of steps, which then follow from the size of the prepared data. 0: give
    steps."""
    tokens_per_step: Annotated[Positive, Effect(f"{_ORDER}; the batch has another size")] = 524_288
    """Tokens in one optimizer step, the same for any number of workers, so that the mathematics stays the same."""
    sequence_length: Annotated[Positive, Field(ge=2), Effect(_ORDER)] = 1024
    """Tokens in one training window."""
    micro_batch: Annotated[Size, NO_MATHEMATICS] = 0
    """Windows in one forward pass on one worker. 0 or auto: as many as fit the accelerator's memory, up to 32,768
    tokens; at most 8 on a CPU, and 8 in question answering and distillation."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], Effect("losses differ from here on by rounding")] = (
        "auto"
    )
    """auto | fp32 | bf16 | fp16. auto: by the hardware. Optimizer state and weights stay fp32."""
    compile: Annotated[Switch, NO_MATHEMATICS] = "auto"
    """auto | true | false: torch.compile the model. auto: on accelerators, and on CPUs with recipe modern for a run of
    300,000 tokens. It costs half a minute before the first step of a run; later workers find code for accelerators in
    the run directory, and on CPUs each compiles for itself."""
    require_capability: Annotated[str, NO_MATHEMATICS] = ""
    """CPU flag that every node must have, such as amx_bf16: a node without it ends the run, instead of training at a
    tenth of the speed. Empty: any CPU."""
    model: Model = Model()
    """What is trained."""
    adapter: Adapter = Adapter()
    """The adapter that is trained in place of the model."""
    data: Data = Data()
    """The training data."""
    run: Run = Run()
    """The folder of the run, and its seed."""
    optimizer: Optimizer = Optimizer()
    """AdamW or Muon, and the schedule."""
    engine: Engine = Engine()
    """How the training state is divided among the workers."""
    communication: Communication = Communication()
    """How workers exchange gradients."""
    evaluation: Annotated[Evaluation, NO_MATHEMATICS] = Evaluation()
    """The validation loss."""
    checkpoint: Annotated[Checkpoint, NO_MATHEMATICS] = Checkpoint()
    """When checkpoints are written and how many are kept."""
    metrics: Annotated[Metrics, NO_MATHEMATICS] = Metrics()
    """What is logged, and where."""
    distillation: Distillation = Distillation()
    """With task distillation: the teacher."""
    question_answering: QuestionAnswering = QuestionAnswering()
    """With task question_answering: the questions. BERT large on SQuAD 1.1 by default."""

    @property
    def windows_per_step(self) -> int:
        return self.tokens_per_step // self.sequence_length

    @model_validator(mode="before")
    @classmethod
    def _of_task(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        adapter = given.get("adapter")
        kind = adapter.get("kind") if isinstance(adapter, Mapping) else getattr(adapter, "kind", None)
        of_recipe = DEFAULTS["recipes"].get(str(given.get("recipe")), {})
        model = given.get("model") or {}
        if any(model.get(key) for key in ("preset", "name", "config")) if isinstance(model, Mapping) else model.preset:
            of_recipe = {key: value for key, value in of_recipe.items() if key != "model"}
        defaults = (
            DEFAULTS["tasks"].get(str(given.get("task")), {}),
            of_recipe,
            {"steps": 0} if given.get("epochs") else {},
            DEFAULTS["adapters"].get(str(kind), {}),
        )
        return functools.reduce(merge, (*defaults, given))
