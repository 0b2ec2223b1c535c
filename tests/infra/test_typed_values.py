"""Values of a stack file as people type them: the engine, the doctor and the cost read them alike; tokens are said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from cli import CommandError
from cli.doctor import diagnose
from cli.target import configuration
from infra import settings, stackfiles
from infra.config import ConfigError, StackConfig
from infra.parse import parse
from review.recording import record
from tests.infra.recorded import changed, problems
from trainer.config.values import Bare

Files = Callable[[str], None]
#: What is typed -> what Pulumi's engine passes for it, where it keeps the text, and where it spells it anew (measured
#: with Pulumi 3.200.0; tests/e2e/test_typed_values.py).
KEPT = {
    "8": 8,
    "1.36": 1.36,
    "true": True,
    "on": "on",
    "y": "y",
    "20:22": "20:22",
    "2026-13-45": "2026-13-45",
    "'1.30'": "1.30",
}
RESPELLED = {
    "1.30": 1.3,
    "010": 8,
    "0x10": 16,
    "1_000": 1000,
    "1E3": 1000,
    ".5": 0.5,
    "True": True,
    "2026-11-01": "2026-11-01 00:00:00 +0000 UTC",
    "2026-11-01T10:00:00Z": "2026-11-01 10:00:00 +0000 UTC",
    "123456789012345678901234567890": 1.2345678901234568e29,
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Write the sections of the stack `mine`, indented as under `config:`."""
    monkeypatch.setattr(stackfiles, "ROOT", tmp_path)
    monkeypatch.setattr("cli.target.stacks", lambda: ["mine"])

    def write(sections: str) -> None:
        (tmp_path / "Pulumi.mine.yaml").write_text(f"config:\n  trainyard:cluster: {{context: x}}\n{sections}")

    return write


def by_engine(monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], hidden: tuple[str, ...] = ()) -> StackConfig:
    passed = {f"trainyard:{key}": json.dumps(value) for key, value in values.items()}
    monkeypatch.setattr(settings, "CONFIG", SimpleNamespace(get=lambda: passed))
    monkeypatch.setattr(pulumi, "get_stack", lambda: "mine")
    monkeypatch.setattr(settings, "is_config_secret", lambda key: key.removeprefix("trainyard:") in hidden)
    return parse(settings.stack_values(), "mine")


@pytest.mark.parametrize("text", [*KEPT, *RESPELLED])
def test_where_text_is_wanted_it_is_the_text_that_was_typed_or_the_message_says_how_to_write_it(
    text: str, file: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(f"  trainyard:workers: {{environment: {{VALUE: {text}}}}}\n")
    passed = {**KEPT, **RESPELLED}[text]
    given = {"cluster": {"context": "x"}, "workers": {"environment": {"VALUE": passed}}}
    for read in (lambda: configuration("mine"), lambda: by_engine(monkeypatch, given)):
        if text in KEPT:
            assert read().workers.environment == {"VALUE": text.strip("'\"")}
            continue
        with pytest.raises(
            (ConfigError, CommandError), match=r"workers\.environment\.VALUE: .* without quotes.* write "
        ) as said:
            read()
        assert f"write '{text}'" in str(said.value)


@pytest.mark.parametrize("made", [made for made in RESPELLED.values() if isinstance(made, str)])
def test_a_date_that_pulumi_rewrote_in_the_file_is_refused_where_text_is_wanted(made: str) -> None:
    with pytest.raises(ConfigError, match="is what Pulumi made of a date without quotes; write it in them"):
        parse({"cluster": {"context": "x"}, "job": {"name": made}}, "test")


@pytest.mark.parametrize(
    ("key", "typed", "passed", "meant"),
    [
        ("workers.count", "3", 3, 3),
        ("workers.count", "1e1", 10, 10),
        ("workers.count", "'3'", "3", 3),
        ("training.optimizer.learning_rate", "1e-4", 0.0001, 1e-4),
        ("dataset.validation_fraction", ".25", 0.25, 0.25),
        ("tensorboard.enabled", "off", "off", False),
        ("job.name", "'2026-11-01'", "2026-11-01", "2026-11-01"),
        ("training.metrics.profile", "20:22", "20:22", "20:22"),
    ],
)
def test_numbers_and_switches_are_read_in_each_of_their_forms(
    key: str, typed: str, passed: Any, meant: Any, file: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, *inner = key.split(".")
    file(f"  trainyard:{section}: {{{': {'.join(inner)}: {typed}{'}' * len(inner)}\n")
    for part in reversed(inner):
        passed = {part: passed}
    for config in (configuration("mine"), by_engine(monkeypatch, {"cluster": {"context": "x"}, section: passed})):
        found: Any = config
        for part in key.split("."):
            found = getattr(found, part)
        assert found == meant


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"workers": {"count": "010"}}, "workers.count: 010 is one number to some readers and octal to others; write"),
        ({"workers": {"count": None}}, "workers.count: is empty; give a value, or remove the key"),
        ({"workers": {"count": True}}, "workers.count: true is not a number"),
        ({"workers": {"count": {"a": {"b": None}}}}, "workers.count: {a: {b: nothing}} is not a whole number"),
        ({"workers": {"count": "9" * 5000}}, "workers.count: '9999"),
        ({"workers": {"environment": ["A=1"]}}, "workers.environment: [A=1] is not a section; give it as keys and val"),
        ({"storage": {"accessMode": ["x"]}}, "storage.accessMode: [x] is not known; allowed: 'ReadWriteMany', 'ReadW"),
        ({"tensorboard": {"enabled": 2}}, "tensorboard.enabled: 2 is not true or false"),
        ({"training": {"microBatch": [1]}}, "training.microBatch: [1] is not a whole number or auto"),
        ({"secrets": {"huggingFaceToken": {"a": "hf_x"}}}, "secrets.huggingFaceToken: (secret) is not text"),
        ({"workers": {"count": {"secure": "v1:x"}}}, "workers.count: is encrypted, and only `pulumi` can read it; set"),
    ],
)
def test_a_message_shows_a_value_as_a_stack_file_writes_it(sections: dict[str, Any], said: str) -> None:
    (line,) = problems({"cluster": {"context": "x"}, **sections})
    assert line.startswith(said)
    assert not any(word in line for word in ("None", "True", "False", "dict", "NoneType"))


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        (
            {"workers": {"environment": {key: {"secure": "v1:x"} for key in "AB"} | {"C": [1], "D": "x", "E": None}}},
            ["environment.A", "environment.B", "environment.C", "environment.E"],
        ),
        (
            {"dataset": {"input": [Bare("1.30"), "a.txt", {"secure": "v1:x"}, {}]}},
            ["input.0", "input.2", "input.3"],
        ),
        ({"workers": {"nodeSelector": {"a": {"secure": "v1:x"}, "b": [1]}}}, ["nodeSelector.a", "nodeSelector.b"]),
    ],
)
def test_each_wrong_value_of_a_list_or_a_mapping_is_named_at_once(sections: dict[str, Any], keys: list[str]) -> None:
    (section,), found = sections, problems({"cluster": {"context": "x"}, **sections})
    assert sorted(line.partition(":")[0] for line in found) == [f"{section}.{key}" for key in keys]


def test_a_section_in_json_and_one_whose_keys_are_comments_are_read(file: Files) -> None:
    file("  trainyard:workers: '{\"count\": 3}'\n  trainyard:training:\n    model:\n      # preset: tiny\n")
    config = configuration("mine")
    assert (config.workers.count, config.training.model.size) == (3, "small")


def test_the_doctor_and_the_cost_read_a_stack_with_encrypted_tokens(file: Files) -> None:
    file("  trainyard:secrets: {huggingFaceToken: {secure: AAABAB}, imagePull: {secure: AAABAC}}\n")
    assert configuration("mine").secrets.hugging_face_token
    assert [item.level for item in diagnose("mine") if item.key.startswith("secrets.")] == []
    assert next(diagnose("mine")).level == "ok"


PLAIN = "  trainyard:secrets:\n    huggingFaceToken: hf_abcdefghijklmnopqrstuvwxyz\n    wandbApiKey: {secure: v1:x}\n"
COMMAND = "pulumi config set --stack mine --secret --path secrets.huggingFaceToken"


def test_a_token_in_plain_text_is_warned_of_with_the_command_that_encrypts_it(
    file: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(PLAIN + "  trainyard:dataset: {input: ['https://me:password@server/x.txt']}\n")
    found = {item.key: item for item in diagnose("mine") if item.level == "warning"}
    assert found["secrets.huggingFaceToken"].fix == COMMAND
    assert "plain text" in found["dataset.input[0]"].text
    assert "secrets.wandbApiKey" not in found
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    secrets = {"huggingFaceToken": "hf_abcdefghijklmnopqrstuvwxyz", "wandbApiKey": "k" * 40}
    for hidden, written, expected in (
        ((), "", ["secrets.huggingFaceToken", "secrets.wandbApiKey"]),
        (("secrets",), PLAIN, ["secrets.huggingFaceToken"]),
        (("secrets",), "", []),
    ):
        warned.clear()
        file(written)
        by_engine(monkeypatch, {"cluster": {"context": "x"}}, hidden)
        settings.warn_of_tokens({"secrets": secrets}, "mine")
        assert [line.partition(":")[0] for line in warned] == expected
        assert not any(token in line for line in warned for token in secrets.values())


@pytest.mark.usefixtures("as_pulumi", "local_kubeconfig")
def test_a_preview_warns_of_a_token_in_plain_text(caplog: pytest.LogCaptureFixture) -> None:
    record("local", changed("local", secrets={"huggingFaceToken": "hf_abcdefghijklmnopqrstuvwxyz"}), known=False)
    (line,) = [line for line in caplog.messages if line.startswith("secrets.")]
    assert line.endswith(COMMAND.replace("mine", "local"))


@pytest.mark.parametrize(
    "token",
    ["hf_" + "a" * 34, "AKIA" + "A" * 16, "sk-proj-" + "b" * 40],
)
def test_a_token_in_a_variable_is_refused_by_its_form_whatever_the_variable_is_called(token: str) -> None:
    with pytest.raises(ConfigError, match=r"workers\.environment\.MINE: would be plain text in the Job"):
        parse({"cluster": {"context": "x"}, "workers": {"environment": {"MINE": token}}}, "test")
