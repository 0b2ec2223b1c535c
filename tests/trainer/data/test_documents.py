"""Every kind of file that is read, each document once, and one line with its place for what cannot be read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from trainer.data import documents, sources
from trainer.data.documents import TextField, plan, units
from trainer.data.sources import find
from trainer.errors import UserError

TEXTS = [
    f"Document {number} says: light is not similar, {'very ' * (number % 7)}homogeneal.\n\nTwice."
    for number in range(60)
]
END = "<|endoftext|>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 1048576\n"


def records(texts: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": n, field: text}) + "\n" for n, text in enumerate(texts)).encode()


def read(name: str | Path, how: str = "file", field: str = "text") -> list[str]:
    """The texts of all units, as the pieces have them."""
    pieces = plan(find([str(name)]), how)
    return [unit.text for piece in pieces for unit in units(piece, how, TextField(field))]


def pieces(name: str | Path, how: str = "file") -> int:
    return len(plan(find([str(name)]), how))


def refusal(name: str | Path, how: str = "file") -> str:
    with pytest.raises(UserError) as caught:
        read(name, how)
    said = str(caught.value)
    assert "\n" not in said
    assert "run the same command again" not in said
    return said


PACKED = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("ending", PACKED)
def test_json_lines_plain_and_compressed_in_several_parts(tmp_path: Path, ending: str) -> None:
    parts = [PACKED[ending](records(part)) for part in (TEXTS[:25], TEXTS[25:])]
    (tmp_path / f"data.jsonl{ending}").write_bytes(b"".join(parts))
    assert read(tmp_path / f"data.jsonl{ending}") == TEXTS


def test_parquet_with_a_field_of_another_name(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(60)), "body": [None, *TEXTS[1:]]})
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=13)
    assert read(tmp_path / "data.parquet", field="body") == TEXTS[1:]


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["one"]), pa.array(["two"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "data.parquet")
    assert "data.parquet: has two columns text; rename or remove one of them" in refusal(tmp_path / "data.parquet")


@pytest.mark.parametrize(
    ("how", "joint"), [("lines", "\n"), ("blank-lines", "\n \n\n"), ("end-of-text", f"\n{END}\n"), ("file", "\n\n")]
)
def test_documents_in_a_text_file(tmp_path: Path, how: str, joint: str) -> None:
    texts = [text.replace("\n\n", " ") for text in TEXTS] if how != "end-of-text" else TEXTS
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbf" + joint.join(texts).replace("\n", "\r\n").encode())
    found = read(tmp_path / "text.txt", how)
    if how == "file":  # one document, in passages
        found, texts = ["".join(found)], [joint.join(texts)]
    assert [text.replace("\r", "") for text in found] == texts


@pytest.mark.parametrize("how", ["file", "lines", "json"])
@pytest.mark.parametrize("size", [50, 1500])
def test_ranges_of_a_file_hold_each_document_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, size: int
) -> None:
    """However a large file is cut for the processes."""
    monkeypatch.setattr(documents, "PIECE_BYTES", size)
    path = tmp_path / ("data.jsonl" if how == "json" else "data.txt")
    texts = [text.replace("\n", "") for text in TEXTS]
    path.write_bytes(records(texts) if how == "json" else "\n".join(texts).encode())
    how = "lines" if how == "lines" else "file"
    assert pieces(path, how) > 1
    found = read(path, how)
    assert found == texts if path.suffix == ".jsonl" or how == "lines" else "".join(found) == "\n".join(texts)


def test_row_groups_of_a_large_parquet_file_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 500)
    parquet.write_table(pa.table({"text": TEXTS}), tmp_path / "data.parquet", row_group_size=7)
    assert pieces(tmp_path / "data.parquet") > 2
    assert read(tmp_path / "data.parquet") == TEXTS


def test_addresses_through_fsspec() -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/a.jsonl", records(TEXTS[:30]))
    system.pipe("/bucket/b.jsonl.zst", zstandard.compress(records(TEXTS[30:])))
    assert read("memory://bucket") == TEXTS
    assert read("memory://bucket/*.zst") == TEXTS[30:]
    before = find(["memory://bucket/a.jsonl"])[0].identity
    system.pipe("/bucket/a.jsonl", records(TEXTS[:31]))
    assert find(["memory://bucket/a.jsonl"])[0].identity != before


LIST = "the file is a list, not one JSON object per line"
LINES = records(TEXTS[:6])
BAD: dict[str, tuple[str, bytes, str]] = {
    "cut": ("a.jsonl", LINES + b'{"text": "cut', "a.jsonl, line 7: not JSON"),
    "in a compressed file": ("a.jsonl.zst", zstandard.compress(LINES + b"\x00\n"), "a.jsonl.zst, line 7: not JSON"),
    "5,000 digits": ("a.jsonl", LINES + b'{"text": ' + b"7" * 5000 + b"}", "line 7: cannot be read: Exceeds the limit"),
    "nested": ("a.jsonl", LINES + b"[" * 99_999 + b"]" * 99_999, "a.jsonl, line 7: cannot be read: "),
    "a list": ("a.json", b'\xef\xbb\xbf [\n {"text": "a list"}\n]\n', f"line 1: {LIST}; jq -c"),
    "no object": ("a.jsonl", b'{"text": "a"}\n[1]\n', "no field 'text'; it is not a JSON object"),
    "another field": ("a.jsonl", records(TEXTS, "body"), "a.jsonl, line 1: no field 'text'; it has id, body"),
    "no text": ("a.jsonl", b'{"text": 5}\n', "holds a number, not text"),
    "half a gzip": ("a.jsonl.gz", gzip.compress(records(TEXTS))[:-20], "a.jsonl.gz: reading failed ("),
    "half a zstd": ("a.txt.zst", zstandard.compress(bytes(range(256)) * 9)[:-9], "a.txt.zst: reading failed ("),
    "no parquet": ("a.parquet", b"no parquet", "a.parquet: reading failed ("),
    "an archive": ("a.zip", b"PK", ".zip files are not read; unpack"),
    "nothing": ("a.txt", b"", "is empty; leave it out"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_content_is_one_line_with_its_place(tmp_path: Path, kind: str) -> None:
    name, content, said = BAD[kind]
    (tmp_path / name).write_bytes(content)
    assert said in refusal(tmp_path / name)


def test_a_line_number_in_a_later_range_counts_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 300)
    (tmp_path / "a.jsonl").write_bytes(records(TEXTS[:50]) + b"broken\n" + records(TEXTS))
    assert "a.jsonl, line 51: not JSON" in refusal(tmp_path / "a.jsonl")


def test_text_that_is_not_utf_8_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\nfine\n\n\nLatin: caf\xe9.\n")
    for how in ("file", "lines", "blank-lines", "end-of-text"):
        assert f"{tmp_path / 'a.txt'}, line 5: not UTF-8 text" in refusal(tmp_path / "a.txt", how)


@pytest.mark.parametrize("ending", [".jsonl.gz", ".txt"])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", 1 << 20)
    content = b'{"text": "fine"}\n' * 3 + b'{"text": "' + b"x" * (1 << 20) + b'"}\n'
    path = tmp_path / f"a{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    said = refusal(path, "lines")
    assert f"{path}, line 4: has more than 1 MiB, the most that a line may have" in said
    path.write_bytes(gzip.compress(content[:-20] + b'"}\n') if ending.endswith("gz") else content[:-20] + b'"}\n')
    assert len(read(path, "lines")) == 4


@pytest.mark.parametrize("ending", [".txt", ".jsonl.gz"])
def test_a_git_lfs_pointer_is_named_as_such_for_every_kind_of_file(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"data{ending}").write_bytes(POINTER)
    for name in (tmp_path / f"data{ending}", tmp_path):
        assert f"data{ending}: is a Git LFS pointer" in refusal(name)
    fsspec.filesystem("memory").pipe(f"/pointers/data{ending}", POINTER)
    assert f"data{ending}: is a Git LFS pointer" in refusal(f"memory://pointers/data{ending}")


@pytest.mark.parametrize(("odd", "ending"), [("a FIFO", ".txt"), ("No such file", ".parquet")])
def test_odd_files_in_a_folder_are_named_and_not_opened(odd: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("Fine.")
    file = tmp_path / "in" / f"b{ending}"
    os.mkfifo(file) if odd == "a FIFO" else file.symlink_to("nowhere")
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
    for name in ("snapshot", "mine", "mine/*.jsonl", "mine/a.jsonl"):
        assert read(tmp_path / name) == TEXTS
