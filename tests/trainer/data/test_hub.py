"""What identifies a dataset of the hub: a second preparation must find that it is the same one, or another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.served import served
from tests.trainer.data.test_documents import refusal
from tests.trainer.toy import apart
from trainer.data import hub
from trainer.errors import UserError

COMMIT, ROW = "a" * 40, b'{"text": "The Rays of Light"}\n'
FILE = {"type": "file", "path": "train.jsonl", "size": len(ROW), "oid": "b" * 40}


def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes, dict[str, str]]:
    """The hub, with org/set alone; `set` is its name of old."""
    path, status, content, more = asked.path.partition("?")[0], 200, b"", dict[str, str]()
    if path == "/api/datasets/set":
        status, more = 307, {"Location": "/api/datasets/org/set"}
    elif path in ("/api/datasets/org/set", f"/api/datasets/org/set/revision/{COMMIT}"):
        content = json.dumps({"id": "org/set", "sha": COMMIT, "siblings": [], "tags": []}).encode()
    elif path.startswith(f"/api/datasets/org/set/tree/{COMMIT}"):
        content = json.dumps([FILE]).encode()
    elif path == f"/datasets/org/set/resolve/{COMMIT}/train.jsonl":
        content = ROW
    else:
        there = path.startswith("/datasets/org/set/resolve/")
        status, more = 404, {"X-Error-Code": "EntryNotFound" if there else "RepoNotFound"}
    return status, content, {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT, **more}


KNOWN = """
import os, sys
from pathlib import Path

import pyarrow as pa
from datasets import DatasetInfo, Features, SplitDict, SplitInfo, Value, config
from huggingface_hub import constants

from trainer.data import hub

for spec in sys.argv[2:]:
    print(hub.identity(spec), *[row["text"] for row in hub.rows(spec, 0, ("text",))], sep=",")

folder = Path(sys.argv[1], "wikitext", "raw-v1", "0.0.0", "a" * 40)
folder.mkdir(parents=True)
table = pa.table({"text": ["The Rays of Light"]})
with pa.OSFile(str(folder / "wikitext-train.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
    stream.write_table(table)
splits = SplitDict({"train": SplitInfo("train", num_examples=1, dataset_name="wikitext")})
info = DatasetInfo(features=Features({"text": Value("string")}), splits=splits, config_name="raw-v1")
info.dataset_name, info.version = "wikitext", "0.0.0"
info.write_to_directory(str(folder))
constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
os.environ["HF_HUB_OFFLINE"] = "1"
print(hub.identity("hf:wikitext/raw-v1"), hub.identity("hf:wikitext/raw-v1:train"))
"""


def test_a_dataset_is_known_by_its_commit_on_the_hub_and_in_the_cache_with_a_configuration_too(tmp_path: Path) -> None:
    """In a process of its own: the library reads the environment once."""
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    specs = ["hf:org/set", "hf:org/set/default:train", "hf:set", "hf:set/default"]
    command = [sys.executable, "-c", KNOWN, str(tmp_path), *specs]
    with served(answer) as host:
        environment |= {"HF_ENDPOINT": f"http://{host}", "HF_DATASETS_CACHE": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    *asked, cached = done.stdout.splitlines() or [""]
    assert asked == [f"{COMMIT},The Rays of Light"] * len(specs), done.stderr
    assert cached.split() == [COMMIT] * 2, done.stderr


def test_a_folder_of_a_dataset_that_changes_is_another_dataset(tmp_path: Path) -> None:
    before, again, after = apart(_identities, tmp_path)
    assert before == again != after


def _identities(folder: Path) -> list[str]:
    found = []
    for content, time in ((b'{"text": "Light"}\n', 1), (b'{"text": "Light"}\n', 1), (b'{"text": "Colours"}\n', 2)):
        (folder / "a.jsonl").write_bytes(content)
        os.utime(folder / "a.jsonl", (time, time))
        hub._open.cache_clear()
        found.append(hub.identity(f"hf:{folder}"))
    return found


@pytest.mark.parametrize(
    "card",
    [
        "data_files: ../other/*.jsonl",
        "data_files: https://127.0.0.1:9/a.jsonl",
        "data_files: 'zip://a.jsonl::https://127.0.0.1:9/a.zip'",
        "data_dir: ../other",
        "data_files: link/b.jsonl",
        '"configs" : [{"config_name": "x", "data_files": "https://127.0.0.1:9/a.jsonl"}]',
    ],
)
def test_a_card_that_names_files_outside_of_its_folder_is_refused(tmp_path: Path, card: str) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
        for name in ("a", "b"):
            (each / f"{name}.jsonl").write_text('{"text": "Light."}\n' * 3)
    (tmp_path / "b.jsonl").write_text('{"text": "Light."}\n' * 3)
    (folder / "link").symlink_to(other)
    said = f"configs:\n- config_name: default\n  {card}" if card.startswith("data") else card
    (folder / "README.md").write_text(f"---\n{said}\n---\nText\n")
    with pytest.raises(UserError, match=r"leads out of its folder|not in the folder"):
        hub._open(f"hf:{folder}")


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["a.jsonl", "b.parquet"], True),
        (["a.jsonl.gz", "deep/b.csv"], True),
        (["a.csv", "b.tsv"], True),
        (["a.jsonl", "b.xml"], True),
        (["a.jsonl", "b.json", "c.ndjson"], False),
        (["a.jsonl", "LICENSE.txt", "dataset_infos.json", ".cache/b.txt"], False),
    ],
)
def test_a_folder_of_two_formats_is_refused_and_names_both(tmp_path: Path, names: list[str], refused: bool) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "Light."}\n')
    if refused:
        with pytest.raises(UserError, match=r"several formats") as caught:
            hub._require_whole("hf:x", tmp_path, {}, hub._named("hf:x", tmp_path))
        assert all(name in str(caught.value) for name in names)
        (tmp_path / "README.md").write_text("---\npretty_name: data_files of mine\n---\n")
        with pytest.raises(UserError, match=r"several formats"):
            hub._require_whole("hf:x", tmp_path, {}, hub._named("hf:x", tmp_path))
        (tmp_path / "README.md").write_text(f"---\n'configs':\n- data_dir: {Path(names[0]).parent}\n---\n")
    hub._require_whole("hf:x", tmp_path, {}, hub._named("hf:x", tmp_path))


@pytest.mark.parametrize("below", ["", "en/train"])
def test_a_folder_of_save_to_disk_is_refused_with_the_way_out(tmp_path: Path, below: str) -> None:
    from datasets import Dataset

    Dataset.from_dict({"text": ["Light."]}).save_to_disk(tmp_path / below)
    (tmp_path / "README.md").write_text("# Optics\n")
    with pytest.raises(UserError, match=r"was saved by save_to_disk; save it as Parquet: ds\.to_parquet"):
        hub._open(f"hf:{tmp_path}")


def test_a_damaged_file_of_a_folder_is_one_line_and_no_reason_to_try_again(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: '*.jsonl'\n---\nText\n")
    (tmp_path / "a.jsonl").write_text('{"text": "Light."}\n' * 3)
    assert len(list(hub.rows(f"hf:{tmp_path}", 0, ("text",)))) == 3
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": \n')
    assert "reading failed (" in (said := refusal(f"hf:{tmp_path}"))
    assert said.endswith("it is damaged, cut short, or of another kind")
