"""The task language_model: a causal language model learns to continue text."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from trainer.checkpoint.format import list_checkpoints, load_weights
from trainer.config.schema import Config
from trainer.data.batches import Dataset, Tokens, gather, open_dataset, text_batches, windows
from trainer.data.text_size import TextSize, bits_per_byte
from trainer.data.tokenizer import save_tokenizer
from trainer.errors import UserError
from trainer.files import read_json
from trainer.models import adapters, capacity, checks, networks
from trainer.models.causal import IGNORED
from trainer.models.generation import continuations
from trainer.models.gpt2 import LanguageModel
from trainer.parallel.world import World
from trainer.tasks.work import Weights, Work, shares

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

COUNTED = 1024
"""Windows whose bytes are counted at once; their tokens take a few megabytes of memory."""


def of_model(
    config: Config, dataset: Dataset, most: int | None = None, packed: bool = False
) -> tuple["PreTrainedModel", int, Callable[..., Work]]:
    """The model, its micro-batch, and a Work that lacks only what follows from the data.

    most: the largest micro-batch. packed: several texts share a row.
    Raises UserError when the model does not fit the data or the settings.
    """
    tokenizer = dataset.directory / "tokenizer.json"
    net = network(config, dataset, tokenizer)
    adapter = adapters.Adapter(net, config) if config.adapter.kind != "none" else None
    key = "model.config" if config.model.config else "model.name"
    module = networks.module(net, config.model.checkpointing, packed, config.engine.name == "fsdp", key)
    known = config.task in ("language_model", "finetune")  # and no teacher beside it
    size = capacity.micro_batch(config, most, net.config.get_text_config() if known else None)

    def save_model(weights: Weights, folder: Path) -> None:
        if adapter:
            adapter.save(weights, folder)
        else:
            # Keep the module's names, which the resume reads; the export makes others (Mixtral's).
            networks.save(net, weights, folder, save_original_format=False)
        save_tokenizer(tokenizer, folder, networks.positions(net.config), dataset.end_of_text)

    def load_model(folder: Path) -> None:
        if adapter:
            adapter.load(folder)
        else:
            load_weights(folder.parent, net)

    work = functools.partial(
        Work,
        net=net,
        module=module,
        tokens_per_step=config.tokens_per_step,
        samples_per_step=config.windows_per_step,
        flops_per_token=networks.flops_per_token(net, config.sequence_length),
        save_model=save_model,
        load_model=load_model,
        data=dataset.digest,
        check=functools.partial(checks.check, key, module),
        activations=module.attention_statistics
        if config.metrics.attention_statistics and isinstance(module, LanguageModel)
        else None,
    )
    return net, size, work


#: Tokens of the validation text that are the sample's prompt where none is given.
PROMPT_TOKENS = 16


def beginning(text: Tokens, encoding: Tokenizer) -> str:
    """The first words of a tokenised text."""
    return encoding.decode(text.read(0, min(PROMPT_TOKENS, len(text))).tolist()).strip()


def make_work(config: Config, most: int | None = None) -> Work:
    """Raises UserError when the data is missing or does not fit the settings."""
    dataset = open_dataset(config.data.directory, config.data.verify)
    tokenizer = dataset.directory / "tokenizer.json"
    net, size, work = of_model(config, dataset, most)
    evaluation = config.evaluation

    def sample() -> str:
        encoding = Tokenizer.from_file(str(tokenizer))
        return continuations(
            net,
            encoding,
            evaluation.prompt or beginning(dataset.validation, encoding),
            evaluation.sample_tokens,
            temperature=evaluation.sample_temperature,
            seed=config.run.seed,
        )[0]

    validation = Validation(
        dataset.validation,
        config.sequence_length,
        size,
        evaluation.batches,
        config.micro_batch or capacity.UNIT,
        tokenizer=tokenizer,
    )
    return work(
        batches=text_batches(dataset.train, config.sequence_length, size, config.tokens_per_step, config.run.seed),
        validation=validation,
        items_per_step=config.tokens_per_step,
        expected_loss=None if config.model.name else math.log(net.config.get_text_config().vocab_size),
        sample=sample if evaluation.sample_tokens > 0 else None,
        validation_figures=validation.figures,
    )


def network(config: Config, dataset: Dataset, tokenizer: Path) -> "PreTrainedModel":
    """The model to train, with fresh or given weights.

    A run that has a checkpoint resumes its weights from there. Here it needs only the shape, also from the checkpoint:
    the folder or hub name that it began with may be gone by now. An adapter's base model is in no checkpoint.
    """
    model, words, length = config.model, dataset.largest + 1, config.sequence_length
    if model.size:
        return networks.from_preset(model.size, dataset.vocabulary, dataset.end_of_text, config.run.seed, length)
    if config.adapter.kind != "none":
        return networks.load(model.name, words, length, tokenizer, dtype="auto")
    for path in reversed(list_checkpoints(Path(config.run.directory))):
        if read_json(path / "model" / "config.json"):  # else damaged: the resume skips it, too
            return networks.shaped_as(path / "model")
    if model.config:
        return networks.from_config(model.config, words, dataset.end_of_text, length, config.run.seed)
    return networks.load(model.name, words, length, tokenizer)


class Validation:
    """A fixed set of windows spread evenly over the validation split."""

    def __init__(
        self, tokens: Tokens, length: int, micro_batch: int, batches: int, unit: int = 0, *, tokenizer: Path
    ) -> None:
        """unit: windows in each of `batches`, fixed where the micro-batch follows from the machine; 0: micro_batch."""
        available = windows(len(tokens), length)
        if available == 0:
            raise UserError(
                f"the validation split has {len(tokens)} tokens: too few for one window of "
                f"sequence_length={length}; raise --validation-fraction in trainer.prepare or lower sequence_length"
            )
        self._gather: Callable[[np.ndarray], tuple[np.ndarray, ...]] = lambda chosen: gather(tokens, chosen, length)
        self._micro_batch = micro_batch
        self._windows = spread(available, batches * (unit or micro_batch))
        self.tokens = len(self._windows) * length
        self._tokenizer, self._latest = tokenizer, math.nan

    @torch.no_grad()
    def loss(
        self, model: nn.Module, world: World, dtype: torch.dtype, stopping: Callable[[], bool] = lambda: False
    ) -> float:
        """Mean token loss in nats. Raises Interrupted on every worker once `stopping()` is true on any."""
        total = torch.zeros((), device=world.device, dtype=torch.float64)
        count = torch.zeros((), device=world.device, dtype=torch.float64)
        for number in shares(model, math.ceil(len(self._windows) / self._micro_batch), world, stopping):
            chosen = self._windows[number * self._micro_batch :][: self._micro_batch]
            # Without windows left, run a pass of weight 0: divided weights are gathered from all workers.
            weight, chosen = (1, chosen) if len(chosen) else (0, self._windows[: self._micro_batch])
            parts = [torch.from_numpy(part).to(world.device) for part in self._gather(chosen)]
            with torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
                total += model(*parts).double() * weight
            count += (parts[1] != IGNORED).sum() * weight
        loss_sum, tokens = world.sum(total, count).tolist()
        self._latest = loss_sum / tokens
        return self._latest

    def figures(self) -> dict[str, float]:
        """The latest loss in bits per byte of text."""
        return {"bits_per_byte": bits_per_byte(self._latest, self.tokens, self._bytes)}

    @functools.cached_property
    def _bytes(self) -> int:
        """Bytes in the text of all targets, counted at the first validation and not at each start."""
        size = TextSize(self._tokenizer)
        batches = np.array_split(self._windows, math.ceil(len(self._windows) / COUNTED))
        found = 0
        for inputs, targets, *_ in map(self._gather, batches):
            counts = targets != IGNORED
            found += size.count(targets[counts], inputs[counts])
        return found


def spread(available: int, most: int) -> np.ndarray:
    """The numbers of at most `most` of the available windows, questions or layers, spread evenly."""
    return np.linspace(0, available - 1, min(available, most)).round().astype(np.int64)
