"""The text of a new stack file: a training that suits the data and fits the machines, which another stack lends."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig
from infra.finding import Finding, read_line
from infra.parse import parse
from infra.speed import facts, tokens_per_second
from infra.stackfiles import PROJECT, ours, stack_file, stack_file_values
from infra.trainings import KEYS
from trainer.config.base import merge
from trainer.config.memory import PUBLISHED
from trainer.config.presets import PRESETS
from trainer.config.values import StackReader, read_yaml
from trainer.plain import counted

#: Steps that a training should have; at least, if need be with shorter windows and more epochs; and epochs at most.
STEPS, FEWEST, EPOCHS = 300, 30, 10
#: A step of fewer tokens than this takes as long: on two cores 256 tokens took 0.14 s, 1,854 a second, 2026-11-25.
LEAST = 4096
#: Tokens of a step at most: the trainer's defaults, and for known weights what the shipped stacks have.
SCRATCH, KNOWN, CHAT = 524_288, 65_536, 32_768
#: Windows that the data should have at least; a shorter text gets shorter windows.
WINDOWS, SHORTEST = 32, 64
#: Tokens of a window of a chat, unless a longer one is needed and fits; a text has half.
WINDOW = 2048
#: Learning rate of known weights, as in the shipped stacks; a chat has the trainer's own.
RATE = 5e-5
#: Tokens from which known weights, and new ones, learn more than to repeat them.
LITTLE = {True: 10_000, False: 50_000}
LORA: dict[str, Any] = {"adapter": {"kind": "lora"}}
CHECKPOINTING: dict[str, Any] = {"model": {"checkpointing": True}}
FSDP: dict[str, Any] = {"engine": {"name": "fsdp"}}
#: GiB of a pod where the nodes are not known: the other stack's, else the first of these that is enough.
MEMORY = (4, 8, 16)
#: What is one stack's alone: names, a disk, its text.
OWN = {"cluster": ("name",), "storage": ("disk",), "dataset": ("name", "input", "tokenizer"), "job": ("name",)}
#: The Job ends after so many times the estimate, or hours a step where the model's size is unknown, and not before so
#: many hours, in which nodes may still be waited for: the bill of a training that hangs has an end.
LIMIT, STEP_HOURS, LEAST_HOURS = 3, 0.05, 6


def lent(like: str, own: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a stack file lends, with the values that only this person knows, such as the project.

    Raises:
        ConfigError: these values are refused.
    """
    values = {key: value for key, value in stack_file_values(like).items() if key not in ("secrets", *KEYS)}
    for key, names in OWN.items():
        values[key] = {name: value for name, value in (values.get(key) or {}).items() if name not in names}
    values = merge(values, own)
    given = tuple(f"{section}.{key}" for section, keys in own.items() for key in keys)
    if problems := [problem for problem in _read(values, name)[1] if problem.key.startswith(given)]:
        raise ConfigError(name, [*map(str, problems)])
    return values


def _read(values: Mapping[str, Any], stack: str) -> tuple[StackConfig | None, list[Finding]]:
    """A configuration, and why it is refused: also for the placeholders of a stack that is here as an example."""
    try:
        config = parse(values, stack)
    except ConfigError as error:
        return None, error.problems
    return config, [read_line(line) for line in cloud_of(config).placeholders(config)]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a person has asked for."""

    name: str
    like: str
    """The stack whose machines, volume and dataset Job it gets."""
    own: Mapping[str, Any]
    """Values of the stack file that only this person knows."""
    model: str
    """As `training.model.name`; empty: a GPT-2 from scratch."""
    weights: Path | None
    """The model's folder on this machine."""
    task: str
    input: str
    tokens: int | None
    """Of the data, about; None: unknown."""
    longest: int
    """Tokens of the longest conversation, at most; 0: unknown, or there is none."""
    passes: float | None
    """Over the data; None: what suits its size."""
    room: int = 0
    """The longest window that fits the machines; 0: any may."""

    def fitting(self) -> tuple[Draft, str, StackConfig]:
        """The first draft that fits its machines, the text of its file and its configuration. Raises ConfigError."""
        values = {**lent(self.like, self.own, self.name), "training": self.training}
        tokenizer = "" if self.model else self._before.dataset.tokenizer
        values["dataset"] = {
            "input": [self.input],
            **({"tokenizer": tokenizer} if tokenizer else {}),
            **values["dataset"],
        }
        refused: list[Finding] = []
        for change in self._changes():
            changed = merge(values, change)
            named = [] if self.weights is None else _read(self._here(changed), self.name)[1]
            problems = [line for line in named if _of_memory(line)] or _read(changed, self.name)[1]
            if not problems:
                hours = self._limit(parse(changed, self.name))
                return self, *self._written(merge(changed, {"job": {"maxHours": hours}} if hours else {}))
            refused = refused or problems
            if not all(map(_of_memory, problems)):
                raise ConfigError(self.name, [*map(str, problems)])
        if (length := self.training["sequenceLength"]) > WINDOW:
            return replace(self, room=length // 2).fitting()
        raise ConfigError(self.name, [*map(str, refused)])

    @cached_property
    def training(self) -> dict[str, Any]:
        """The section `training`, with a window and steps that suit the data."""
        before, chat, total, epochs = self._before.training, self.task == "finetune", self.learnt or 0, self.epochs
        rate, length = None if chat else RATE, WINDOW if chat else WINDOW // 2
        most, model = CHAT if chat else KNOWN, {"name": self.model}
        if not self.model:
            rate, most, model = None, SCRATCH, {"preset": before.model.preset or "small"}
            if before.model.preset:
                rate, most, length = before.optimizer.learning_rate, before.tokens_per_step, before.sequence_length
        few = max(WINDOWS, FEWEST * self._world / epochs)
        while length > SHORTEST and 0 < total < few * length and self.longest <= length // 2:
            length //= 2
        most_positions = min(self.room or 1 << 30, self.positions or max(length, WINDOW))
        while length < min(self.longest, most_positions // 2 + 1):
            length *= 2
        length = min(length, self.positions or length)
        size, most = length * self._world, min(most, max(LEAST, total * epochs / STEPS)) if total else most
        while 2 * size <= min(most, total * epochs / FEWEST or most):
            size *= 2
        while self.passes is None and 0 < total * epochs < FEWEST * size and epochs < EPOCHS:
            epochs += 1
        found = dict[str, Any](task=self.task, model=model, epochs=epochs, tokensPerStep=size, sequenceLength=length)
        optimizer: dict[str, Any] = {"learningRate": rate} if rate else {}
        if total:
            steps = math.ceil(total * epochs / size)
            optimizer["warmupSteps"] = steps // 20
            found["evaluation"] = {"every": min(250, max(1, steps // 10))}
        elif self.model and not chat:
            optimizer["warmupSteps"] = 20
        return {**found, **({"optimizer": optimizer} if optimizer else {})}

    @property
    def epochs(self) -> float:
        """A model from scratch learns from small data four times as well as from new text (arXiv 2305.16264)."""
        epochs = self.passes or (3 if self.model else 4 if (self.tokens or 1e9) < 1e9 else 1)
        return int(epochs) if epochs == int(epochs) else epochs

    @cached_property
    def positions(self) -> int:
        """The longest window that the model takes; 0: unknown."""
        if self.weights:
            found = json.loads((self.weights / "config.json").read_text("utf-8"))
            return int(found.get("n_positions") or found.get("max_position_embeddings") or 0)
        preset = PUBLISHED.get(self.model.removeprefix("openai-community/"))
        if preset or not self.model:
            return PRESETS[preset or self._before.training.model.preset or "small"].positions
        return next((row["positions"] for row in facts()["positions"] if re.search(row["name"], self.model.lower())), 0)

    @property
    def steps(self) -> int | None:
        """About; None where the size of the data is not known."""
        total = (self.learnt or 0) * self.training["epochs"]
        return math.ceil(total / self.training["tokensPerStep"]) if total else None

    @property
    def learnt(self) -> float | None:
        """Tokens of one epoch."""
        return self.tokens * (1 - self._before.dataset.validation_fraction) if self.tokens else None

    def hours(self, config: StackConfig) -> tuple[float, float] | None:
        """From the fastest to the slowest that is likely; None where a size or the machine is not known."""
        if self.weights:
            name = {"name": str(self.weights)}
            model = config.training.model.model_copy(update=name)
            config = replace(config, training=config.training.model_copy(update={"model": model}))
        rate, total = tokens_per_second(config), (self.learnt or 0) * self.training["epochs"]
        return (total / rate[1] / 3600, total / rate[0] / 3600) if rate and total else None

    def warnings(self) -> Iterator[str]:
        """What the training cannot do with this data."""
        length, steps, many = self.training["sequenceLength"], self.steps, self.tokens or 0
        if self.longest > length:
            why = "all that the model takes" if length == self.positions else "more, if the model takes it, cuts less"
            yield (
                f"the longest conversation has up to {self.longest:,} tokens; what is behind the first {length:,} is "
                f"cut off (training.sequenceLength: {'all that fits' if self.room else why})"
            )
        if steps and steps < FEWEST:
            least = f"each has at least a window of {length:,} tokens for each of {counted(self._world, 'worker')}"
            yield f"{counted(steps, 'step')} teach next to nothing ({least}): give more data, epochs or fewer workers"
        if 0 < many < LITTLE[bool(self.model)]:
            yield f"about {many:,} tokens teach a model little more than to repeat them: give more data"

    @cached_property
    def _before(self) -> StackConfig:
        return parse(stack_file_values(self.like), self.like)

    @property
    def _world(self) -> int:
        return self._before.workers.count * self._before.workers.processes

    def _here(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """With the model's folder of this machine, whose config.json the checks read."""
        return merge(values, {"training": {"model": {"name": str(self.weights)}}})

    def _limit(self, config: StackConfig) -> int:
        """Hours after which the Job ends; 0: the default."""
        hours = self.hours(config)
        most = LIMIT * hours[1] if hours else LEAST_HOURS + STEP_HOURS * self.steps if self.steps else 0.0
        most = min(most, config.job.max_hours) if not hours else most
        return max(LEAST_HOURS, math.ceil(most)) if most else 0

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
        yield from (merge(room, {"training": way}) for way in ways for room in rooms)

    def _written(self, values: Mapping[str, Any]) -> tuple[str, StackConfig]:
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
        return text, parse(ours(read_yaml(text, StackReader)["config"]), self.name)


def _of_memory(problem: Finding) -> bool:
    return problem.key == "training.engine.name"
