"""Batches are a function of (seed, step): no gap, no repeat, whatever the number of workers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.batches import Tokens, gather, open_dataset, permute, share, text_batches, windows
from trainer.errors import UserError
from trainer.parallel.world import World
from trainer.train import feed

seeds = st.integers(0, 2**31)
GOLDEN = [854, 706, 317, 389, 749, 88, 148, 817]
"""What permute gave when the format was fixed."""


def in_memory(values: np.ndarray) -> Tokens:
    """A Tokens over one array instead of files."""
    tokens = Tokens([])
    tokens._shards = [values]
    tokens._starts = np.array([0, len(values)])
    return tokens


@given(size=st.integers(1, 3000), seed=seeds, epoch=st.integers(0, 5))
def test_the_order_of_an_epoch_visits_every_window_once(size: int, seed: int, epoch: int) -> None:
    visited = permute(np.arange(size, dtype=np.uint64), size, seed, epoch)
    assert sorted(visited.tolist()) == list(range(size))


def test_the_order_never_changes_between_versions() -> None:
    """A run that resumes after an upgrade must go on in the same order."""
    assert permute(np.arange(8, dtype=np.uint64), 1000, seed=1337, epoch=2).tolist() == GOLDEN


@given(
    data=st.data(),
    micro_batches=st.integers(1, 6),
    micro_batch=st.integers(1, 4),
    length=st.integers(1, 9),
    tokens=st.integers(30, 150),
    seed=seeds,
)
@settings(max_examples=40)
def test_steps_visit_every_window_once_an_epoch_at_any_world_size(
    data: st.DataObject, micro_batches: int, micro_batch: int, length: int, tokens: int, seed: int
) -> None:
    stream = in_memory(np.arange(tokens, dtype=np.uint16))
    per_step = micro_batches * micro_batch * length
    batches = text_batches(stream, length, micro_batch, per_step, seed)
    count = windows(tokens, length)
    steps = -(-2 * count // (micro_batches * micro_batch))
    visited: list[int] = []
    for step in range(steps):
        world = data.draw(st.integers(1, 7))  # members come and go between steps
        seen = {
            m: batches.indices(step, m).tolist() for rank in range(world) for m in share(micro_batches, rank, world)
        }
        visited += [index for number in range(micro_batches) for index in seen[number]]
    assert sorted(visited[:count]) == list(range(count))
    assert sorted(visited[count : 2 * count]) == list(range(count))


@given(seed=seeds, step=st.integers(0, 1000))
@settings(max_examples=20)
def test_a_step_holds_the_same_windows_however_it_is_cut_into_micro_batches(seed: int, step: int) -> None:
    stream = in_memory(np.arange(1000, dtype=np.uint16))
    cuts = [text_batches(stream, 8, size, 96, seed) for size in (1, 2, 3, 4, 6, 12)]
    steps = [[i for n in range(b.per_step) for i in b.indices(step, n).tolist()] for b in cuts]
    assert all(own == steps[0] for own in steps)


def test_targets_are_the_next_tokens_and_windows_join() -> None:
    inputs, targets = gather(in_memory(np.arange(50, dtype=np.uint16)), np.array([0, 1, 2]), 8)
    assert inputs.ravel().tolist() == list(range(24))
    assert targets.ravel().tolist() == list(range(1, 25))


@given(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=6), data=st.data())
def test_shards_read_as_one_stream(cuts: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(cuts), dtype=np.uint16)
    tokens = in_memory(whole)
    tokens._shards = list(np.split(whole, np.cumsum(cuts)[:-1]))
    tokens._starts = np.cumsum([0, *cuts])
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(1, len(whole) - start))
    assert tokens.read(start, length).tolist() == whole[start : start + length].tolist()


def test_a_dataset_opens_with_all_its_shards(dataset: Path) -> None:
    opened = open_dataset(str(dataset), verify=True)
    assert len(list(dataset.glob("train-*.bin"))) > 1
    assert len(opened.train) == sum(path.stat().st_size for path in dataset.glob("train-*.bin")) // 2
    assert int(opened.train.read(0, len(opened.train)).max()) < opened.vocabulary


@pytest.mark.parametrize("harm", ["missing", "short", "flipped"])
def test_a_damaged_shard_is_named(dataset: Path, tmp_path: Path, harm: str) -> None:
    shutil.copytree(dataset, tmp_path, dirs_exist_ok=True)
    shard = sorted(tmp_path.glob("train-*.bin"))[1]
    content = shard.read_bytes()
    if harm == "missing":
        shard.unlink()
    else:
        shard.write_bytes(content[:-2] if harm == "short" else bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(UserError, match=rf"{shard.name} .*trainer\.prepare"):
        open_dataset(str(tmp_path), verify=True)


def test_too_little_text_for_one_window_is_told() -> None:
    with pytest.raises(UserError, match=r"10 tokens.*sequence_length=16"):
        text_batches(in_memory(np.arange(10, dtype=np.uint16)), 16, 1, 16, seed=0)


def test_an_id_outside_the_vocabulary_is_told_with_its_place(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path, dirs_exist_ok=True)
    shard = sorted(tmp_path.glob("train-*.bin"))[0]
    ids = np.fromfile(shard, np.uint16)
    ids[70] = 60_000
    ids.tofile(shard)
    opened = open_dataset(str(tmp_path))
    gather(opened.train, np.array([0, 3]), 32)
    with pytest.raises(UserError, match=rf"{shard.name}, token 70 is 60000, outside the vocabulary of 500"):
        gather(opened.train, np.array([0, 1, 2]), 32)


def test_auto_verifies_what_is_small(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(dataset, tmp_path, dirs_exist_ok=True)
    shard = sorted(tmp_path.glob("validation-*.bin"))[0]
    shard.write_bytes(shard.read_bytes()[::-1])
    with pytest.raises(UserError, match="does not match its checksum"):
        open_dataset(str(tmp_path), "auto")
    monkeypatch.setattr("trainer.data.batches.VERIFIED_BYTES", 1000)
    open_dataset(str(tmp_path), "auto")
    open_dataset(str(tmp_path), False)


def test_micro_batches_are_pinned_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are apart in memory would be copied to the device through pageable memory, with a wait."""
    pinned: list[tuple[int, ...]] = []

    def pin(values: torch.Tensor) -> torch.Tensor:
        assert values.is_contiguous(), values.stride()
        pinned.append(tuple(values.stride()))
        return values

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    batches = text_batches(in_memory(np.arange(2001, dtype=np.uint16)), 20, 4, 160, seed=1)
    world = World(rank=0, size=1, local_rank=0, round=1, device=torch.device("cuda"))
    with feed.ThreadPoolExecutor(1) as reader:
        reading = object.__new__(feed.Feed)
        reading._batches, reading._world = batches, world
        inputs, targets = reader.submit(reading._read, 0, 1).result()
    assert pinned == [(20, 1), (20, 1)]
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_all_windows_of_a_micro_batch_are_asked_for_before_the_first_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On network storage, each window would cost a round trip of its own."""
    path = tmp_path / "shard.bin"
    np.arange(60_000, dtype=np.uint16).tofile(path)
    tokens = Tokens([path, path])
    calls: list[tuple[str, int]] = []

    def watched(name: str) -> Any:
        real = getattr(Tokens, name)
        return lambda self, start, length: calls.append((name, start)) or real(self, start, length)

    for name in ("announce", "read"):
        monkeypatch.setattr(Tokens, name, watched(name))
    indices = np.array([2, 59, 117])  # across a border of pages, of the two shards, and of nothing
    gather(tokens, indices, 1010)  # the kernel refuses an announcement that does not begin with a page
    assert calls == [(name, index * 1010) for name in ("announce", "read") for index in indices.tolist()]


def test_the_digest_is_that_of_the_tokens_and_not_of_the_folder(dataset: Path, tmp_path: Path) -> None:
    first = open_dataset(str(dataset)).digest
    other = shutil.copytree(dataset, tmp_path / "data")
    assert first == open_dataset(str(other)).digest != ""
    index = json.loads((other / "index.json").read_text())
    for split, change in (("train", {"sha256": "0" * 64}), ("validation", {"sha256": "1" * 64})):
        changed = json.loads(json.dumps(index))
        changed["splits"][split]["shards"][0] |= change
        (other / "index.json").write_text(json.dumps(changed))
        assert open_dataset(str(other)).digest != first


@pytest.mark.parametrize("other", [{}, {"dtype": "uint16", "splits": []}])
def test_an_index_of_another_program_is_one_line(tmp_path: Path, other: dict[str, Any]) -> None:
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, **other}))
    with pytest.raises(UserError, match=r"index\.json is damaged or of another program; prepare it again"):
        open_dataset(str(tmp_path))
