"""The task finetune: a causal language model learns to answer as in given conversations; only answers have a loss."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trainer.config.schema import Config
from trainer.data import packing
from trainer.data.batches import open_dataset
from trainer.data.packing import Packed, PackedBatches
from trainer.models import capacity, networks
from trainer.models.generation import continued, ends
from trainer.tasks import pretrain
from trainer.tasks.work import Work

SHOWN = 2000
"""Characters that the sample shows of a long conversation (its end) and of a long expected answer (its start)."""


def make_work(config: Config, most: int | None = None) -> Work:
    """Raises UserError when the data is missing or does not fit the settings."""
    dataset = open_dataset(config.data.directory, config.data.verify, conversations=True)
    tokenizer = dataset.directory / "tokenizer.json"
    train, held_out = (
        packing.pack(split, config.sequence_length, name)
        for name, split in (("training", dataset.train), ("validation", dataset.validation))
    )
    if os.environ.get("RANK", "0") == "0":
        packing.tell(train, "train")
        packing.tell(held_out, "validation")
    net, size, work = pretrain.of_model(config, dataset, most, packed=True)
    stop_after_answers(net, train, tokenizer)
    tokens = config.evaluation.sample_tokens
    batches = PackedBatches(train, size, config.windows_per_step, config.run.seed)
    count = config.evaluation.batches * (config.micro_batch or capacity.UNIT)
    validation = Validation(held_out, size, count, tokenizer)
    return work(
        batches=batches,
        validation=validation,
        items_per_step=batches.answers_per_step,
        weight=batches.weight,
        sample=(lambda: sample(net, held_out, tokenizer, tokens, config.run.seed)) if tokens else None,
        validation_figures=validation.figures,
    )


class Validation(pretrain.Validation):
    """Held-out windows, spread evenly; the loss is the mean over their answer tokens."""

    def __init__(self, packed: Packed, micro_batch: int, most: int, tokenizer: Path) -> None:
        self._gather = packed.gather
        self._windows = pretrain.spread(len(packed), most)
        self.tokens = int(packed.answers[self._windows].sum())
        self._micro_batch, self._tokenizer, self._latest = micro_batch, tokenizer, math.nan


def stop_after_answers(net: Any, packed: Packed, tokenizer: Path) -> None:
    """Name the tokens that close answers in generation_config.json: the base model may end texts with another."""
    known = Tokenizer.from_file(str(tokenizer)).get_added_tokens_decoder()
    closing = [token for token in packed.closing() if token in known]
    if not set(closing) <= set(ends(net)):
        net.generation_config.eos_token_id = list(
            dict.fromkeys([*closing, *(end for end in ends(net) if end is not None)])
        )


def sample(net: Any, packed: Packed, tokenizer: Path, tokens: int, seed: int) -> str:
    """The first held-out question, the model's answer and the answer in the data."""
    question, expected = packed.answer(0)
    drawn = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "count": 1}
    [found] = continued(net, question.tolist(), tokens, seed=seed, **drawn)
    begin = len(question)
    if (positions := networks.positions(net.config)) is not None:
        begin = min(begin, positions - 1)
    decode = Tokenizer.from_file(str(tokenizer)).decode
    asked, answered, wanted = (decode(np.asarray(ids).tolist()).strip() for ids in (question, found[begin:], expected))
    return f"{asked[-SHOWN:]}\n\n--- the model answers\n{answered}\n\n--- the data answers\n{wanted[:SHOWN]}"
