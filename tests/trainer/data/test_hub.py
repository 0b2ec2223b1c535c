"""What identifies a dataset of the hub: a second preparation must find that it is the same one, or another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.trainer.toy import apart
from trainer.data import hub

CACHED = """
import json, sys
import pyarrow as pa
from pathlib import Path
from datasets import DatasetInfo, Features, SplitDict, SplitInfo, Value
from trainer.data import hub

def keep(commit):
    folder = Path(sys.argv[1], "wikitext", "raw-v1", "0.0.0", commit)
    folder.mkdir(parents=True)
    table = pa.table({"text": ["The Rays of Light"]})
    with pa.OSFile(str(folder / "wikitext-train.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    splits = SplitDict({"train": SplitInfo("train", num_examples=1, dataset_name="wikitext")})
    info = DatasetInfo(features=Features({"text": Value("string")}), splits=splits, config_name="raw-v1")
    info.dataset_name, info.version = "wikitext", "0.0.0"
    info.write_to_directory(str(folder))

keep("a" * 40)
print(hub.identity("hf:wikitext/raw-v1"), hub.identity("hf:wikitext/raw-v1:train"))
"""


def test_a_cached_dataset_is_known_by_its_commit_with_a_configuration_too(tmp_path: Path) -> None:
    """In a process of its own: the library reads the environment once."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HF_DATASETS_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", CACHED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["a" * 40] * 2, done.stderr


def test_a_folder_of_a_dataset_that_changes_is_another_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b'{"text": "Light"}\n')
    before = [apart(hub.identity, f"hf:{folder}") for _ in range(2)]
    (folder / "a.jsonl").write_bytes(b'{"text": "Colours"}\n')
    os.utime(folder / "a.jsonl", (1, 1))
    assert before[0] == before[1] != apart(hub.identity, f"hf:{folder}")
