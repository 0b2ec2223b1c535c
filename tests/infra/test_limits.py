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
from tests.infra.recorded import changed
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


def problems(values: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(values, "test")
    return [*caught.value.lines]


def test_all_numbers_of_a_stack_were_found() -> None:
    assert {"workers.cpu", "storage.size_gib", "job.max_hours", "eks.system_nodes", "check.megabytes"} <= set(NUMBERS)


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


@pytest.mark.parametrize(
    ("stack", "values", "said"),
    [
        (
            "gcp-c3",
            {"storage": {"kind": "nfs", "sizeGib": 100_000}},
            "100000 with nfs, whose disk it is; allowed: 10 to",
        ),
        ("gcp-c3", {"storage": {"kind": "nfs", "sizeGib": 9}}, "9 with nfs, whose disk it is; allowed: 10 to 65536"),
        ("aws-smoke", {"storage": {"sizeGib": 2_000_000}}, "must be less than or equal to 1048576"),
        ("gcp-c3", {"storage": {"kind": "nfs", "disk": "My_Disk"}}, "'My_Disk' is no name of a disk"),
        ("local", {"storage": {"kind": "storageClass", "className": "Fast Disk"}}, "is not the name of a StorageClass"),
        *(
            (
                "aws-smoke",
                {"eks": {"vpcCidr": cidr}},
                f"{cidr} {why}; allowed: a range inside 10.0.0.0/8, 172.16.0.0/12",
            )
            for cidr, why in (
                ("198.18.0.0/16", "is for other uses"),
                ("127.0.0.0/16", "is for other uses"),
                ("169.254.0.0/16", "is for other uses"),
                ("100.64.0.0/16", "is for other uses"),
                ("240.0.0.0/16", "is for other uses"),
                ("172.32.0.0/16", "is public"),
                ("192.169.0.0/16", "is public"),
            )
        ),
        *(
            ("aws-smoke", {"eks": {"apiAllowedCidrs": [cidr]}}, f"{cidr} is a private range")
            for cidr in ("100.64.1.0/24", "198.18.0.0/24", "169.254.1.0/24", "224.0.0.0/24", "172.31.0.0/16")
        ),
    ],
)
def test_what_one_key_is_checked_for_its_siblings_are_too(stack: str, values: dict[str, Any], said: str) -> None:
    (line,) = problems(changed(stack, **values))
    assert said in line
    assert line.startswith(f"{next(iter(values))}.{next(iter(reversed(next(iter(values.values())))))}")


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "172.31.0.0/16", "192.168.0.0/20", "10.255.240.0/20"])
def test_what_the_words_allow_the_code_allows(cidr: str) -> None:
    assert parse(changed("aws-smoke", eks={"vpcCidr": cidr}), "test")


#: Keys of text for which "" is the way to write that there is none, and free text.
NONE_IS_A_VALUE = {key for key, field in keys().items() if field.default == ""} | {"training.evaluation.prompt"}
TEXTS = {
    key: field
    for key, field in keys().items()
    if _kinds(field.annotation) & {str, SecretStr} and not key.startswith(("workers.environment", "workers.nodeSel"))
}


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u00a0"])
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


@pytest.mark.parametrize("token", ["hf_x y", "hf_x\n", " hf_x", "hf_\u00fc", "hf_\x00"])
@pytest.mark.parametrize("key", ["huggingFaceToken", "wandbApiKey", "imagePull"])
def test_a_token_that_no_header_carries_is_refused_and_not_shown(key: str, token: str) -> None:
    given = f"me:{token}" if key == "imagePull" else token
    (line,) = problems({"cluster": {"context": "x"}, "secrets": {key: given}})
    assert line.startswith(f"secrets.{key}: ")
    assert "hf_" not in line


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_a_blank_secret_is_not_called_a_token(blank: str) -> None:
    assert not list(plain_tokens({"secrets": {"huggingFaceToken": blank}}, "test"))
    assert list(plain_tokens({"secrets": {"huggingFaceToken": "hf_x"}}, "test"))


@pytest.mark.parametrize("key", [key for key, (_, kind) in NUMBERS.items() if key.endswith("hours")])
def test_the_shortest_time_is_a_second_or_more_where_seconds_are_counted(key: str) -> None:
    assert round(bounds(NUMBERS[key][0])["ge"] * 3600) >= 1


@pytest.mark.parametrize(
    ("stack", "key", "value", "said"),
    [
        (
            "gcp-c3",
            "gke.noUpgradesSince",
            "2026-02-30T25:61:00Z",
            "is no time with its zone; give one such as 2026-11-01T00",
        ),
        ("gcp-c3", "gke.noUpgradesSince", "2025-02-29T00:00:00Z", "is no time with its zone"),
        ("gcp-c3", "gke.noUpgradesSince", "2026-11-01T00:00:00", "is no time with its zone"),
        ("gcp-c3", "gke.noUpgradesSince", "2026-11-01", "is no time with its zone"),
        ("gcp-c3", "gke.noUpgradesSince", "yesterday", "is no time with its zone"),
        ("gcp-c3", "gke.noUpgradesSince", "2999-12-31T00:00:00Z", "lies in the future"),
        ("gcp-c3", "gke.noUpgradesSince", "2999-12-31T00:00:00+01:00", "lies in the future"),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-20261301", "is no release of EKS's images; give latest"),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-20260230", "is no release of EKS's images"),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-2026110", "is no release of EKS's images"),
        ("aws-smoke", "eks.nodeRelease", "1.36.0-29991231", "lies in the future"),
        ("aws-smoke", "eks.admins", ["arn:aws:iam::123456789012:role/a?b"], "is not an IAM role or user"),
        ("aws-smoke", "eks.admins", ["arn:aws:iam::123456789012:role//ops"], "is not an IAM role or user"),
        ("aws-smoke", "storage.disk", "fs-0123", "is no file system; give its id"),
        ("local", "workers.runtimeClass", "nvidia..cdi", "is not the name of a RuntimeClass"),
        ("local", "workers.runtimeClass", "nvidia.-cdi", "is not the name of a RuntimeClass"),
        ("local", "workers.nodeSelector", {"a..b/pool": "gpu"}, "is no label"),
        ("local", "workers.tolerations", ["a..b/pool=gpu"], "is no taint"),
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
        ("aws-smoke", "storage.disk", "fs-0123456789abcdef0", "fs-0123456789abcdef0"),
        ("local", "workers.runtimeClass", "nvidia-cdi.example.org", "nvidia-cdi.example.org"),
        ("local", "workers.nodeSelector", {"k8s.io/pool": "gpu"}, {"k8s.io/pool": "gpu"}),
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
        *(
            (
                "gcp-a100",
                {"machineType": f"a3-highgpu-{size}g", "consumption": way, **more},
                f"nodes.consumption: {way} on a3-",
            )
            for size in (1, 2, 4)
            for way, more in (("on_demand", {}), ("reservation", {"reservation": "mine"}))
        ),
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
        ("aws-g4dn", {"machineType": "gr6.4xlarge"}, "with its nvidia-l4: g6.4xlarge, "),
        ("aws-g4dn", {"machineType": "p5.48xlarge"}, "no worker here has its nvidia-h100-80gb; allowed: g4dn.xlarge, "),
        ("aws-g4dn", {"machineType": "c7i.4xlarge"}, "no worker here has no accelerator; allowed"),
        ("aws-g4dn", {"machineType": "g4dn.3xlarge"}, "did you mean g4dn."),
        ("gcp-a100", {"machineType": "a3-megagpu-8g"}, "did you mean a3-highgpu-8g"),
        ("gcp-c3", {"machineType": "c4-highmem-8"}, "with no accelerator: c3-highmem-8, "),
        ("gcp-c3", {"machineType": "n2-standard-8"}, "with no accelerator: c3-standard-8, "),
        ("gcp-a100", {"machineType": "a4-highgpu-8g"}, "no worker here has its nvidia-b200; allowed: a2-highgpu-1g, "),
        ("gcp-a100", {"machineType": "zzz-1"}, "allowed: a2-highgpu-1g, "),
    ],
)
def test_a_machine_comes_in_its_own_ways_and_an_unknown_one_has_hints_by_accelerator(
    stack: str, nodes: dict[str, Any], said: str
) -> None:
    lines = problems(changed(stack, nodes=nodes))
    assert [line for line in lines if said in line], lines


@pytest.mark.parametrize("way", ["spot", "flex_start", "queued"])
def test_a_machine_in_its_own_way_is_valid(way: str) -> None:
    nodes = {"machineType": "a3-highgpu-2g", "consumption": way, "localSsds": None}
    assert parse(changed("gcp-a100", nodes=nodes, check={"enabled": False}), "gcp-a100")
