"""Inputs on a volume where others write, and errors of parsers: each is one line with its place and what helps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from tests.trainer.data.test_sources import TEXTS, records
from trainer import prepare
from trainer.data import sources
from trainer.data.batches import open_dataset
from trainer.data.documents import TextField, plan, units
from trainer.data.sources import find
from trainer.errors import UserError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 1048576\n"


def texts(name: str | Path, how: str = "file") -> list[str]:
    found = find([str(name)])
    return [unit.text for piece in plan(found, how) for unit in units(piece, how, TextField("text"))]


def refusal(name: str | Path, how: str = "file") -> str:
    with pytest.raises(UserError) as caught:
        texts(name, how)
    said = str(caught.value)
    assert "\n" not in said
    assert "run the same command again" not in said
    return said


@pytest.mark.parametrize(
    "ending",
    [".txt", ".md", ".jsonl", ".json", ".jsonl.gz", ".txt.zst", ".jsonl.bz2", ".txt.xz", ".parquet"],
)
def test_a_git_lfs_pointer_is_named_as_such_for_every_kind_of_file(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"data{ending}").write_bytes(POINTER)
    for name in (tmp_path / f"data{ending}", tmp_path):
        assert f"data{ending}: is a Git LFS pointer" in refusal(name)
    fsspec.filesystem("memory").pipe(f"/pointers/data{ending}", POINTER)
    assert f"data{ending}: is a Git LFS pointer" in refusal(f"memory://pointers/data{ending}")


NESTED = b'{"text": "a", "x": ' + b"[" * 99_999 + b"]" * 99_999 + b"}"
RECURSION = "Stack overflow" if sys.version_info >= (3, 14) else "maximum recursion depth"
BROKEN: dict[str, tuple[bytes, str]] = {
    "5,000 digits": (b'{"text": "a", "unread": ' + b"7" * 5000 + b"}", "cannot be read: Exceeds the limit"),
    "nested": (NESTED, f"cannot be read: {RECURSION}"),
    "Latin-1": (b'{"text": "caf\xe9"}', "not JSON: 'utf-8' codec can't decode"),
    "half an escape": (b'{"text": "\\u12"}', "not JSON"),
    "a control character": (b'{"text": "a\x01"}', "not JSON: Invalid control character"),
    "NaN": (b'{"text": NaN}', "holds a number, not text"),
    "Infinity": (b'{"text": -Infinity}', "holds a number, not text"),
    "a NUL": (b"\x00", "not JSON"),
    "two on a line": (b'{"text": "a"}{"text": "b"}', "not JSON: Extra data"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst"])
def test_an_error_of_the_parser_has_its_file_and_line(kind: str, ending: str, tmp_path: Path) -> None:
    line, expected = BROKEN[kind]
    content = records(TEXTS[:6]) + line + b"\n" + records(TEXTS)
    path = tmp_path / f"a{ending}"
    path.write_bytes(zstandard.compress(content) if ending.endswith("zst") else content)
    said = refusal(path)
    assert said.startswith(f"--input {path}, line 7: ")
    assert expected in said


def test_text_that_is_not_utf_8_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\nfine\n\n\nLatin: caf\xe9.\n")
    for how in ("file", "lines", "blank-lines", "end-of-text"):
        assert f"{tmp_path / 'a.txt'}, line 5: not UTF-8 text" in refusal(tmp_path / "a.txt", how)


def test_a_large_zstd_window_is_read_and_a_larger_one_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def packed(window: int) -> bytes:
        parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window)
        maker = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # of unknown size: as from a pipe
        return maker.compress(records(TEXTS)) + maker.flush()

    for window in (27, 28):
        (tmp_path / "a.jsonl.zst").write_bytes(packed(window))
        assert zstandard.get_frame_parameters((tmp_path / "a.jsonl.zst").read_bytes()).window_size == 1 << window
        assert texts(tmp_path / "a.jsonl.zst") == TEXTS
    (tmp_path / "a.jsonl.zst").write_bytes(packed(29))
    said = refusal(tmp_path / "a.jsonl.zst")
    assert "needs a zstd window of more than the 256 MiB that are read" in said
    assert "damaged" not in said
    if shutil.which("zstd"):
        command = said.partition("with a smaller one: ")[2].replace("FILE", "a.jsonl.zst")
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
        assert texts(tmp_path / "NEW.zst")


@pytest.mark.parametrize("harm", ["footer", "page", "truncated", "text"])
def test_damaged_parquet_is_called_that(harm: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": TEXTS}), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    if harm == "footer":
        content[-20:-8] = b"\xff" * 12
    elif harm == "page":
        content[4:400] = bytes(396)
    path.write_bytes({"truncated": content[:-50], "text": b"no parquet"}.get(harm, bytes(content)))
    assert f"{path}: is damaged or cut short" in refusal(path)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".txt"])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    monkeypatch.setattr(sources, "LONGEST_LINE", 1 << 20)
    content = b'{"text": "fine"}\n' * 3 + b'{"text": "' + b"x" * (1 << 20) + b'"}\n'
    path = tmp_path / f"a{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    said = refusal(path, "lines")
    assert f"{path}, line 4: has more than 1 MiB, the most that a line may have" in said
    path.write_bytes(gzip.compress(content[:-20] + b'"}\n') if ending.endswith("gz") else content[:-20] + b'"}\n')
    assert len(texts(path, "lines")) == 4


def test_a_line_may_have_64_mib(tmp_path: Path) -> None:
    path, content = tmp_path / "a.jsonl", b'{"text": "' + b"x" * (64 << 20)
    path.write_bytes(content[: (64 << 20) - 3] + b'"}\n')
    assert len(texts(path, "lines")) == 1
    path.write_bytes(content[: (64 << 20) - 2] + b'"}\n')
    assert "line 1: has more than 64 MiB, the most that a line may have" in refusal(path, "lines")


ODD: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device": lambda path: os.mknod(path, 0o20666, os.makedev(1, 5)),
    "No such file": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".parquet", ".jsonl.gz"])
def test_odd_files_in_a_folder_are_named_and_not_opened(odd: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("Fine.")
    ODD[odd](tmp_path / "in" / f"b{ending}")
    for name in (tmp_path / "in", tmp_path / "in" / f"*{ending}", tmp_path / "i*" / f"b{ending}"):
        said = refusal(name)
        assert f"b{ending}" in said
        assert odd in said


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "123").write_bytes(records(TEXTS))
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "a.jsonl").symlink_to("../blobs/123")
    (tmp_path / "mine").symlink_to("snapshot")
    for name in (
        tmp_path / "snapshot",
        tmp_path / "mine",
        tmp_path / "mine" / "*.jsonl",
        tmp_path / "mine" / "a.jsonl",
    ):
        assert texts(name) == TEXTS


@pytest.fixture
def dataset(tmp_path: Path, tokenizer: Path) -> Path:
    (tmp_path / "a.jsonl").write_bytes(records(TEXTS))
    command = ["--input", str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "out"), "--tokenizer", str(tokenizer)]
    assert prepare.main(command) == 0
    return tmp_path / "out"


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["index.json", "train"])
def test_an_odd_shard_or_index_is_refused_by_a_training(odd: str, name: str, dataset: Path) -> None:
    path = dataset / name if name == "index.json" else next(dataset.glob("train-*.bin"))
    path.unlink()
    ODD[odd](path)
    with pytest.raises(UserError, match=r"^data\.directory: ") as caught:
        open_dataset(str(dataset), verify=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"splits": {}},
        {"splits": []},
        {"splits": None},
        {"dtype": "nonsense"},
        {"vocabulary": "many"},
        {"end_of_text": None},
    ]
    + [{"splits": {"train": {"shards": [shard]}, "validation": {"shards": []}}} for shard in ({}, 5, {"file": 5})]
    + [
        {"splits": {"train": {"shards": [{"file": name, "tokens": 1}]}, "validation": {"shards": []}}}
        for name in ("../a", "/etc/passwd", "a\0")
    ],
    ids=str,
)
def test_an_index_of_another_form_is_one_line(change: dict[str, Any], dataset: Path) -> None:
    index = dataset / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    with pytest.raises(UserError, match=r"index\.json is damaged \(.*\); run python -m trainer.prepare"):
        open_dataset(str(dataset))
