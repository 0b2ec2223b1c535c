"""A dataset Job with bad input ends at once, in the words of the stack."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from infra.parse import parse
from tests.infra.recorded import changed, pod, recorded
from trainer.contract import EXIT_USAGE, STACK_KEYS
from trainer.errors import UserError, usage
from workloads.dataset import prepare_command


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"input": ["missing.txt"]}, "dataset.input /data/missing.txt: no such file or folder; `trainyard upload`"),
        ({"tokenizer": "/data/models/none"}, "dataset.tokenizer"),
    ],
)
def test_the_job_speaks_of_the_stacks_keys_and_of_upload(
    dataset: dict,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (container,) = pod(recorded("local", dataset=dataset), name="dataset")["containers"]
    keys = {entry["name"]: entry.get("value") for entry in container["env"]}[STACK_KEYS]
    config = parse(changed("local", dataset=dataset), "local")
    module, *arguments = prepare_command(config.training, config.dataset, str(tmp_path / "out"))
    monkeypatch.setenv(STACK_KEYS, str(keys))
    assert importlib.import_module(module).main(arguments) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)
    assert "--" not in line


def test_by_hand_the_arguments_keep_their_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delenv(STACK_KEYS, raising=False)

    @usage
    def main() -> int:
        raise UserError("--input x: no such file; see --documents")

    assert main() == EXIT_USAGE
    assert capsys.readouterr().err == "--input x: no such file; see --documents\n"
