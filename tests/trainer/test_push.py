"""Models go to the hub as exported, with a token that may write, and over nothing that is there unasked."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_sample import save
from trainer import push

Capture = pytest.CaptureFixture[str]


class Hub(ThreadingHTTPServer):
    """The answers of the hub to an upload: who has the token, what is in a repository, and commits."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.role = "write"
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.refuses = ""
        """Beginning of the paths that answer 403."""
        self.tokens: set[str] = set()


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/whoami-v2":
            if not self.server.role:
                return self.send(401, {"error": "Invalid credentials"})
            return self.send(200, {"name": "me", "auth": {"accessToken": {"role": self.server.role}}})
        name, _, rest = path.removeprefix("/api/models/").partition("/tree/")
        name = "/".join(name.split("/")[:2])
        if name not in self.server.repositories:
            return self.send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        files = self.server.repositories[name]
        if rest:
            return self.send(200, [{"type": "file", "path": file, "size": 1, "oid": "0"} for file in files])
        return self.send(200, {"id": name, "sha": "b" * 40, "siblings": [{"rfilename": file} for file in files]})

    def do_POST(self) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if hub.refuses and path.startswith(hub.refuses):
            return self.send(403, {"error": "You do not have the right to write here"})
        hub.tokens.add(self.headers.get("Authorization", ""))
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization") or "me", asked["name"])))
            if name in hub.repositories:
                return self.send(409, {"error": "You already created this model repo", "url": self.at(name)})
            hub.repositories[name], hub.private[name] = {".gitattributes": b""}, asked["visibility"] == "private"
            return self.send(200, {"url": self.at(name), "name": name})
        if "/preupload/" in path:
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self.send(200, {"files": files})
        if "/commit/" in path:
            name = "/".join(path.removeprefix("/api/models/").split("/")[:2])
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
                if line["key"] == "deletedFile":
                    del hub.repositories[name][value["path"]]
            return self.send(200, {"success": True, "commitOid": "c" * 40, "commitUrl": f"{self.at(name)}/commit/c"})
        return self.send(200, {})

    def at(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{name}"

    def send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {
            "Content-Length": str(len(text)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", constants.ENDPOINT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small-1a2b"
    save(folder, 20, chat=False)
    return folder


def said(arguments: list[str], capsys: Capture) -> str:
    """The one line with which the command refuses."""
    capsys.readouterr()
    assert push.main(arguments) == 2
    return capsys.readouterr().err.splitlines()[-1]  # transformers may show its progress before


def test_a_model_goes_to_a_private_repository_of_the_runs_name(
    hub: Hub, run: Path, tmp_path: Path, capsys: Capture
) -> None:
    from transformers import AutoModelForCausalLM

    assert push.main(["--run", str(run), "--dtype", "bf16"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"/me/{run.name} at {'c' * 12}")
    files = hub.repositories[f"me/{run.name}"]
    assert hub.private == {f"me/{run.name}": True}
    assert hub.tokens == {"Bearer hf_mine"}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
        (tmp_path / name).write_bytes(files[name])
    net: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert str(net.dtype) == "torch.bfloat16"


def test_what_is_there_is_replaced_when_asked_for_alone(hub: Hub, run: Path, capsys: Capture) -> None:
    hub.repositories["org/mine"] = {".gitattributes": b"", "README.md": b"theirs", "model-1-of-2.safetensors": b"old"}
    before = dict(hub.repositories["org/mine"])
    command = ["--run", str(run), "--repository", "org/mine"]
    line = said(command, capsys)
    assert line.startswith(
        "--repository org/mine: has files already, such as README.md; give another name, or --replace"
    )
    assert hub.repositories["org/mine"] == before
    assert push.main([*command, "--replace"]) == 0
    files = hub.repositories["org/mine"]
    assert files["README.md"] != b"theirs"
    assert "model-1-of-2.safetensors" not in files, "transformers would read weights of two models"
    assert ".gitattributes" in files


@pytest.mark.parametrize(
    ("role", "refuses", "arguments", "line"),
    [
        ("read", "", [], "the Hugging Face token of me may only read; make one with the role write"),
        ("", "", [], "the Hugging Face token is refused by the hub ("),
        ("fineGrained", "/api/repos", [], "the hub refuses it: You do not have the right to write here"),
        ("write", "/api/models", [], "the hub refuses it: You do not have the right to write here"),
        ("write", "", ["--repository", "a b"], "--repository a b: "),
        ("write", "", ["--merge"], "--merge: "),
    ],
)
def test_what_the_hub_would_refuse_is_one_line(
    role: str, refuses: str, arguments: list[str], line: str, hub: Hub, run: Path, capsys: Capture
) -> None:
    hub.role, hub.refuses = role, refuses
    assert said(["--run", str(run), *arguments], capsys).startswith(line)
    assert not any(len(files) > 1 for files in hub.repositories.values())


def test_without_a_token_or_a_hub_it_is_one_line(
    hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    hub.shutdown()
    hub.server_close()
    assert said(["--run", str(run)], capsys).startswith("the hub cannot be reached (")
    monkeypatch.delenv("HF_TOKEN")
    assert said(["--run", str(run)], capsys) == "the Hugging Face token is missing; give one that may write in HF_TOKEN"
