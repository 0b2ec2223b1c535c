"""Packing puts each conversation into a window whole, once, and in the same way each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.batches import Tokens
from trainer.data.loss_mask import BEGINS, COUNTS
from trainer.data.packing import IGNORED, PackedBatches, pack
from trainer.data.shards import table
from trainer.errors import UserError

Conversation = list[bool]
"""For each of its tokens, whether its loss counts."""

CONVERSATIONS = st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


def written(folder: Path, conversations: list[Conversation], vocabulary: int = 1 << 20) -> Tokens:
    """Write two shards; the ids count on through all conversations."""
    paths, sizes, first = [], [], 0
    for number, part in enumerate((conversations[::2], conversations[1::2])):
        if not part:
            continue
        values = np.concatenate([np.array(conversation) * COUNTS for conversation in part]).astype(np.uint32)
        values |= np.arange(first, first + len(values), dtype=np.uint32)
        values[np.cumsum([0, *map(len, part[:-1])])] |= BEGINS
        path = folder / f"{number}.bin"
        path.unlink(missing_ok=True)
        path.write_bytes(values.tobytes() + table(values).tobytes())
        paths.append(path)
        sizes.append(len(values))
        first += len(values)
    return Tokens(paths, "uint32", vocabulary, sizes)


@settings(max_examples=40)
@given(CONVERSATIONS, st.integers(2, 9))
def test_each_token_that_counts_is_a_target_once_with_what_stands_before_it(
    folder: Path, conversations: list[Conversation], length: int
) -> None:
    ordered = [*conversations[::2], *conversations[1::2]]
    kept = [conversation[: length + 1] for conversation in ordered]
    wanted, first = [], 0
    for whole, part in zip(ordered, kept, strict=True):
        wanted += [first + number for number, counts in enumerate(part) if counts and number]
        first += len(whole)
    tokens = written(folder, conversations)
    if not wanted:
        with pytest.raises(UserError, match="no answer within the first sequence_length"):
            pack(tokens, length, "training")
        return
    packed = pack(tokens, length, "training")
    assert packed.cut == sum(len(conversation) > length + 1 for conversation in ordered)
    assert packed.dropped == sum(not any(conversation[1:]) for conversation in kept)
    inputs, targets, positions = packed.gather(np.arange(len(packed)))
    counts = targets != IGNORED
    assert sorted(targets[counts].tolist()) == wanted
    assert (inputs[counts] == targets[counts] - 1).all()  # ids are consecutive
    assert counts.sum(1).tolist() == packed.answers.tolist()
    assert (packed.answers > 0).all()
    # Positions count on from the conversation's first token, whose id is known.
    starts = np.cumsum([0, *map(len, ordered)])
    places = np.searchsorted(starts, inputs[counts], side="right") - 1
    assert (positions[counts] == inputs[counts] - starts[places]).all()
    assert (np.diff(positions, axis=1, prepend=-1)[positions > 0] == 1).all()
    again = pack(tokens, length, "training")
    assert all(
        (one == two).all()
        for one, two in zip(packed.gather(np.arange(len(packed))), again.gather(np.arange(len(again))), strict=True)
    )


def test_windows_are_filled(folder: Path) -> None:
    sizes = np.random.default_rng(0).integers(5, 200, 2000)
    packed = pack(written(folder, [[True] * int(size) for size in sizes]), 256, "training")
    assert (packed.sizes - 1).sum() / (len(packed) * 256) > 0.95


def test_an_epoch_visits_every_window_once_and_weights_even_steps_out(folder: Path) -> None:
    sizes = np.random.default_rng(1).integers(3, 9, 60)
    packed = pack(written(folder, [[False, *[True] * (int(size) - 1)] for size in sizes]), 16, "training")
    small, large = (PackedBatches(packed, size, 4, seed=5) for size in (1, 4))
    steps = len(packed)  # four windows each: four epochs
    seen = [tuple(small.indices(step, 0, 4)) for step in range(steps)]
    assert np.bincount(np.concatenate(seen)).tolist() == [4] * len(packed)
    for step in range(steps):
        ones, whole = [small.get(step, number) for number in range(4)], large.get(step, 0)
        assert all(
            (np.concatenate(part) == all_of_it).all()
            for part, all_of_it in zip(zip(*ones, strict=True), whole, strict=True)
        )
        answers = (whole[1] != IGNORED).sum()
        assert small.weight(step) == large.weight(step) == pytest.approx(small.answers_per_step / answers)
    assert small.answers_per_step == pytest.approx(packed.answers.mean() * 4, abs=0.5)


def test_shards_that_do_not_belong_to_their_index_are_named(folder: Path) -> None:
    packed = pack(written(folder, [[True] * 5] * 4, vocabulary=7), 8, "training")
    with pytest.raises(UserError, match=r"0.bin, token 9 is 9, outside the vocabulary of 7"):
        packed.gather(np.arange(len(packed)))
