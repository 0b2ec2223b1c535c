"""The text of a new stack file: a training that suits the data and fits the machines, which another stack lends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import yaml

from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig
from infra.parse import parse
from infra.speed import tokens_per_second
from infra.stackfiles import PROJECT, ours, stack_file, stack_file_values
from infra.trainings import KEYS
from trainer.config.base import merge
from trainer.config.values import StackReader, read_yaml

#: Steps that a training should have at least, where the data allows it: fewer and larger ones learn less. A step of
#: fewer tokens than this takes as long: on two cores 256 tokens took 0.14 s, 1,854 a second, 2026-11-25.
STEPS, LEAST = 300, 4096
#: Tokens of a step at most: the trainer's defaults, and for known weights what the shipped stacks have.
SCRATCH, KNOWN, CHAT = 524_288, 65_536, 32_768
#: Windows that the data should have at least; a shorter text gets shorter windows.
WINDOWS, SHORTEST = 32, 64
#: Learning rate of known weights, as in the shipped stacks; a chat has the trainer's own.
RATE = 5e-5
LORA: dict[str, Any] = {"adapter": {"kind": "lora"}}
CHECKPOINTING: dict[str, Any] = {"model": {"checkpointing": True}}
FSDP: dict[str, Any] = {"engine": {"name": "fsdp"}}
#: GiB of a pod where the nodes are not known: the other stack's, else the first of these that is enough.
MEMORY = (4, 8, 16)
#: What is one stack's alone: names, a disk, its text.
OWN = {"cluster": ("name",), "storage": ("disk",), "dataset": ("name", "input", "tokenizer"), "job": ("name",)}
#: The Job ends after so many times the estimate, and not before so many hours, in which nodes may still be waited for:
#: the bill of a training that hangs has an end.
LIMIT, LEAST_HOURS = 3, 6


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a person has asked for."""

    name: str
    like: str
    """The stack whose machines, volume and dataset Job it gets."""
    own: Mapping[str, Any]
    """Values of the stack file that only this person knows, such as the project."""
    model: str
    """As `training.model.name`; empty: a GPT-2 from scratch."""
    task: str
    input: str
    tokens: int | None
    """Of the data, about; None: unknown."""
    epochs: float

    def fitting(self) -> tuple[str, StackConfig]:
        """The text of the first file whose model fits its machines, and its configuration. Raises ConfigError."""
        values = self._values()
        refused: ConfigError | None = None
        for change in self._changes():
            changed = merge(values, change)
            try:
                text, config = self._checked(changed)
            except ConfigError as error:
                if not all(problem.startswith("training.engine.name: ") for problem in error.problems):
                    raise
                refused = refused or error
                continue
            if hours := self.hours(config):
                return self._checked(
                    merge(changed, {"job": {"maxHours": max(LEAST_HOURS, math.ceil(LIMIT * hours[1]))}})
                )
            return text, config
        assert refused is not None
        raise refused

    def learnt(self, config: StackConfig) -> float | None:
        """Tokens that the whole training sees."""
        return self.tokens * (1 - config.dataset.validation_fraction) * self.epochs if self.tokens else None

    def hours(self, config: StackConfig) -> tuple[float, float] | None:
        """From the fastest to the slowest that is likely; None where a size or the machine is not known."""
        rate, total = tokens_per_second(config), self.learnt(config)
        return (total / rate[1] / 3600, total / rate[0] / 3600) if rate and total else None

    @cached_property
    def _template(self) -> dict[str, Any]:
        return stack_file_values(self.like)

    @cached_property
    def _before(self) -> StackConfig:
        return parse(self._template, self.like)

    @property
    def _world(self) -> int:
        return self._before.workers.count * self._before.workers.processes

    def _values(self) -> dict[str, Any]:
        lent = {key: value for key, value in self._template.items() if key not in ("training", "secrets", *KEYS)}
        for key, names in OWN.items():
            lent[key] = {name: value for name, value in (lent.get(key) or {}).items() if name not in names}
        tokenizer = "" if self.model else self._before.dataset.tokenizer
        data = {"input": [self.input], **({"tokenizer": tokenizer} if tokenizer else {})}
        return merge({**lent, "dataset": {**data, **lent["dataset"]}, "training": self._training()}, self.own)

    def _training(self) -> dict[str, Any]:
        """The section `training`, with steps that suit the size of the data."""
        before, chat = self._before.training, self.task == "finetune"
        rate, length = None if chat else RATE, 2048 if chat else 1024
        most, model = CHAT if chat else KNOWN, {"name": self.model}
        if not self.model:
            rate, most, model = None, SCRATCH, {"preset": before.model.preset or "small"}
            if before.model.preset:
                rate, most, length = before.optimizer.learning_rate, before.tokens_per_step, before.sequence_length
        while self.tokens and length > SHORTEST and self.tokens < WINDOWS * length:
            length //= 2
        total = self.tokens * self.epochs if self.tokens else None
        size = length * self._world
        while 2 * size <= (max(LEAST, min(most, total / STEPS)) if total else most):
            size *= 2
        epochs = int(self.epochs) if self.epochs == int(self.epochs) else self.epochs
        found = dict[str, Any](task=self.task, model=model, epochs=epochs, tokensPerStep=size, sequenceLength=length)
        optimizer: dict[str, Any] = {"learningRate": rate} if rate else {}
        if total:
            steps = math.ceil(total / size)
            optimizer["warmupSteps"] = steps // 20
            found["evaluation"] = {"every": min(250, max(1, steps // 10))}
        elif self.model and not chat:
            optimizer["warmupSteps"] = 20
        return {**found, **({"optimizer": optimizer} if optimizer else {})}

    def _changes(self) -> Iterator[dict[str, Any]]:
        """Changes of which the first that lets the model fit is taken."""
        ways: list[dict[str, Any]] = [{}]
        if self.task == "finetune":
            ways = [LORA, merge(LORA, CHECKPOINTING)]
        elif self.model:
            sharded = [FSDP, merge(FSDP, CHECKPOINTING)] if self._world > 1 else []
            ways += [CHECKPOINTING, *sharded, LORA, merge(LORA, CHECKPOINTING)]
        rooms: list[dict[str, Any]] = [{}]
        if self._before.nodes is None:
            rooms += [{"workers": {"memoryGib": gib}} for gib in MEMORY if gib > self._before.workers.memory_gib]
        for way in ways:
            for room in rooms:
                yield merge(room, {"training": way})

    def _checked(self, values: Mapping[str, Any]) -> tuple[str, StackConfig]:
        """The text of the file with these values, and what is read from it. Raises ConfigError."""
        training = values["training"]
        learns = self.model or f"a GPT-2 from scratch ({training['model']['preset']})"
        learns += " with LoRA" if "adapter" in training else ""
        does = "Fine-tunes" if self.task == "finetune" else "Trains"
        head = [
            f"{does} {learns} on {self.input}, with machines like those of {self.like}.",
            f"Written by `trainyard init` on {datetime.now(UTC).date()}; docs/configuration.md has every key.",
        ]
        kept = {key: value for key, value in stack_file(self.like)["config"].items() if key.startswith("pulumi:")}
        content = {"config": kept | {f"{PROJECT}:{key}": value for key, value in values.items() if value}}
        text = "".join(f"# {line}\n" for line in head) + yaml.safe_dump(content, sort_keys=False, width=110)
        config = parse(ours(read_yaml(text, StackReader)["config"]), self.name)
        if problems := cloud_of(config).placeholders(config):
            raise ConfigError(self.name, problems)
        return text, config
