"""The limits of every key of a stack: none is missing beside a sibling that has one, and the words are the code's."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, get_args

import pytest
from pydantic import SecretStr
from pydantic.alias_generators import to_camel

from infra.clouds import keys
from infra.config import ConfigError
from infra.parse import parse
from infra.stackfiles import plain_tokens
from tests.infra.recorded import changed, problems
from trainer.config.base import _kinds

#: Amounts of work, which nothing but patience limits; the trainer's own, by hand also on machines of the future.
NUMBERS = {
    re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): (field, kind)
    for key, field in keys().items()
    if not key.startswith("training.")
    for kind in (int, float)
    if kind in (field.annotation, *get_args(field.annotation))
    or any(kind in get_args(inner) for inner in get_args(field.annotation))
}


def bounds(field: Any) -> dict[str, float]:
    found: dict[str, float] = {}

    def look(item: Any) -> None:
        for name in ("ge", "gt", "le", "lt"):
            if getattr(item, name, None) is not None:
                found[name] = getattr(item, name)
        for inner in (*getattr(item, "metadata", ()), *getattr(item, "__metadata__", ()), *get_args(item)):
            look(inner)

    look(field)
    look(field.annotation)
    return found


def stack_of(section: str, name: str) -> str:
    """A stack whose kind of cluster has the key."""
    kinds = {"gcp-c3": "gke", "aws-smoke": "eks", "local": "existing"}
    return next(
        stack
        for stack, kind in kinds.items()
        if f"{section}.{to_camel(name)}" in keys(kind) or f"{section}.{name}" in keys(kind)
    )


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_has_a_limit_at_both_ends_and_the_message_says_it(key: str) -> None:
    field, kind = NUMBERS[key]
    found = bounds(field)
    assert {name[0] for name in found} == {"g", "l"}, f"{key} has only {found}"
    section, name = key.split(".")
    for bound, limit in found.items():
        step = (1 if kind is int else 0.0005) * (-1 if bound[0] == "g" else 1) * (bound in ("ge", "le"))
        lines = problems(changed(stack_of(section, name), **{section: {to_camel(name): limit + step}}))
        (line,) = [line for line in lines if line.startswith(f"{section}.{to_camel(name)}: ")]
        assert "must be " in line
        assert f" {limit:g}" in line.replace(f"{limit:.0f}", f"{limit:g}")


#: Keys of text for which "" is the way to write that there is none, and free text.
NONE_IS_A_VALUE = {key for key, field in keys().items() if field.default == ""} | {"training.evaluation.prompt"}
TEXTS = {
    key: field
    for key, field in keys().items()
    if _kinds(field.annotation) & {str, SecretStr} and not key.startswith(("workers.environment", "workers.nodeSel"))
}


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("blank", ["", "\u00a0"])
def test_text_that_says_nothing_is_refused_in_one_line_unless_nothing_is_a_value_of_its_key(
    key: str, blank: str
) -> None:
    section, *inner, name = key.split(".")
    listed = "tuple" in str(TEXTS[key].annotation)
    given: Any = {name: [blank] if listed else blank}
    for part in reversed(inner):
        given = {part: given}
    stack = stack_of(section, ".".join([*inner, name]))
    if key in NONE_IS_A_VALUE and (not blank or key == "training.evaluation.prompt"):
        with suppress(ConfigError):
            parse(changed(stack, **{section: given}), "test")
        return
    lines = [line for line in problems(changed(stack, **{section: given})) if line.startswith(f"{key}{'.0' * listed}:")]
    assert lines
    assert re.search(r"is (blank|empty); give a value(, or remove the key)?$|names nothing; give", lines[0])


@pytest.mark.parametrize("token", ["hf_x\n", "hf_\u00fc"])
@pytest.mark.parametrize("key", ["huggingFaceToken", "imagePull"])
def test_a_token_that_no_header_carries_is_refused_and_not_shown(key: str, token: str) -> None:
    given = f"me:{token}" if key == "imagePull" else token
    (line,) = problems({"cluster": {"context": "x"}, "secrets": {key: given}})
    assert line.startswith(f"secrets.{key}: ")
    assert "hf_" not in line


def test_a_blank_secret_is_not_called_a_token() -> None:
    assert not list(plain_tokens({"secrets": {"huggingFaceToken": " "}}, "test"))
    assert list(plain_tokens({"secrets": {"huggingFaceToken": "hf_x"}}, "test"))


@pytest.mark.parametrize(
    ("stack", "key", "value", "said"),
    [
        (
            "gcp-c3",
            "gke.noUpgradesSince",
            "2026-02-30T25:61:00Z",
            "is no time with its zone; give one such as 2026-11-01T00",
        ),
        ("gcp-c3", "gke.noUpgradesSince", "2026-11-01T00:00:00", "is no time with its zone"),
        ("gcp-c3", "gke.noUpgradesSince", "2999-12-31T00:00:00Z", "lies in the future"),
        ("gcp-c3", "gke.noUpgradesSince", "0001-01-01T00:00:00+14:00", "is no time with its zone"),
        ("gcp-c3", "gke.noUpgradesSince", "0026-11-01T00:00:00Z", "lies before EKS and GKE"),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-20160501", "lies before EKS and GKE"),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-20260230", "is no release of EKS's images"),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-29991231", "lies in the future"),
        ("aws-smoke", "eks.admins", ["arn:aws:iam::123456789012:role/a?b"], "is not an IAM role or user"),
        ("aws-smoke", "storage.disk", "fs-0123", "is no file system; give its id"),
        ("local", "cluster.dns", ["fe80::1%eth0"], "is no address; give one as 10.0.0.10"),
        ("local", "workers.tolerations", ["pool=gpu NoSchedule"], "is no taint"),
    ],
)
def test_a_value_is_checked_and_not_only_its_form(stack: str, key: str, value: Any, said: str) -> None:
    section, name = key.split(".")
    (line,) = problems(changed(stack, **{section: {name: value}}))
    assert line.startswith(f"{key}")
    assert said in line


@pytest.mark.parametrize(
    ("stack", "key", "value", "read"),
    [
        ("gcp-c3", "gke.noUpgradesSince", "2024-02-29T23:59:59Z", "2024-02-29T23:59:59Z"),
        ("gcp-c3", "gke.noUpgradesSince", "2026-11-01T01:30:00+02:00", "2026-10-31T23:30:00Z"),
        ("gcp-c3", "gke.noUpgradesSince", None, None),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-20261101", "1.36.0-20261101"),
        ("aws-smoke", "eks.admins", ["arn:aws:iam::123456789012:user/a/b/me@x.org"], None),
    ],
)
def test_a_real_value_is_read(stack: str, key: str, value: Any, read: Any) -> None:
    section, name = key.split(".")
    config = parse(changed(stack, **{section: {name: value}}), "test")
    found = config.cloud if section in ("gke", "eks") else getattr(config, section)
    name = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
    assert getattr(found, name) == (read if read is not None or value is None else tuple(value))


@pytest.mark.parametrize(
    ("stack", "nodes", "said"),
    [
        (
            "gcp-a100",
            {"machineType": "a3-highgpu-1g", "consumption": "spot", "fallback": "on_demand"},
            "nodes.fallback: on_demand on a3-highgpu-1g, which comes in other ways; allowed: spot, flex_start, queued",
        ),
        (
            "aws-g4dn",
            {"machineType": "p4d.24xlarge"},
            "no worker here has its nvidia-tesla-a100; allowed: g4dn.xlarge, ",
        ),
        (
            "aws-g4dn",
            {"machineType": "c7i.4xlarge", "alternatives": []},
            "each worker here has an accelerator; allowed: g4",
        ),
        ("aws-g4dn", {"machineType": "gr6.4xlarge"}, "with its nvidia-l4: g6.4xlarge, "),
    ],
)
def test_a_machine_comes_in_its_own_ways_and_an_unknown_one_has_hints_by_accelerator(
    stack: str, nodes: dict[str, Any], said: str
) -> None:
    lines = problems(changed(stack, nodes=nodes))
    assert [line for line in lines if said in line], lines


@pytest.mark.parametrize("way", ["spot", "queued"])
def test_a_machine_in_its_own_way_is_valid(way: str) -> None:
    nodes = {"machineType": "a3-highgpu-2g", "consumption": way, "localSsds": None}
    assert parse(changed("gcp-a100", nodes=nodes, check={"enabled": False}), "gcp-a100")
