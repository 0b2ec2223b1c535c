"""Paths as people give them, wherever they give them: `~` is the home folder, and nothing makes a folder named `~`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.existing import kubeconfig_files
from infra.parse import parse
from trainer import evaluate, fetch, gpu_check, prepare, report, sample
from trainer.config import schema
from trainer.config.paths import expanded, folder, path_or_name
from trainer.data.sources import find
from trainer.errors import UserError
from trainer.export import __main__ as export

NEEDED = ["data.directory=/data/x", "run.directory=/data/y"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OTHER", "/elsewhere")
    return tmp_path


def test_home_folders_are_expanded_and_all_else_stays(home: Path) -> None:
    assert expanded("~/x") == f"{home}/x"
    assert expanded("~") == str(home)
    assert expanded("~root/x") == "/root/x"
    assert path_or_name("hf:~/x:train") == f"hf:{home}/x:train"
    for same in ("", "x", "/x/~", "a~b", "../x", "gpt2", "org/name@main", "hf:org/x/config:train", "hf:/x"):
        assert expanded(same) == same
    (home / "$x").mkdir()
    assert expanded(f"{home}/$x") == f"{home}/$x", "a folder that is there may have any name"


@pytest.mark.parametrize(
    "path", ["$OTHER/x", "/a/${OTHER}/x", "~/$OTHER", "${OTHER:-/r}/x", "$(pwd)/x", "a/${OTHER", "hf:$OTHER/x"]
)
def test_a_variable_is_refused_since_it_would_name_a_folder(path: str) -> None:
    with pytest.raises(ValueError, match="which is not expanded here; write the folder itself"):
        expanded(path)


@pytest.mark.parametrize(
    "key",
    [
        "run.directory",
        "data.directory",
        "model.name",
        "model.config",
        "distillation.teacher",
        "question_answering.train",
    ],
)
def test_every_path_of_a_training_is_expanded(key: str, home: Path) -> None:
    arguments = [argument for argument in NEEDED if not argument.startswith(key)]
    assert schema.flat(schema.load([*arguments, f"{key}=~/it"]))[key] == f"{home}/it"


def test_a_file_of_settings_is_found_in_the_home_folder_and_may_name_it(home: Path) -> None:
    (home / "mine.yaml").write_text("model:\n  name: ~/it\n")
    assert schema.load([*NEEDED, "--config", "~/mine.yaml"]).model.name == f"{home}/it"


def test_a_deepspeed_file_is_found_in_the_home_folder(home: Path) -> None:
    (home / "z1.json").write_text('{"gradient_clipping": 0.5}')
    given = {"engine": {"name": "deepspeed", "deepspeedConfig": "~/z1.json"}}
    stack = parse({"cluster": {"context": "x"}, "training": given}, "test").training
    by_hand = schema.load([*NEEDED, "engine.name=deepspeed", "engine.deepspeed_config=~/z1.json"])
    assert (by_hand.optimizer.clip, stack.optimizer.clip) == (0.5, 0.5)


@pytest.mark.parametrize("key", ["run.directory", "data.directory", "model.config", "engine.deepspeed_config"])
def test_a_path_with_an_unknown_user_or_a_variable_is_refused_by_its_key(key: str) -> None:
    for path, said in (("~nobody-here/x", "there is no user nobody-here here"), ("$OTHER/x", "is not expanded here")):
        with pytest.raises(UserError, match=rf"(?m)^{re.escape(key)}.*({said}|cannot be read)"):
            schema.load([*[each for each in NEEDED if not each.startswith(key)], f"{key}={path}"])


@pytest.mark.parametrize(
    ("main", "arguments", "option"),
    [
        (prepare.main, ["--input", "x", "--output", "~/o"], "output"),
        (prepare.main, ["--input", "~/o", "--output", "x"], "inputs"),
        (prepare.main, ["--input", "x", "--output", "x", "--tokenizer=~/o"], "tokenizer_spec"),
        (prepare.main, ["--input", "x", "--output", "x", "--chat-template=~/o"], "chat_template"),
        (fetch.main, ["--model", "gpt2", "--output", "~/o"], "output"),
        (fetch.main, ["--questions", "~/o", "--output", "x"], "questions"),
        (sample.main, ["--run", "~/o"], "run"),
        (sample.main, ["--model", "~/o"], "model"),
        (sample.main, ["--model", "x", "--base=~/o"], "base"),
        (export.main, ["--run", "x", "--output=~/o"], "output"),
        (report.main, ["~/o", "--output", "x"], "runs"),
        (report.main, ["x", "--output=~/o"], "output"),
        (evaluate.main, ["--model", "x", "--include", "~/o"], "include"),
        (gpu_check.main, ["--storage=~/o"], "storage"),
    ],
)
def test_every_path_of_a_command_is_expanded(
    main: Callable[..., Any], arguments: list[str], option: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = argparse.ArgumentParser.parse_args

    class Read(BaseException):
        pass

    def stop(self: Any, *given: Any) -> Any:
        raise Read(parsed(self, *given))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Read) as caught:
        main(arguments)
    value = getattr(caught.value.args[0], option)
    assert str(value[0] if isinstance(value, list) else value) == f"{home}/o"


def test_an_argument_says_what_is_wrong_with_a_path() -> None:
    for read in (folder, path_or_name):
        with pytest.raises(argparse.ArgumentTypeError, match="there is no user nobody-here here"):
            read("~nobody-here/x")


def test_a_stack_and_its_kubeconfig_may_be_in_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = parse({"cluster": {"context": "x", "kubeconfig": "~/kube"}}, "test").cluster
    assert kubeconfig_files(cluster.kubeconfig) == [home / "kube"]
    monkeypatch.setenv("KUBECONFIG", "~/a:/b")
    assert kubeconfig_files(None) == [home / "a", Path("/b")]


def test_an_input_in_the_home_folder_is_found(home: Path) -> None:
    (home / "a.txt").write_text("text")
    assert [source.name for source in find(["~/a.txt"])] == [f"{home}/a.txt"]
