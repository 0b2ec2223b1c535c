"""Every kind of input that `trainer.prepare` reads, and what it says of input that it cannot read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet
from tokenizers import Tokenizer

from tests.trainer.toy import apart
from trainer import prepare
from trainer.data import documents
from trainer.data.documents import Piece, Segment, TextField, plan, units
from trainer.data.sources import Source, find
from trainer.errors import UserError

TEXTS = [
    f"Document {number} says: light is not similar, {'very ' * (number % 7)}homogeneal.\n\nTwice."
    for number in range(60)
]
END = "<|endoftext|>"


def pieces(spec: str) -> int:
    return len(plan(find([spec]), "file"))


@pytest.fixture
def prepared(tmp_path: Path, tokenizer: Path) -> Callable[..., list[str]]:
    """Prepare inputs and return the documents of both splits as text."""

    def build(*inputs: str | Path, extra: tuple[str, ...] = ()) -> list[str]:
        output = tmp_path / "out"
        names = [str(name) for name in inputs]
        command = ["--input", *names, "--output", str(output), "--tokenizer", str(tokenizer), *extra]
        of_the_hub = any(name.startswith("hf:") for name in names)
        assert (apart(prepare.main, command) if of_the_hub else prepare.main(command)) == 0
        decode = Tokenizer.from_file(str(output / "tokenizer.json")).decode
        found = []
        for split in ("train", "validation"):
            shards = sorted(output.glob(f"{split}-*.bin"))
            ids = np.concatenate([np.fromfile(path, np.uint16) for path in shards])
            *texts, rest = decode(ids.tolist(), skip_special_tokens=False).split(END)
            assert rest == ""  # each document is ended
            assert texts, f"{split} is empty"
            found += texts
        return found

    return build


def records(texts: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": n, field: text}) + "\n" for n, text in enumerate(texts)).encode()


PACKED = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("ending", PACKED)
def test_json_lines_plain_and_compressed(tmp_path: Path, prepared: Callable[..., list[str]], ending: str) -> None:
    path = tmp_path / f"data.jsonl{ending}"
    path.write_bytes(PACKED[ending](records(TEXTS)))
    assert sorted(prepared(path)) == sorted(TEXTS)


def test_compressed_files_of_several_parts_are_read_to_the_end(
    tmp_path: Path, prepared: Callable[..., list[str]]
) -> None:
    for ending in (".gz", ".zst"):
        parts = [PACKED[ending](records(part)) for part in (TEXTS[:25], TEXTS[25:])]
        (tmp_path / f"data.jsonl{ending}").write_bytes(b"".join(parts))
        assert sorted(prepared(tmp_path / f"data.jsonl{ending}")) == sorted(TEXTS)


def test_parquet_with_a_field_of_another_name(tmp_path: Path, prepared: Callable[..., list[str]]) -> None:
    table = pa.table({"id": list(range(60)), "body": [None, *TEXTS[1:]]})
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=13)
    assert sorted(prepared(tmp_path / "data.parquet", extra=("--text-field", "body"))) == sorted(TEXTS[1:])


def test_a_folder_a_pattern_and_several_inputs(tmp_path: Path, prepared: Callable[..., list[str]]) -> None:
    folder = tmp_path / "data" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(records(TEXTS[:20]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(records(TEXTS[20:40])))
    (folder / "c.png").write_bytes(b"no text")
    (folder / "empty.jsonl").touch()
    (tmp_path / "more.jsonl").write_bytes(records(TEXTS[40:]))
    whole = sorted(prepared(tmp_path / "data", tmp_path / "more.jsonl"))
    assert whole == sorted(TEXTS)
    assert sorted(prepared(folder / "*.jsonl*", tmp_path / "more.jsonl")) == whole
    assert sorted(prepared(f"file://{folder}/a.jsonl")) == sorted(TEXTS[:20])


def test_urls_through_fsspec(prepared: Callable[..., list[str]]) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/a.jsonl", records(TEXTS[:30]))
    system.pipe("/bucket/b.jsonl.zst", zstandard.compress(records(TEXTS[30:])))
    assert sorted(prepared("memory://bucket")) == sorted(TEXTS)
    assert sorted(prepared("memory://bucket/*.zst")) == sorted(TEXTS[30:])
    before = find(["memory://bucket/a.jsonl"])[0].identity
    system.pipe("/bucket/a.jsonl", records(TEXTS[:31]))
    assert find(["memory://bucket/a.jsonl"])[0].identity != before


class Server(SimpleHTTPRequestHandler):
    """A web server that answers requests for ranges, as those of datasets do."""

    def send_head(self) -> Any:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return super().send_head()
        content = Path(self.translate_path(self.path)).read_bytes()
        first, last = int(asked[1]), int(asked[2] or len(content) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(min(last, len(content) - 1) - first + 1))
        self.end_headers()
        return io.BytesIO(content[first : last + 1])

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_web_server_is_read_in_ranges_by_several_processes(
    tmp_path: Path, prepared: Callable[..., list[str]], web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 2000)
    (tmp_path / "web" / "a.jsonl").write_bytes(records(TEXTS))
    (tmp_path / "web" / "b.jsonl.gz").write_bytes(gzip.compress(records(TEXTS)))
    table = pa.table({"text": TEXTS})
    parquet.write_table(table, tmp_path / "web" / "c.parquet", row_group_size=7)
    assert len(plan(find([f"{web}/a.jsonl"]), "file")) > 1
    names = [f"{web}/{name}" for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]
    assert sorted(prepared(*names, extra=("--workers", "2"))) == sorted(TEXTS * 3)


@pytest.mark.parametrize(
    ("how", "joint"), [("lines", "\n"), ("blank-lines", "\n \n\n"), ("end-of-text", f"\n{END}\n"), ("file", "\n\n")]
)
def test_documents_in_a_text_file(tmp_path: Path, prepared: Callable[..., list[str]], how: str, joint: str) -> None:
    texts = [text.replace("\n\n", " ") for text in TEXTS] if how != "end-of-text" else TEXTS
    texts = texts * 15 if how == "file" else texts
    whole = joint.join(texts)
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode())
    found = prepared(tmp_path / "text.txt", extra=("--documents", how))
    if how == "file":  # one document, of which some passages are held out
        assert sum(map(len, found)) == len(whole)
    elif how == "end-of-text":
        assert sorted(text.replace("\r", "") for text in found) == sorted(texts)
    else:
        assert sorted(found) == sorted(texts)


def test_a_hub_dataset_in_a_local_folder(tmp_path: Path, prepared: Callable[..., list[str]]) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(3):
        rows = TEXTS[number * 20 : number * 20 + 20]
        parquet.write_table(pa.table({"text": rows}), folder / f"train-0000{number}-of-00003.parquet")
    assert sorted(prepared(f"hf:{folder}")) == sorted(TEXTS)
    assert apart(pieces, f"hf:{folder}") == 3


@pytest.mark.parametrize("how", ["file", "lines", "json"])
@pytest.mark.parametrize("size", [50, 333, 1500])
def test_ranges_of_a_file_hold_each_document_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, size: int
) -> None:
    """However a large file is cut for the processes."""
    monkeypatch.setattr(documents, "PIECE_BYTES", size)
    path = tmp_path / ("data.jsonl" if how == "json" else "data.txt")
    joint = {"lines": "\n", "file": "\n\n"}.get(how, "")
    texts = [text.replace("\n", "") for text in TEXTS]
    path.write_bytes(records(texts) if how == "json" else joint.join(texts).encode())
    how = how if how != "json" else "file"
    pieces = plan(find([str(path)]), how)
    assert len(pieces) > 1
    found = [unit.text for piece in pieces for unit in units(piece, how, TextField("text"))]
    assert found == texts if path.suffix == ".jsonl" or how == "lines" else "".join(found) == joint.join(texts)


def test_row_groups_of_a_large_parquet_file_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 500)
    parquet.write_table(pa.table({"text": TEXTS}), tmp_path / "data.parquet", row_group_size=7)
    pieces = plan(find([str(tmp_path / "data.parquet")]), "file")
    assert len(pieces) > 2
    assert [unit.text for piece in pieces for unit in units(piece, "file", TextField("text"))] == TEXTS


def test_passages_encode_as_the_whole_text_does(tmp_path: Path) -> None:
    """A document that is too long for one call gets the same ids as in one call."""
    from trainer.data.encoding import Encoder
    from trainer.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer("gpt2")
    whole = prepare.SAMPLE.read_text("utf-8")[:60_000] + "\n\n\n  indented\n\n" + "word " * 40_000 + "\n\nend"
    (tmp_path / "text.txt").write_text(whole, encoding="utf-8")
    source = Source(str(tmp_path / "text.txt"), "text", size=len(whole.encode()))
    joins = Encoder(tokenizer, np.uint16, exact=True).joins
    piece, field = Piece(0, (Segment(source, 0),)), TextField("text")
    passages = [unit.text for unit in units(piece, "file", field, joins)]
    assert len(passages) > 10
    assert "".join(passages) == whole
    ids = [number for text in passages for number in tokenizer.encode(text).ids]
    assert ids == tokenizer.encode(whole).ids


def broken_zstandard() -> bytes:
    data = zstandard.compress(os.urandom(5000))
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "content", "extra", "said"),
    [
        ("a.jsonl", records(TEXTS[:3]) + b'{"text": "cut', [], "a.jsonl, line 4: not JSON"),
        ("a.json", b'[{"text": "a list"}]\n', [], "line 1: the file is a list, not one JSON object per line; jq -c"),
        ("a.json", b'\xef\xbb\xbf [\n {"text": "a list"}\n]\n', [], "the file is a list, not one JSON object per line"),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', [], "no field 'text'; it is not a JSON object"),
        ("a.jsonl", records(TEXTS, "body"), [], "a.jsonl, line 1: no field 'text'; it has id, body"),
        ("a.jsonl", b'{"text": 5}\n', [], "holds a number, not text"),
        ("a.jsonl.gz", gzip.compress(records(TEXTS))[:-20], [], "is damaged or cut short"),
        ("a.jsonl.gz", b"\x1f\x8b no gzip", [], "is damaged or cut short"),
        ("a.txt.zst", broken_zstandard(), [], "is damaged or cut short"),
        ("a.txt.zst", b"no zstandard", [], "is damaged or cut short"),
        ("a.txt.bz2", b"no bzip2", [], "is damaged or cut short"),
        ("a.parquet", b"no parquet", [], "is damaged or cut short (ArrowInvalid"),
        ("a.zip", b"PK", [], ".zip files are not read; unpack"),
        ("a.txt", b"\xff\xfe\x00latin", [], "not UTF-8"),
        ("a.txt", b"fine\n\xfflatin", ["--documents", "lines"], "not UTF-8 text (invalid start byte near byte 5)"),
        ("a.jsonl", records(TEXTS[:3]), [], "3 document(s) leave the validation split empty"),
        ("a.jsonl", records(TEXTS), ["--workers", "-1"], "--workers -1"),
        ("a.jsonl", records(TEXTS), ["--shard-tokens", "0"], "--shard-tokens 0"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    extra: list[str],
    said: str,
) -> None:
    (tmp_path / name).write_bytes(content)
    output = tmp_path / "out"
    arguments = ["--input", str(tmp_path / name), "--output", str(output), "--tokenizer", str(tokenizer), *extra]
    assert prepare.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (output / "index.json").exists()


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("/no/such/*.txt", 2, "no file with content matches"),
        ("nothing://bucket/x", 2, "Protocol not known"),
        ("http://127.0.0.1:9/data.jsonl", 75, "cannot be reached"),  # a refused connection may pass
        ("hf:no-such/dataset", 2, "no such dataset, split or configuration, or the hub cannot be reached"),
        ("hf:", 2, "names nothing; give a file or folder"),
    ],
)
def test_names_that_lead_nowhere_are_one_line(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, said: str
) -> None:
    assert prepare.main(["--input", name, "--output", str(tmp_path / "out"), "--tokenizer", str(tokenizer)]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_line_number_in_a_later_range_counts_from_the_beginning(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 300)
    (tmp_path / "a.jsonl").write_bytes(records(TEXTS[:50]) + b"broken\n" + records(TEXTS))
    arguments = ["--input", str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "out"), "--workers", "1"]
    assert prepare.main([*arguments, "--tokenizer", str(tokenizer)]) == 2
    assert "a.jsonl, line 51: not JSON" in capsys.readouterr().err


def test_a_web_page_in_place_of_data_is_refused_and_text_is_not(tmp_path: Path, web: str) -> None:
    for name in ("page.html", "a.txt"):
        (tmp_path / "web" / name).write_text("<!DOCTYPE html><title>Sign in</title>")
    for page in ("page.html", ""):  # the second is the server's list of its files
        with pytest.raises(UserError, match=r"answers with a web page \(text/html\).*the address of the file itself"):
            find([f"{web}/{page}"])
    assert find([f"{web}/a.txt"])
    assert find([str(tmp_path / "web" / "page.html")])  # a person saved it
