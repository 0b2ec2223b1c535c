"""What an input may name; which files of a folder are read, and that the others are said or refused, never dropped."""

from __future__ import annotations

import gzip
import io
import re
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

from tests.trainer.data.test_documents import TEXTS, pieces, read, records
from trainer import prepare
from trainer.data import documents, sources
from trainer.data.sources import find
from trainer.errors import Passing, UserError

TEXT = "Light is not similar, or homogeneal. " * 40


def folder(top: Path, *names: str) -> Path:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(gzip.compress(TEXT.encode()) if name.endswith(".gz") else TEXT.encode())
    return top


READ = [
    "a.txt",
    "Who is there?.txt",
    "C#.md",
    "b.rst",
    "c.md",
    "d.markdown",
    "e.adoc",
    "f.tex",
    "g.org",
    "h.TXT",
    "i.rst.gz",
    "deep/er/j.text",
]


def test_the_files_of_a_folder_that_are_passed_over_are_told_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = folder(tmp_path / "corpus", *READ, "page.html", "code.py", "LICENSE", ".git/HEAD.txt", ".b.txt.part")
    (corpus / "empty.txt").touch()
    found = find([str(corpus)])
    assert {str(Path(source.name).relative_to(corpus)) for source in found} == set(READ)
    assert {source.kind for source in found} == {"text"}
    said = capsys.readouterr().out
    for why, names in {
        "of kind .html": "page.html",
        "of kind .py": "code.py",
        "without a suffix": "LICENSE",
        "empty": "empty.txt",
    }.items():
        assert f"event=passed_over folder={corpus} why='{why}' files=1 such_as={names}\n" in said
    assert f"event=passed_over folder={corpus} why='hidden' files=2 such_as=" in said


@pytest.mark.parametrize("name", ["b.pdf", "deep/b.tsv", "b.csv.gz", "b.EPUB"])
def test_a_folder_with_text_that_nothing_here_takes_out_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    folder(tmp_path, "a.txt", name)
    with pytest.raises(UserError) as caught:
        find([str(tmp_path)])
    assert f"{tmp_path / name} is of a kind that is not read from a folder, and what it says would be lost" in str(
        caught.value
    )
    # The way that the message names.
    assert len(find([f"{tmp_path}/*.txt"])) == 1


def test_a_pattern_reads_what_it_names_and_says_what_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path, "a.py", "b.py", "c.txt")
    (tmp_path / "empty.py").touch()
    assert len(find([f"{tmp_path}/*.py"])) == 2
    assert "why='empty' files=1 such_as=empty.py" in capsys.readouterr().out


HEAD = "---\nlicense: mit\n{}---\n# A data set\n"
NAMED = """configs:
- config_name: default
  data_files:
  - {split: train, path: a.jsonl}
  - {split: test, path: b.jsonl}
"""
QUOTED = '"configs" : [{"data_files": [{"split": "train", path: a.jsonl}, {"split": "test", path: b.jsonl}]}]\n'
SFT = NAMED.replace("split: train", "split: train_sft").replace("split: test", "split: test_sft")
COUNTED = "dataset_info:\n  splits:\n  - {name: train, num_examples: 9}\n  - {name: test, num_examples: 1}\n"
TOLD = "# split: all\npretty_name: 'the split: none'\n"


@pytest.mark.parametrize(
    ("head", "names", "splits"),
    [
        (HEAD, ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], ["test", "train"]),
        (HEAD, ["train/0.txt", "dev/0.txt", ".cache/x/test.jsonl"], ["dev", "train"]),
        (HEAD.replace("{}", NAMED), ["a.jsonl", "b.jsonl"], ["train", "test"]),
        (HEAD.replace("{}", QUOTED), ["a.jsonl", "b.jsonl"], ["train", "test"]),
        (HEAD.replace("{}", SFT), ["a.jsonl", "b.jsonl"], ["train_sft", "test_sft"]),
        (HEAD.replace("{}", COUNTED), ["a.jsonl", "data/train-0.jsonl"], ["train", "test"]),
        (None, ["my_train.jsonl", "my_eval.jsonl.gz"], ["eval", "train"]),
        (None, ["TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"], ["train", "valid"]),
    ],
)
def test_a_clone_with_several_splits_is_refused_and_names_them(
    tmp_path: Path, head: str | None, names: list[str], splits: list[str]
) -> None:
    folder(tmp_path, *names)
    if head is not None:
        (tmp_path / "README.md").write_text(head.replace("{}", ""))
    with pytest.raises(UserError) as caught:
        find([str(tmp_path)])
    told = str(caught.value)
    assert f"--input {tmp_path}: holds the splits {', '.join(splits)}, and all of them would be learned" in told
    train = "train_sft" if "train_sft" in splits else "train"
    hf = f"give hf:{tmp_path}{':train_sft' * (train != 'train')} for its split {train}, or"
    assert (hf if head or "jsonl" in names[0] else "give the files of one") in told


LANGUAGES = """configs:
- {config_name: en, data_files: [{split: train, path: texts/en*.jsonl}]}
- {config_name: de, data_files: [{split: train, path: texts/de*.jsonl}]}
"""


def test_a_clone_with_several_configurations_is_refused_and_names_how_to_read_one(tmp_path: Path) -> None:
    folder(tmp_path, "en/a.txt", "de/a.txt")
    for number, word in enumerate(("en", "de")):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{word}.jsonl").write_text(f'{{"text": "{word}"}}\n' * (number + 1))
    (tmp_path / "README.md").write_text(HEAD.replace("{}", LANGUAGES))
    with pytest.raises(UserError, match=r"holds the configurations en, de, and all of them would be learned; give hf:"):
        find([str(tmp_path)])
    for path in (*tmp_path.glob("??/a.txt"), *tmp_path.glob("??")):  # each a data set of its own
        path.unlink() if path.is_file() else path.rmdir()
    assert read(f"hf:{tmp_path}/de") == ["de", "de"]
    many = "".join(f"- {{config_name: c{number}, data_dir: c{number}}}\n" for number in range(300))
    (tmp_path / "README.md").write_text(HEAD.replace("{}", f"configs:\n{many}"))
    with pytest.raises(UserError, match=r"configurations c0, .*, c7 and 292 more, and all"):
        find([str(tmp_path)])
    (tmp_path / "README.md").write_text(HEAD.replace("{}", "dataset_info:\n- config_name: en\n- config_name: de\n"))
    with pytest.raises(UserError, match=r"configurations en, de, and all of them would be learned; give the files"):
        find([str(tmp_path)])


@pytest.mark.parametrize(
    ("head", "names", "read"),
    [
        (HEAD, ["data/train-0.parquet", "data/train-1.parquet"], 2),
        (HEAD.replace("{}", TOLD + COUNTED), ["data/train-0.jsonl", "LICENSE.txt", "NEWS.md", "dataset_infos.json"], 3),
        ("---\ntitle: Notes\n---\nText", ["a.txt"], 2),
        (HEAD, [], 1),
        (None, ["train.md", "test.md", "evaluation.rst"], 3),
        (None, ["pretrain.jsonl", "testament.jsonl", "valley.jsonl"], 3),
    ],
)
def test_a_card_is_passed_over_and_another_readme_is_text(
    tmp_path: Path, head: str | None, names: list[str], read: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path, *names)
    if head is not None:
        (tmp_path / "README.md").write_text(head.replace("{}", ""))
    assert len(find([str(tmp_path)])) == read
    passed = bool(head and "license" in head and names)
    told = f"why='card of a data set' files={1 + ('dataset_infos.json' in names)} such_as=README.md"
    assert (told in capsys.readouterr().out) == passed


class Server(SimpleHTTPRequestHandler):
    """A web server that answers requests for ranges, as those of datasets do; /401 gets the answer 401."""

    def send_head(self) -> Any:
        if (code := self.path[1:]).isdigit():
            return self.send_error(int(code))
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
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_web_server_is_read_in_ranges(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 2000)
    (tmp_path / "web" / "a.jsonl").write_bytes(records(TEXTS))
    (tmp_path / "web" / "b.jsonl.gz").write_bytes(gzip.compress(records(TEXTS)))
    parquet.write_table(pa.table({"text": TEXTS}), tmp_path / "web" / "c.parquet", row_group_size=7)
    assert pieces(f"{web}/a.jsonl") > 1
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet"):
        assert read(f"{web}/{name}") == TEXTS


def test_a_web_page_in_place_of_data_is_refused_and_text_is_not(tmp_path: Path, web: str) -> None:
    for name in ("page.html", "a.txt"):
        (tmp_path / "web" / name).write_text("<!DOCTYPE html><title>Sign in</title>")
    for page in ("page.html", ""):  # the second is the server's list of its files
        with pytest.raises(UserError, match=r"answers with a web page \(text/html\).*the address of the file itself"):
            find([f"{web}/{page}"])
    assert find([f"{web}/a.txt"])
    assert find([str(tmp_path / "web" / "page.html")])  # a person saved it


@pytest.mark.parametrize(
    ("failure", "passes"),
    [
        (401, False),
        (429, True),
        (503, True),
        (socket.gaierror(socket.EAI_NONAME, "no address"), False),
        (socket.gaierror(socket.EAI_AGAIN, "no answer"), True),
        (ConnectionResetError("Connection reset by peer"), True),
        (OSError(16, "SlowDown: reduce your request rate"), True),  # EBUSY: s3fs of 503
        (PermissionError("403 Forbidden"), False),
    ],
)
def test_what_a_second_try_may_not_meet_is_told_from_a_wrong_name(
    web: str, failure: int | OSError, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, fails = f"{web}/{failure}", Mock(side_effect=failure)
    if isinstance(failure, socket.gaierror):
        name = "http://no-host.invalid/a.txt"
        monkeypatch.setattr(socket, "getaddrinfo", fails)
    elif isinstance(failure, OSError):
        name = "memory://bucket/a.txt"
        monkeypatch.setattr(MemoryFileSystem, "info", fails)
    with pytest.raises(UserError) as caught:
        find([name])
    assert isinstance(caught.value, Passing) == passes, str(caught.value)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("/no/such.txt", 2, "no such file or folder"),
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


def test_a_piece_of_a_file_begins_with_the_first_line_at_its_start_or_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 2)  # lines may be longer than what is read at once
    found = [sources.align(io.BytesIO(b"abc\n\ndef"), start) for start in range(9)]
    assert found == [0, 4, 4, 4, 4, 5, 8, 8, 8]
