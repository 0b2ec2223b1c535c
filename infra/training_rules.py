"""Rules about the training, its model and its data, for every kind of cluster (infra/rules.py has the others)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

from pydantic.alias_generators import to_camel

from infra.config import Rule, StackConfig, breaks
from infra.sections import DATA, PRIVATE, within
from trainer.config import memory, rules
from trainer.config.addresses import on_volume
from trainer.config.schema import Config, allowed
from trainer.config.vocabulary import GPT2, TRAINABLE, words_to_train
from trainer.plain import counted

#: Settings of the trainer that a stack refuses -> the key from which it derives them.
DERIVED = {"training.run.directory": "job.name", "training.data.directory": "dataset.name"}


@breaks("", {"training": {"tokensPerStep": 20000}}, "training.tokensPerStep: 20000 is not a multiple of")
@breaks(
    "",
    {"training": {"task": "question_answering", "model": {"preset": "small"}}},
    "training.model.preset: given together with model.name; give only one",
)
@breaks(
    "",
    {"training": {"model": {"preset": "micro"}, "sequenceLength": 512, "microBatch": 8}},
    "training.sequenceLength: 512 is longer than the 256 positions of preset micro",
)
def _settings(config: StackConfig) -> Iterator[str]:
    """The trainer's own rules."""
    for key, text in rules.broken(config.training, to_camel):
        yield f"training.{'.'.join(map(to_camel, key.split('.')))}: {text}"


@breaks("", {"training": {"optimizer": {"learningRate": 5}}}, "training.optimizer.learningRate: 5 lets any training")
def _training(config: StackConfig) -> Iterator[str]:
    """Refuse settings that waste nodes. The trainer itself accepts them: by hand they are usual trials."""
    if (rate := config.training.optimizer.learning_rate) > 1:
        yield f"training.optimizer.learningRate: {rate:g} lets any training diverge; allowed: at most 1"


@breaks("", {"training": {"steps": 50}}, "training.optimizer.warmupSteps: 100 leaves nothing of 50 steps")
def _warmup(config: StackConfig) -> Iterator[str]:
    training = config.training
    if (warmup := training.optimizer.warmup_steps) >= training.steps > 0:  # 0: by epochs, which the pod finds out
        yield (
            f"training.optimizer.warmupSteps: {warmup} leaves nothing of {training.steps} steps; allowed: 0 to "
            f"{training.steps - 1}"
        )


@breaks(
    "",
    {"training": {"engine": {"zeroStage": 2}}},
    "training.engine.zeroStage: only used with engine.name deepspeed; set",
)
@breaks(
    "",
    {"training": {"run": {"directory": "/x"}}},
    "training.run.directory: /x would not be used; the folder follows",
)
def _unused(config: StackConfig) -> Iterator[str]:
    training = config.training
    if training.engine.zero_stage != 1 and training.engine.name != "deepspeed":
        yield "training.engine.zeroStage: only used with engine.name deepspeed; set engine.name, or remove zeroStage"
    for key, source in DERIVED.items():
        if value := attrgetter(key)(config):
            yield f"{key}: {value} would not be used; the folder follows from {source}; remove it"


#: NAME or OWNER/NAME, with an optional revision: a branch, a tag or a commit.
_HUB_NAME = re.compile(r"\w[-\w.]*(/\w[-\w.]*)?(@[-\w.]+)?")


@breaks(
    "",
    {"training": {"model": {"name": "./llama"}}},
    "training.model.name: './llama' is no name on the Hugging Face",
)
@breaks("", {"training": {"model": {"config": "llama.json"}}}, "training.model.config: pods do not see llama.json;")
@breaks(
    "",
    {"training": {"model": {"name": "https://hub/Qwen/Qwen3-4B/tree/main"}}},
    "training.model.name: 'https://hub/Qwen/Qwen3-4B/tree/main' is no name on the Hugging Face hub; did you mean Qw",
)
def _models(config: StackConfig) -> Iterator[str]:
    """Refuse models that pods cannot reach: the pods would fail only after their nodes have started."""
    training = config.training
    for key, given in (("model.name", training.model.name), ("distillation.teacher", training.distillation.teacher)):
        if not given or _HUB_NAME.fullmatch(given) or given.startswith(f"{DATA}/"):
            continue
        address = re.fullmatch(r"hf:/*(.+)|https?://[^/]+/([^/]+/[^/]+).*", given)
        if address and _HUB_NAME.fullmatch(name := address[1] or address[2]):
            yield f"training.{key}: '{given}' is no name on the Hugging Face hub; did you mean {name}?"
        else:
            yield (
                f"training.{key}: '{given}' is no name on the Hugging Face hub, and pods see no folder but the shared "
                f"volume; `trainyard upload FOLDER --to models/NAME` brings it to {DATA}/models/NAME: give that"
            )
    shape = training.model.config
    if shape and not shape.startswith(f"{DATA}/"):
        yield (
            f"training.model.config: pods do not see {shape}; `trainyard upload FILE --to models/NAME` brings it to "
            f"{DATA}/models/NAME/config.json: give that"
        )


def _given(config: StackConfig) -> dict[str, str]:
    """What the dataset Job reads, by key; the spelling of each address is checked already."""
    if config.training.task == "question_answering":
        asked = config.training.question_answering
        return {
            "training.questionAnswering.train": asked.train,
            "training.questionAnswering.validation": asked.validation,
        }
    return {f"dataset.input.{at}": text for at, text in enumerate(config.dataset.input)}


def web_servers(config: StackConfig) -> Iterator[tuple[str, str, int]]:
    """The web servers that the dataset Job reads from: the key that names each, its host and its port."""
    for key, text in _given(config).items():
        if text.startswith(("http://", "https://")):
            with suppress(ValueError):  # of a port that is none, as the Job will say
                url = urlsplit(text)
                yield key, url.hostname or "", url.port or {"http": 80, "https": 443}[url.scheme]


@breaks("", {"dataset": {"input": ["/home/me/a.txt"]}}, "dataset.input.0: ")
def _inputs(config: StackConfig) -> Iterator[str]:
    """Refuse what no pod can read."""
    for key, text in _given(config).items():
        try:
            on_volume(text, DATA)
        except ValueError as error:
            yield f"{key}: {error}"


@breaks(
    "",
    {"dataset": {"input": ["https://user@10.0.0.5:9000/a.txt"]}},
    "dataset.input.0: 10.0.0.5 is a private address, which the network policy refuses to the dataset Job; add it to",
)
@breaks(
    "",
    {"dataset": {"input": ["sample", "http://[fd00::5]/a.txt"], "privateServers": ["fd00:1::/32", "10.0.0.0/8"]}},
    "dataset.input.1: fd00::5 is a private address",
)
def _private_servers(config: StackConfig) -> Iterator[str]:
    for key, host, _ in web_servers(config):
        with suppress(ValueError):  # a name, whose address the cluster alone knows
            if within(host, PRIVATE) and not within(host, config.dataset.private_servers):
                yield (
                    f"{key}: {host} is a private address, which the network policy refuses to the dataset Job; add it "
                    "to dataset.privateServers"
                )


@breaks(
    "",
    {"training": {"task": "finetune", "model": {"name": "gpt2"}}},
    "dataset.input: sample is a book, and training.task finetune learns from conversations; give JSONL",
)
def _conversations(config: StackConfig) -> Iterator[str]:
    if config.training.task == "finetune" and "sample" in config.dataset.input:
        yield (
            "dataset.input: sample is a book, and training.task finetune learns from conversations; give JSONL files "
            "with messages, or with prompt and completion (`trainyard upload chats.jsonl`), or hf:NAME"
        )


@breaks(
    "",
    {
        "dataset": {"input": ["chats.jsonl"], "textField": "body"},
        "training": {"task": "finetune", "model": {"name": "gpt2"}},
    },
    "dataset.textField: body, but training.task finetune reads no plain text; leave it out",
)
def _text(config: StackConfig) -> Iterator[str]:
    task = config.training.task
    for key, value in config.dataset.reading.items() if task in ("finetune", "question_answering") else ():
        yield f"dataset.{to_camel(key)}: {value}, but training.task {task} reads no plain text; leave it out"


@breaks("", {"dataset": {"tokenizer": "train:99"}}, "dataset.tokenizer: train:99; give train:WORDS with 257 to")
@breaks(
    "",
    {"dataset": {"tokenizer": "train:999"}, "training": {"model": {"name": "gpt2"}}},
    "dataset.tokenizer: train:999 makes words that gpt2 has not learned; leave it out",
)
def _tokenizer(config: StackConfig) -> Iterator[str]:
    tokenizer, training = config.dataset.tokenizer, config.training
    words, learned = words_to_train(tokenizer), training.model.name or training.distillation.teacher
    if words == 0:
        yield f"dataset.tokenizer: {tokenizer}; {TRAINABLE}"
    elif words and learned:
        yield f"dataset.tokenizer: {tokenizer} makes words that {learned} has not learned; leave it out"


#: A run is refused when this share of the memory that it needs by the formula exceeds what there is: the formula counts
#: what autograd keeps without the compiler, and the size in a model's name is rounded.
_SURE = 0.85
#: What takes least memory of a model, in words.
SMALLEST = "model.checkpointing: true and microBatch: 1"


def shape_of(config: StackConfig) -> memory.Shape | None:
    """The shape of the trained model; None if it is unknown."""
    tokenizer = config.dataset.tokenizer
    # Nothing is refused for words that nobody knows yet: one, which every model has.
    words = GPT2 if tokenizer in ("", "gpt2") else words_to_train(tokenizer) or 1
    return memory.shape_of(config.training, words)


@breaks(
    "",
    {"training": {"model": {"preset": "xl"}}, "workers": {"memoryGib": 2}},
    "training.engine.name: xl with ddp needs ",
)
def _memory(config: StackConfig) -> Iterator[str]:
    """Refuse a model that fits no worker before anything is rented; a model of unknown size passes."""
    training, workers, machine = config.training, config.workers, config.node_machine
    shape = shape_of(config)
    there = machine.accelerator_gib if workers.gpus and machine else 0.0
    if shape is None or training.task == "question_answering" or (workers.gpus and not there):
        return
    if not there and "memory_gib" not in workers.model_fields_set:
        return  # the default says nothing about the nodes of an existing cluster
    precisions = machine.precisions if machine else ("fp32", "bf16")
    if training.precision != "auto":
        precisions = (training.precision,)
    world = workers.count * workers.processes

    def gib(chosen: Config) -> float:
        """GiB of an accelerator, else of the pod's memory, which its workers share with the first one's checkpoint."""
        needs = min(memory.needed(shape, chosen, name, world, accelerator=bool(there)) for name in precisions)
        return (needs if there else needs * workers.processes + memory.saved(shape, chosen)) / 2**30

    most = there or workers.memory_gib
    where = f"{machine.accelerator} has {there:g}" if machine and there else f"workers.memoryGib is {most:g}"
    model = training.model.size or training.model.name or training.model.config
    estimate = " by the size in its name" if shape.estimated else ""
    if _SURE * gib(training) > most:
        kinds: dict[str, dict[str, Any]] = {}
        if world > 1:
            kinds[f"engine.name: fsdp on {world} workers"] = {"engine.name": "fsdp"}
        if training.adapter.kind != "none":
            kinds["adapter.rank: 16"] = {"adapter.rank": 16}
        elif training.model.name:
            kinds["adapter.kind: lora"] = {"adapter.kind": "lora", "engine.name": "ddp"}
        smallest = {"model.checkpointing": True, "micro_batch": 1}
        ways = kinds | {f"{kind} with {SMALLEST}": {**change, **smallest} for kind, change in kinds.items()}
        ways[SMALLEST] = smallest
        trials = {way: allowed(training, change) for way, change in ways.items()}
        fitting = [f"{way} ({gib(trial):.1f} GiB)" for way, trial in trials.items() if trial and gib(trial) < most]
        yield (
            f"training.engine.name: {model} with {training.engine.name} needs {gib(training):.1f} GiB a "
            f"{'worker' if there else 'pod'}{estimate}, {where}; use {', '.join([*fitting, 'a smaller model'])} or "
            f"{'a larger machine' if machine else 'more memory'}"
        )
    elif there and _SURE * memory.saved(shape, training) / 2**30 > workers.memory_gib:
        yield (
            f"workers.memoryGib: {workers.memory_gib:g}, but a checkpoint of {model} takes "
            f"{memory.saved(shape, training) / 2**30:.1f} GiB{estimate} of the first worker's host memory; use a "
            "larger machine, adapter.kind: lora or a smaller model"
        )


@breaks(
    "",
    {"training": {"metrics": {"wandbProject": "gpt2"}}},
    "secrets.wandbApiKey: missing for training.metrics.wandbProject; set it with",
)
def _exporters(config: StackConfig) -> Iterator[str]:
    """Without a key, each worker would start without Weights & Biases, and the training would go on unrecorded."""
    offline = config.workers.environment.get("WANDB_MODE") == "offline"
    if config.training.metrics.wandb_project and not config.secrets.wandb_api_key and not offline:
        yield (
            "secrets.wandbApiKey: missing for training.metrics.wandbProject; set it with "
            "`pulumi config set --secret --path secrets.wandbApiKey KEY`, or remove the project"
        )


@breaks(
    "",
    {"workers": {"count": 2, "processes": 2}, "training": {"tokensPerStep": 16384, "microBatch": 8}},
    "training.microBatch: a step has 2 micro-batches for 4 processes",
)
def _work_for_all(config: StackConfig) -> Iterator[str]:
    training, workers = config.training, config.workers
    micro_batches = training.windows_per_step // (training.micro_batch or 1)
    processes = workers.count * workers.processes
    if 0 < micro_batches < processes:
        yield (
            f"training.microBatch: a step has {counted(micro_batches, 'micro-batch', 'micro-batches')} for {processes} "
            f"processes, some would idle; lower microBatch or raise tokensPerStep"
        )


RULES: tuple[Rule, ...] = (
    _settings,
    _training,
    _warmup,
    _unused,
    _models,
    _inputs,
    _private_servers,
    _conversations,
    _text,
    _tokenizer,
    _exporters,
    _memory,
    _work_for_all,
)
