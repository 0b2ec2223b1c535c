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
from trainer.config.memory import LARGEST_CONFIG, PUBLISHED
from trainer.config.presets import PRESETS
from trainer.config.settings import Config
from trainer.config.values import StackReader, read_yaml
from trainer.plain import counted

#: Steps that a training should have; at least, if need be with shorter windows and more epochs; and epochs at most.
STEPS, FEWEST, EPOCHS = 300, 30, 10
#: A step of fewer tokens than this takes as long: on two cores 256 tokens took 0.14 s, 1,854 a second, 2026-11-25.
LEAST = 4096
#: Tokens of a step at most: the trainer's default, and for known weights what the shipped stacks have.
SCRATCH, KNOWN, CHAT = 524_288, 65_536, 32_768
#: Windows that an epoch should have at least; a shorter text gets shorter windows.
WINDOWS, SHORTEST = 32, 64
#: Keys of a model's config.json that tell the longest window it takes.
POSITIONS = ("n_positions", "max_position_embeddings")
#: Tokens of a window of a chat, unless a longer one is needed and fits; a text has half.
WINDOW = 2048
#: Learning rate of known weights, as in the shipped stacks; a chat has the trainer's own.
RATE = 5e-5
#: Tokens from which known weights, and new ones, learn more than to repeat them.
LITTLE = {True: 10_000, False: 50_000}
LORA: dict[str, Any] = {"adapter": {"kind": "lora"}}
CHECKPOINTING: dict[str, Any] = {"model": {"checkpointing": True}}
#: GiB of a pod where the nodes are not known: the other stack's, else the first of these that is enough.
POD_GIB = (4, 8, 16)
#: What is one stack's alone: names, a disk, its text.
OWN = {"cluster": ("name",), "storage": ("disk",), "dataset": ("name", "input", "tokenizer"), "job": ("name",)}
#: The key of which a model that needs too much memory is a problem.
MEMORY = "training.engine.name"
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
    if problems := [found for found in _problems(values, name) if found.key.startswith(given)]:
        raise ConfigError(name, [*map(str, problems)])
    return values


def positions_of(folder: Path) -> int:
    """The longest window that a model's config.json tells; 0 or less: it tells none. Raises what a wrong one causes."""
    file = folder / "config.json"
    if (size := file.stat().st_size) > LARGEST_CONFIG:
        raise ValueError(f"it has {size:,} bytes, which is no model's")
    config = json.loads(file.read_text("utf-8"))
    return max(int(config.get(key) or 0) for key in POSITIONS)


def _problems(values: Mapping[str, Any], stack: str) -> list[Finding]:
    """Why a configuration is refused: also for the placeholders of a stack that is here as an example."""
    try:
        config = parse(values, stack)
    except ConfigError as error:
        return error.problems
    return [read_line(line) for line in cloud_of(config).placeholders(config)]


@dataclass(frozen=True)
class Model:
    """The weights to begin with, or none."""

    name: str = ""
    """As `training.model.name`; empty: a model from scratch."""
    recipe: str = "gpt2"
    """As `training.recipe`."""
    folder: Path | None = None
    """On this machine, to be uploaded."""
    positions: int = 0
    """The longest window that the folder's config.json tells; 0 or less: it tells none."""


@dataclass(frozen=True)
class Data:
    """What is learnt."""

    input: str
    """As `dataset.input` names it."""
    tokens: int | None
    """About; None: unknown."""
    told: str
    """Its size in words."""
    here: Path | None = None
    """On this machine, to be uploaded."""
    longest: int = 0
    """Tokens of the longest conversation, at most; 0: there is none; -1: unknown."""


@dataclass(frozen=True, kw_only=True)
class NewStack:
    """What a person has asked for, and the training that follows from it."""

    name: str
    like: str
    """The stack whose machines, volume and dataset Job it gets."""
    own: Mapping[str, Any]
    """Values of the stack file that only this person knows."""
    model: Model
    data: Data
    task: str
    passes: float | None
    """Over the data; None: what suits its size."""
    room: int = 0
    """The longest window that fits the machines; 0: any may."""

    def write(self) -> tuple[NewStack, str, StackConfig]:
        """The first training that fits the machines, the text of its file and its configuration. Raises ConfigError."""
        values = {**lent(self.like, self.own, self.name), "training": self.training}
        values["dataset"] = {"input": [self.data.input], **values["dataset"]}
        if not self.model.name and (tokenizer := self._before.dataset.tokenizer):
            values["dataset"]["tokenizer"] = tokenizer
        refused: list[Finding] = []
        for change in self._ways():
            changed = merge(values, change)
            problems = _problems(changed, self.name)
            if self.model.folder:  # whose config.json tells the size of what will be on the volume
                here = merge(changed, {"training": {"model": {"name": str(self.model.folder)}}})
                problems = [each for each in _problems(here, self.name) if each.key == MEMORY] or problems
            if not problems:
                hours = self._limit(parse(changed, self.name))
                return self, *self._text(merge(changed, {"job": {"maxHours": hours}} if hours else {}))
            others = [each for each in problems if each.key != MEMORY]
            refused = refused or others or problems
            if others:
                raise ConfigError(self.name, [*map(str, refused)])
        if (length := self.training["sequenceLength"]) > WINDOW:
            return replace(self, room=length // 2).write()
        raise ConfigError(self.name, [*map(str, refused)])

    def _ways(self) -> Iterator[dict[str, Any]]:
        """Changes of which the first that lets the model fit is taken."""
        ways = [LORA, merge(LORA, CHECKPOINTING)]
        if self.task != "finetune":
            ways = [{}, CHECKPOINTING, *ways] if self.model.name else [{}]
        rooms: list[dict[str, Any]] = [{}]
        if self._before.nodes is None:
            rooms += [{"workers": {"memoryGib": gib}} for gib in POD_GIB if gib > self._before.workers.memory_gib]
        yield from (merge(room, {"training": way}) for way in ways for room in rooms)

    @cached_property
    def training(self) -> dict[str, Any]:
        """The section `training`, with a window, steps and epochs that suit the data."""
        before, chat, name, once = self._before.training, self.task == "finetune", self.model.name, self.learnt or 0
        # Tokens of a window, and of a step at most.
        length, most, rate = (WINDOW, CHAT, None) if chat else (WINDOW // 2, KNOWN, RATE)
        if not name:
            most, rate = SCRATCH, None
            if before.model.preset:
                length, most, rate = before.sequence_length, before.tokens_per_step, before.optimizer.learning_rate
            if self.model.recipe != before.recipe:
                rate = None  # the recipe's own
        # A model from scratch learns from small data four times as well as from new text (arXiv 2305.16264).
        epochs = self.passes or (3 if name else 4 if (self.data.tokens or 1e9) < 1e9 else 1)
        epochs = int(epochs) if epochs == int(epochs) else epochs
        if once and (self.longest or not chat):  # of unknown length, a shorter window might cut all
            windows = max(WINDOWS, FEWEST * self._world / epochs)
            length = min(length, max(SHORTEST, 1 << int(once / windows).bit_length() >> 1))
        most_of_window = min(self.room or 1 << 30, self.positions or max(length, WINDOW))
        length = min(max(length, 1 << (self.longest - 1).bit_length()), most_of_window)
        size = length * self._world
        if once:
            most = min(most, once * epochs / FEWEST, max(LEAST, once * epochs / STEPS))
        while 2 * size <= most:
            size *= 2
        if once and self.passes is None:
            epochs = max(epochs, min(EPOCHS, math.ceil(FEWEST * size / once)))
        model = {"name": name} if name else {"preset": self.preset}
        found = dict[str, Any](task=self.task, model=model, epochs=epochs, tokensPerStep=size, sequenceLength=length)
        if self.model.recipe != Config().recipe:
            found["recipe"] = self.model.recipe
        optimizer: dict[str, Any] = {"learningRate": rate} if rate else {}
        if once:
            steps = math.ceil(once * epochs / size)
            optimizer["warmupSteps"] = steps // 20
            found["evaluation"] = {"every": min(250, max(1, steps // 10))}
        elif name and not chat:
            optimizer["warmupSteps"] = 20
        return {**found, **({"optimizer": optimizer} if optimizer else {})}

    @property
    def preset(self) -> str:
        """The model from scratch: as large as the other stack's."""
        size = (self._before.training.model.preset or "small").removeprefix("modern-")
        modern = f"modern-{size}" if f"modern-{size}" in PRESETS else "modern-small"
        return modern if self.model.recipe == "modern" else size

    @property
    def longest(self) -> int:
        return max(0, self.data.longest) if self.task == "finetune" else 0

    @cached_property
    def positions(self) -> int:
        """The longest window that the model takes; 0: unknown."""
        name = self.model.name
        if self.model.folder:
            return max(0, self.model.positions)
        if (preset := PUBLISHED.get(name.removeprefix("openai-community/"))) or not name:
            return PRESETS[preset or self.preset].positions
        return next((row["positions"] for row in facts()["positions"] if re.search(row["name"], name.lower())), 0)

    @property
    def learnt(self) -> float | None:
        """Tokens of one epoch; None: unknown."""
        tokens = self.data.tokens
        return tokens * (1 - self._before.dataset.validation_fraction) if tokens else None

    @property
    def steps(self) -> int | None:
        """About; None where the size of the data is not known."""
        total = (self.learnt or 0) * self.training["epochs"]
        return math.ceil(total / self.training["tokensPerStep"]) if total else None

    def hours(self, config: StackConfig) -> tuple[float, float] | None:
        """From the fastest to the slowest that is likely; None where a size or the machine is not known."""
        if self.model.folder:
            model = config.training.model.model_copy(update={"name": str(self.model.folder)})
            config = replace(config, training=config.training.model_copy(update={"model": model}))
        rate, total = tokens_per_second(config), (self.learnt or 0) * self.training["epochs"]
        return (total / rate[1] / 3600, total / rate[0] / 3600) if rate and total else None

    def warnings(self) -> Iterator[str]:
        """What the training cannot do with this data."""
        length, steps, many = self.training["sequenceLength"], self.steps, self.data.tokens or 0
        if self.longest > length:
            why = "all that the model takes" if length == self.positions else "more, if the model takes it, cuts less"
            yield (
                f"the longest conversation has up to {self.longest:,} tokens; what is behind the first {length:,} is "
                f"cut off (training.sequenceLength: {'all that fits' if self.room else why})"
            )
        if steps and steps < FEWEST:
            least = f"each has at least a window of {length:,} tokens for each of {counted(self._world, 'worker')}"
            few = counted(steps, "step teaches", "steps teach")
            yield f"{few} next to nothing ({least}): give more data, epochs or fewer workers"
        if 0 < many < LITTLE[bool(self.model.name)]:
            yield f"about {many:,} tokens teach a model little more than to repeat them: give more data"

    @cached_property
    def _before(self) -> StackConfig:
        return parse(stack_file_values(self.like), self.like)

    @property
    def _world(self) -> int:
        return self._before.workers.count * self._before.workers.processes

    def _limit(self, config: StackConfig) -> int:
        """Hours after which the Job ends; 0: the default."""
        if hours := self.hours(config):
            return max(LEAST_HOURS, math.ceil(LIMIT * hours[1]))
        return math.ceil(min(LEAST_HOURS + STEP_HOURS * self.steps, config.job.max_hours)) if self.steps else 0

    def _text(self, values: Mapping[str, Any]) -> tuple[str, StackConfig]:
        """The text of the file with these values, and what is read from it. Raises ConfigError."""
        training = values["training"]
        learns = self.model.name or f"a model from scratch ({training['model']['preset']})"
        learns += " with LoRA" if "adapter" in training else ""
        does = "Fine-tunes" if self.task == "finetune" else "Trains"
        kept = {key: value for key, value in stack_file(self.like)["config"].items() if key.startswith("pulumi:")}
        content = {"config": kept | {f"{PROJECT}:{key}": value for key, value in values.items() if value}}
        text = (
            f"# {does} {learns} on {self.data.input}, with machines like those of {self.like}.\n"
            f"# Written by `trainyard init` on {datetime.now(UTC).date()}; docs/configuration.md has every key.\n"
            f"{yaml.safe_dump(content, sort_keys=False, width=110)}"
        )
        return text, parse(ours(read_yaml(text, StackReader)["config"]), self.name)
