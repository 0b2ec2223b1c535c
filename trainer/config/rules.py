"""The rules between settings; the limits of one setting are in its type (sections.py)."""

import math
import re
from collections.abc import Callable, Iterator

from trainer.config.presets import PRESETS
from trainer.config.settings import Config


def broken(config: Config, spell: Callable[[str], str] = str) -> Iterator[tuple[str, str]]:
    """Yield key and problem of every broken rule; `spell` writes other keys as the reader does."""
    yield from _task(config)
    yield from _adapter(config)
    yield from _engine(config)
    yield from _batch(config, spell)
    if config.epochs and config.steps:
        yield "epochs", f"{config.epochs:g} given together with {spell('steps')}={config.steps}; give only one"
    if not config.epochs and not config.steps:
        yield "steps", "0 is not allowed; must be greater than 0"
    traced = re.fullmatch(r"(\d+):(\d+)", config.metrics.profile)
    last = config.steps or math.inf
    if config.metrics.profile and not (traced and 1 <= int(traced[1]) <= int(traced[2]) <= last):
        most = f"from 1 to steps={config.steps}" if config.steps else "from 1 on"
        yield "metrics.profile", f"'{config.metrics.profile}' is not FIRST:LAST {most}"


def _task(config: Config) -> Iterator[tuple[str, str]]:
    if config.task == "question_answering":
        for split in ("train", "validation"):
            if not getattr(config.question_answering, split):
                yield f"question_answering.{split}", "missing; give a SQuAD JSON file, a URL or hf:squad"
    if config.task == "distillation" and not config.distillation.teacher:
        yield "distillation.teacher", "missing; name a GPT-2 to learn from, such as gpt2"
    model, adapted = config.model, config.adapter.kind != "none"
    if not model.name and (adapted or config.task in ("question_answering", "finetune")):
        yield "model.name", "missing; name the weights to begin with, such as gpt2 or bert-base-uncased"
    if config.recipe != "gpt2" and (model.name or config.task != "language_model"):
        why = f"model.name={model.name} has weights" if model.name else f"task {config.task} has a recipe of its own"
        yield "recipe", f"{config.recipe} is for models that are trained from scratch, and {why}; leave recipe out"
    given = [key for key in ("preset", "name", "config") if getattr(model, key)]
    if len(given) > 1:
        yield f"model.{given[0]}", f"given together with model.{given[1]}; give only one"
    if config.task in ("distillation", "question_answering"):
        for key, wrong in (
            ("model.config", model.config),
            ("adapter.kind", adapted),
            ("model.checkpointing", model.checkpointing),
        ):
            if wrong:
                yield key, f"not for task {config.task}; leave it out"


def _adapter(config: Config) -> Iterator[tuple[str, str]]:
    given, plain = config.adapter, type(config.adapter)()
    for key in ("rank", "alpha", "dropout", "targets"):
        if given.kind == "none" and getattr(given, key) != getattr(plain, key):
            yield f"adapter.{key}", "given, but adapter.kind is none; add adapter.kind=lora or leave it out"
    if given.kind != "none" and config.optimizer.name == "muon":
        yield "optimizer.name", "muon is for the matrices of whole models, not for an adapter's; use adamw"


def _engine(config: Config) -> Iterator[tuple[str, str]]:
    if config.engine.name == "deepspeed" and config.optimizer.name != "adamw":
        yield "optimizer.name", "muon needs whole matrices, which deepspeed cuts; use engine.name=ddp or fsdp"
    if config.engine.name == "fsdp":
        if config.task in ("distillation", "question_answering"):
            yield "engine.name", f"fsdp is not for task {config.task}; use ddp or deepspeed"
        if config.adapter.kind != "none":
            yield "engine.name", "fsdp trains whole models, not adapters; use ddp or deepspeed"
    if config.engine.deepspeed_config and config.engine.name != "deepspeed":
        text = f"given, but engine.name is {config.engine.name}; add engine.name=deepspeed or leave the file out"
        yield "engine.deepspeed_config", text


def _batch(config: Config, spell: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    length, tokens = spell("sequence_length"), config.tokens_per_step
    window = config.sequence_length * (config.micro_batch or 1)
    if tokens % window:
        nearest = max(1, round(tokens / window)) * window
        product = f"{length} x {spell('micro_batch')}" if config.micro_batch else length
        yield "tokens_per_step", f"{tokens} is not a multiple of {product} = {window}; nearest: {nearest}"
    if config.task == "question_answering":
        stride, question = config.question_answering.document_stride, config.question_answering.question_tokens
        room = config.sequence_length - question - 4  # special tokens: two after the question, one at each end
        if stride >= room:
            parts = f"{length} - {spell('question_tokens')} - 4"
            yield "question_answering.document_stride", f"{stride} leaves no room for text beside it: {parts} = {room}"
        return
    preset = PRESETS.get(config.model.size)
    if preset is not None and config.sequence_length > preset.positions:
        has = f"the {preset.positions} positions of preset {config.model.size}"
        yield "sequence_length", f"{config.sequence_length} is longer than {has}"
