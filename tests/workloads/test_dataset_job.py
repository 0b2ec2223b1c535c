"""A dataset Job with bad input ends at once, in the words of the stack."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from infra.parse import parse
from review.recording import Recording
from tests.infra.recorded import changed, recorded
from trainer.contract import EXIT_RESTART, EXIT_USAGE, STACK_KEYS
from trainer.data import sources
from trainer.errors import Passing, UserError, usage
from workloads.dataset import prepare_command


def container(stack: Recording) -> dict:
    return stack.one("Job", "dataset").inputs["spec"]["template"]["spec"]["containers"][0]


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
    stack = recorded("local", dataset=dataset)
    keys = {entry["name"]: entry.get("value") for entry in container(stack)["env"]}[STACK_KEYS]
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
    monkeypatch.setenv(STACK_KEYS, json.dumps({"--input": "dataset.input", "--documents": "dataset.documents"}))
    assert main() == EXIT_USAGE
    assert capsys.readouterr().err == "dataset.input x: no such file; see dataset.documents\n"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError("Connection reset by peer"), True),
        (OSError(16, "SlowDown: reduce your request rate"), True),  # EBUSY: s3fs of 503
        (PermissionError("403 Forbidden"), False),
        (OSError("Cannot connect to host nowhere:443 [Name or service not known]"), False),
    ],
)
def test_what_a_second_attempt_may_not_meet_is_retried_and_nothing_else(error: Exception, passes: bool) -> None:
    found = sources._unreached("https://host/a.txt", error)
    assert isinstance(found, Passing) == passes

    @usage
    def main() -> int:
        raise found

    assert main() == (EXIT_RESTART if passes else EXIT_USAGE)
