"""What the dataset Job fetches from the hub: once, whole, and nothing that could run code."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.processes import context
from trainer import fetch
from trainer.contract import FETCHED
from trainer.errors import UserError

CHUNK = 10 * 1024 * 1024
"""Bytes that huggingface_hub writes at a time."""
WEIGHTS = {f"model-0000{number}-of-00002.safetensors": bytes([number]) * 9 for number in (1, 2)}
LARGE = {name: content[:1] * (CHUNK + 9) for name, content in WEIGHTS.items()}
MAP = {"weight_map": {f"layer.{number}": name for number, name in enumerate(WEIGHTS)}}
NEEDED = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors.index.json": json.dumps(MAP).encode(),
    "tokenizer.model": b"pieces",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    **WEIGHTS,
}
LEFT = {
    "pytorch_model.bin": b"pickled",
    "modeling.py": b"code",
    "consolidated.safetensors": b"twice",
    "onnx/a.json": b"",
    "additional_chat_templates/x.py": b"code",
    "additional_chat_templates/deep/y.jinja": b"",
    "other/z.jinja": b"",
}


class Hub(ThreadingHTTPServer):
    """The answers of the hub that a download needs: the commit, what is in it with its checksums, and each file."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = NEEDED | LEFT
        self.commit = "a" * 40
        self.error = ""
        """Why files are refused, as the hub names it."""
        self.damage = 0
        """How many answers arrive with other bytes."""
        self.sizes: dict[str, int] = {}
        """Reported in place of the true ones."""
        self.stop_after: int | None = None
        """Bytes of weights after which the connection is silent."""
        self.asked: list[tuple[str, str]] = []
        """Path and range of each request of a file."""

    def listed(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        found: dict[str, Any] = {"rfilename": name, "size": self.sizes.get(name, len(content))}
        if name.endswith((".safetensors", ".bin", ".model")):
            found["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": found["size"], "pointerSize": 1}
        return found | {"blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        if path.startswith("/api/models/org/tiny"):
            commit = path.partition("/revision/")[2] or hub.commit
            about = {"id": "org/tiny", "sha": commit, "siblings": [hub.listed(name) for name in hub.files]}
            return self.send(200, json.dumps(about).encode())
        name, begin = path.rpartition("/")[2], self.headers.get("Range", "")
        # Once a day, in whichever test is first, the library asks for a list that is no part of a model.
        if path.startswith("/org/tiny/"):
            hub.asked.append((path, begin))
        if not path.startswith("/org/tiny/resolve/") or hub.error:
            return self.send(403 if hub.error else 404, b"", {"X-Error-Code": hub.error or "RepoNotFound"})
        content = hub.files[path.partition("/resolve/")[2].partition("/")[2]]
        if name in WEIGHTS and hub.damage:
            hub.damage -= 1
            content = bytes(len(content))
        start = int(begin.removeprefix("bytes=").removesuffix("-")) if begin else 0
        return self.send(206 if begin else 200, content[start:], weights=name in WEIGHTS)

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None, weights: bool = False) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if weights and self.server.stop_after is not None:
            self.wfile.write(content[: self.server.stop_after])
            time.sleep(60)
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _ask(port: int, patch: pytest.MonkeyPatch) -> None:
    """Let the library ask this server."""
    from huggingface_hub import constants

    patch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    template = constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setenv("NO_PROXY", "127.0.0.1")
    patch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    _ask(server.server_port, monkeypatch)
    yield server
    server.shutdown()


def there(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def run(output: Path, model: str = "org/tiny") -> int:
    return fetch.main(["--model", model, "--output", str(output)])


def test_a_model_is_fetched_once_without_what_could_run_code(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "m") == 0
    assert there(tmp_path / "m") == {*NEEDED, FETCHED}
    assert all((tmp_path / "m" / name).read_bytes() == content for name, content in NEEDED.items())
    assert f"state=left_out files={len(LEFT)} named='{', '.join(sorted(LEFT))}' reason=" in capsys.readouterr().out
    assert json.loads((tmp_path / "m" / FETCHED).read_text())["revision"] == hub.commit
    hub.shutdown()
    assert run(tmp_path / "m") == 0
    assert f"state=found model=org/tiny directory={tmp_path / 'm'} revision={hub.commit}" in capsys.readouterr().out


def _fetch_from(port: int, output: Path) -> None:
    _ask(port, pytest.MonkeyPatch())
    run(output)


def test_after_a_kill_it_goes_on_where_it_stopped_with_the_same_revision(hub: Hub, tmp_path: Path) -> None:
    """A kill of the whole process: nothing of it can tidy up."""
    hub.stop_after = CHUNK + 1
    hub.files = hub.files | LARGE
    first = context().Process(target=_fetch_from, args=(hub.server_port, tmp_path / "m"))
    first.start()
    end = time.monotonic() + 60
    while sum(path.stat().st_size for path in (tmp_path / "m").glob(".*.part")) < 2 * CHUNK:
        assert time.monotonic() < end
        assert first.is_alive()
        time.sleep(0.05)
    first.kill()
    first.join()
    hub.stop_after, began, hub.commit = None, hub.commit, "b" * 40
    hub.asked.clear()
    assert run(tmp_path / "m") == 0
    assert there(tmp_path / "m") == {*NEEDED, FETCHED}
    assert hub.asked, "not all was there"
    assert {(path.rpartition("/")[2], begin) for path, begin in hub.asked} == {
        (name, f"bytes={CHUNK}-") for name in WEIGHTS
    }
    assert all(f"/resolve/{began}/" in path for path, _ in hub.asked)
    assert all((tmp_path / "m" / name).read_bytes() == content for name, content in LARGE.items())


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_of_a_former_model_stays_beside_another(whole: bool, hub: Hub, tmp_path: Path) -> None:
    """Else transformers would take the former model's chat template, or look for its shards."""
    hub.damage = 0 if whole else 100
    assert run(tmp_path / "m") == (0 if whole else 2)
    (tmp_path / "m" / "notes.txt").write_text("a user's")
    for name in (*WEIGHTS, "model.safetensors"):
        (tmp_path / "m" / f".{name}.part").write_text("of a kill")
    hub.damage, hub.commit = 0, "b" * 40
    hub.files = {"config.json": b'{"model_type": "gpt2"}', "model.safetensors": b"small"}
    assert run(tmp_path / "m", "org/tiny@main") == 0
    assert there(tmp_path / "m") == {*hub.files, FETCHED, "notes.txt"}


def test_damage_on_the_way_is_found(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.damage = 1
    assert run(tmp_path / "once") == 0
    assert all((tmp_path / "once" / name).read_bytes() == content for name, content in WEIGHTS.items())
    hub.damage = 100
    assert run(tmp_path / "always") == 2
    assert "failed its checksum twice" in capsys.readouterr().err
    assert not (tmp_path / "always" / FETCHED).exists()
    assert not list((tmp_path / "always").glob("*.safetensors"))


def test_a_gated_model_says_what_to_do(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.error = "GatedRepo"
    for token, why in (
        ("", "only accounts that accepted its licence may read it"),
        ("hf_x", "the account of this token may not"),
    ):
        monkeypatch.setenv("HF_TOKEN", token)
        assert run(tmp_path / "m") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"--model org/tiny: gated, {why}")
        assert f"accept its licence on its page on the hub (http://127.0.0.1:{hub.server_port}/org/tiny)" in line
        assert "secrets.huggingFaceToken" in line


UNFIT = ("pytorch_model.bin", "../a.safetensors", 5)
INDICES = [json.dumps({"weight_map": {"layer.0": named}}).encode() for named in UNFIT]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config.json": b'{"model_type": "its-own"}'}, "code that comes with a model is not run"),
        ({"model.safetensors.index.json": b"{}"}, "has no weights as safetensors"),
        *(({"model.safetensors.index.json": index}, "its model.safetensors.index.json names ") for index in INDICES),
        # transformers would take the model that it names
        ({"adapter_config.json": b'{"peft_type": "XLORA"}'}, "is an adapter, or brings one;"),
        ({}, "20000000.0 GB are missing, and the volume has"),
    ],
)
def test_what_the_trainer_cannot_use_or_keep_is_refused_before_the_weights_come(
    change: dict[str, bytes], said: str, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files, hub.sizes = hub.files | change, {} if change else dict.fromkeys(WEIGHTS, 10**16)
    assert run(tmp_path / "m") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--model org/tiny: ")
    assert said in line
    assert not [path for path, _ in hub.asked if path.endswith((".safetensors", ".bin", ".py"))]


def test_a_name_that_the_hub_does_not_know_or_no_hub_is_one_line(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path / "m", "org/huge") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--model org/huge: cannot be fetched from the hub")
    assert "and check the name; a private one needs secrets.huggingFaceToken" in line
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert run(tmp_path / "m") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--model org/tiny: cannot be fetched from the hub")


def test_questions_are_fetched_once_and_read_back_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.tasks.squad_data import read_questions

    answered = {"id": "1", "question": "Who?", "answers": [{"text": "Newton", "answer_start": 3}]}
    unanswered = {"id": "2", "question": "Why?", "is_impossible": True, "answers": []}
    document = {"data": [{"paragraphs": [{"context": "Mr Newton", "qas": [answered, unanswered]}]}]}
    for split in ("train", "dev"):
        (tmp_path / f"{split}.json").write_text(json.dumps(document))
    sources = [str(tmp_path / "train.json"), str(tmp_path / "dev.json")]
    arguments = ["--questions", *sources, "--output", str(tmp_path / "out")]
    assert fetch.main(arguments) == 0
    for split, source in zip(("train", "validation"), sources, strict=True):
        kept = str(tmp_path / "out" / f"{split}.json")
        assert read_questions("train", kept) == read_questions("train", source)
    kept, written = tmp_path / "out" / "validation.json", []
    for harm in (kept.unlink, lambda: kept.write_bytes(kept.read_bytes()[:-9])):
        written.append(kept.read_bytes())
        harm()
        assert fetch.main(arguments) == 0
        assert kept.read_bytes() == written[0], "what is lost or cut short comes back"
    (tmp_path / "train.json").unlink()
    assert fetch.main(arguments) == 0, "what is there is not fetched again"
    assert fetch.main(["--questions", sources[0], "--output", str(tmp_path / "other")]) == 2
    assert fetch.main(["--questions", *sources, sources[1], "--output", str(tmp_path / "three")]) == 2
    assert "3 sources; give hf:NAME, or train and validation" in capsys.readouterr().err


def test_a_file_that_is_longer_than_the_hub_says_is_not_written_to_its_end(tmp_path: Path) -> None:
    with open(tmp_path / "part", "ab") as file:
        bounded = fetch._Bounded(file, 10, "--model m: model.safetensors")
        bounded.write(b"x" * 10)
        with pytest.raises(UserError, match="the hub sends more than the 10 bytes that it says"):
            bounded.write(b"x")
    assert (tmp_path / "part").stat().st_size == 0


@pytest.mark.parametrize("name", [FETCHED, "manifest.json"])
def test_notes_that_the_hub_has_are_not_taken_for_ours(name: str, hub: Hub, tmp_path: Path) -> None:
    asked = {"asked": "org/tiny", "model": "org/tiny", "revision": "b" * 40, "files": {}}
    hub.files = hub.files | {name: json.dumps(asked).encode()}
    assert run(tmp_path / "m") == 0
    assert there(tmp_path / "m") == {*NEEDED, FETCHED}
    assert json.loads((tmp_path / "m" / FETCHED).read_text())["files"].keys() == NEEDED.keys()
