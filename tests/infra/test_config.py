"""Stack configuration: defaults, unknown keys, every rule, and all problems at once."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra import settings as pulumi_values
from infra.clouds import CLOUDS
from infra.config import DatasetConfig, shared_sections
from infra.parse import parse
from tests.infra import recorded
from tests.infra.recorded import changed

MINIMAL: dict[str, Any] = {"cluster": {"context": "somewhere"}}


def problems(**sections: Any) -> list[str]:
    return recorded.problems({**MINIMAL, **sections})


def test_every_problem_of_a_stack_is_reported_at_once() -> None:
    found = problems(
        cluster={"contxt": "x"},
        workers={"count": 0},
        storage={"kind": "zfs"},
        image={"builder": "prebuild"},
        training={"steps": -1, "optimizer": {"learningrate": 1}},
        surprise={},
    )
    paths = [problem.split(":")[0] for problem in found]
    assert paths == [
        "cluster.contxt",
        "image.builder",
        "storage.kind",
        "surprise",
        "training.optimizer.learningrate",
        "training.steps",
        "workers.count",
    ]


@pytest.mark.parametrize("key", ["gke.project", "eks.apiAllowedCidrs[0]"])
def test_a_key_that_was_set_without_path_says_how_to_set_it(key: str) -> None:
    (line,) = problems(**{key: "my-proj"})
    assert (
        line == f"{key}: was set without --path; pulumi config rm --stack test '{key}', "
        f"then pulumi config set --stack test --path '{key}' VALUE"
    )


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"storage": {"kind": "hostPath", "path": "x"}}, "storage.path: 'x' is relative"),
        ({"storage": {"tier": "ZONAL"}}, "storage.tier: unknown key; allowed: kind, sizeGib, path, "),
        (
            {"training": {"model": {"preset": "gpt5"}}},
            "training.model.preset: 'gpt5' is not known; allowed: tiny, micro",
        ),
        ({"training": {"compil": True}}, "training.compil: unknown key; did you mean compile?"),
        ({"training": {"micro_bach": 1}}, "training.micro_bach: unknown key; did you mean microBatch?"),
        ({"training": {"microBatch": 1, "micro_batch": 2}}, "training.microBatch: given twice, as microBatch and "),
        ({"training": {"learningRate": 1}}, "training.learningRate: unknown key; did you mean training.optimizer.lear"),
        ({"training": {"engine": {"zero_stage": 9}}}, "training.engine.zero_stage: 9 is not allowed; "),
        ({"machineType": "x"}, "machineType: unknown key; did you mean nodes.machineType?"),
        ({"dataset": {"name": "Open Web"}}, "dataset.name: 'Open Web' is not a name"),
        (
            {"dataset": {"input": "chats.jsonl"}},
            "dataset.input: 'chats.jsonl' is not a list; give it as [chats.jsonl]",
        ),
        ({"dataset": {"input": []}}, "dataset.input: is empty; give a value"),
        ({"dataset": {"input": [{}]}}, "dataset.input.0: {} is not text"),
        *(
            (
                {"dataset": {"input": ["sample", text]}},
                f"dataset.input.1: '{text}' names nothing; give a file or folder",
            )
            for text in ("", "s3:///texts", "hf:")
        ),
        (
            {"training": {"task": "question_answering", "questionAnswering": {"train": "gs://"}}},
            "training.questionAnswering.train: 'gs://' names nothing; give a file",
        ),
        ({"dataset": {"name": "c" * 41}}, f"dataset.name: '{'c' * 41}' has 41 characters; allowed: at most 40"),
        ({"training": "small"}, "training: 'small' is not a section"),
        ({"tensorboard": False}, "tensorboard: false is not a section; give it as keys and values"),
        ({"workers": {"cpu": "many"}}, "workers.cpu: 'many' is not a number"),
        ({"workers": {"cpu": "m" * 9000}}, f"workers.cpu: '{'m' * 299}... (9,002 characters) is not a number"),
        *(
            ({"image": {"registry": given}}, f"image.registry: '{given}' is no registry; give its host and path")
            for given in ("https://ghcr.io/you", "ghcr.io/you:1", "ghcr.io/You", "ghcr.io/you/", " ghcr.io/you")
        ),
        (
            {"workers": {"tolerations": ["sku=gpu:Never"]}},
            "workers.tolerations.0: 'sku=gpu:Never' is no taint; give KEY,",
        ),
    ],
)
def test_each_rule_says_what_is_wrong_and_what_is_allowed(sections: dict[str, Any], expected: str) -> None:
    found = problems(**sections)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("stack", "sections", "expected"),
    [
        ("gcp-a100", {"gke": {"project": "My Project"}}, "gke.project: 'My Project' is not a project id; `gcloud proj"),
        ("gcp-a100", {"gke": None}, "gke: missing; a cluster of kind gke needs gke.project, gke.zone"),
        ("gcp-a100", {"nodes": None}, "nodes: missing; a cluster of kind gke needs nodes.machineType"),
        ("gcp-a100", {"storage": {"kind": "hostPath"}}, "storage.kind: 'hostPath' is not known; allowed: 'nfs', 'fi"),
        ("local", {"gke": {"project": "my-project", "zone": "us-central1-a"}}, "gke: only used with clusters that the"),
        ("local", {"nodes": {"machineType": "a2-highgpu-8g"}}, "nodes: only used with clusters that the stack makes"),
        ("aws-g4dn", {"eks": {"region": "us-west-2b"}}, "eks.region: 'us-west-2b' is not a region; give one such as"),
        ("aws-g4dn", {"eks": {"zones": ["us-east-2a"]}}, "eks.zones.0: 'us-east-2a' is not a zone id; give one such"),
        (
            "aws-g4dn",
            {"eks": {"apiAllowedCidrs": ["198.51.100.7/24"]}},
            "eks.apiAllowedCidrs.0: '198.51.100.7/24'",
        ),
        ("aws-g4dn", {"eks": {"viewers": ["ci"]}}, "eks.viewers.0: 'ci' is not an IAM role or user; give its ARN"),
        ("aws-g4dn", {"eks": {"version": "1.29"}}, "eks.version: '1.29' is not known; allowed: '1.35', '1.36'"),
        ("aws-g4dn", {"nodes": {"diskType": "pd-ssd"}}, "nodes.diskType: unknown key; allowed: machineType, "),
        ("aws-g4dn", {"storage": {"kind": "nfs"}}, "storage.kind: 'nfs' is not known; allowed: 'efs'"),
    ],
)
def test_a_kind_of_cluster_has_its_own_keys(
    stack: str, sections: dict[str, dict[str, Any] | None], expected: str
) -> None:
    found = recorded.problems(changed(stack, **sections), stack)
    assert any(line.startswith(expected) for line in found), found


def test_figures_that_stay_on_the_volume_need_no_key() -> None:
    project = {"training": {"metrics": {"wandbProject": "gpt2"}}}
    parse({**MINIMAL, **project, "workers": {"environment": {"WANDB_MODE": "offline"}}}, "test")


def test_a_required_key_that_is_wrong_is_not_missing_too() -> None:
    found = problems(gke={"project": "p-12345", "zone": "us"}, cluster={"kind": "gke"})
    assert [problem for problem in found if problem.startswith("gke.zone")] == [
        "gke.zone: 'us' is not a zone; give one such as us-central1-a, with the letter"
    ]


SCALAR = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=True) | st.text(max_size=5)
KEYS = st.sampled_from(["kind", "context", "count", "min", "ref", "path", "input", "steps", "optimizer", "clip", "x"])


@given(
    st.dictionaries(
        st.sampled_from([*CLOUDS, *shared_sections(), "other"]),
        SCALAR
        | st.dictionaries(KEYS, SCALAR | st.lists(SCALAR, max_size=2) | st.dictionaries(KEYS, SCALAR, max_size=2)),
        max_size=4,
    )
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
def test_nothing_but_a_config_error_ever_comes_out(values: dict[str, Any]) -> None:
    assert all(problem and "\n" not in problem for problem in recorded.problems(values))


def test_a_section_whose_keys_are_all_commented_out_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulumi passes it as an empty text, not as null."""
    passed = {"trainyard:job": "", "trainyard:cluster": json.dumps(MINIMAL["cluster"])}
    monkeypatch.setattr(pulumi_values, "CONFIG", SimpleNamespace(get=lambda: passed))
    values = pulumi_values.stack_values()
    assert values == {"job": None, **MINIMAL}
    assert parse(values, "test").job == parse(MINIMAL, "test").job


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("10.0.0.5/24", "is no address; give one as 10.0.0.10, or a range by its first address, as 10.0.0.0/28"),
        ("0.0.0.0/0", "is in none of 10.0.0.0/8"),
        ("::/0", "is in none of 10.0.0.0/8"),
        ("169.254.169.254", "is in none of 10.0.0.0/8"),
        ("fc00::/7", "holds fd00:ec2::/32, with the credentials of AWS's nodes"),
    ],
)
def test_a_private_server_is_a_private_address(given: str, said: str) -> None:
    (line,) = problems(dataset={"privateServers": [given]})
    assert line.startswith("dataset.privateServers: '")
    assert said in line


def test_private_servers_are_normalised_and_do_not_name_the_dataset() -> None:
    def dataset(*given: str) -> DatasetConfig:
        values = {"cluster": {"context": "somewhere"}, "dataset": {"input": ["a.txt"], "privateServers": list(given)}}
        return parse(values, "test").dataset

    found = dataset("10.0.0.10", "10.0.0.10/32", "FD00:0::1", "100.64.0.0/10")
    assert found.private_servers == ("10.0.0.10/32", "fd00::1/128", "100.64.0.0/10")
    assert found.name == dataset().name
