"""The rules hold for configurations that nobody wrote: hypothesis makes them, the program declares them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.config import ConfigError
from infra.parse import parse
from infra.stackfiles import stack_file_values
from policy.check import broken
from review.recording import record

#: Configurations of each stack; each takes half a second to declare.
EXAMPLES = 12

NAMES = st.sampled_from(["a", "trainyard", "team-1", "x" * 40])
WORKERS = st.fixed_dictionaries({}, optional={"spares": st.integers(0, 2), "min": st.just(1)})
TRAINING = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(1, 10**6),
        "engine": st.sampled_from(["ddp", "deepspeed"]),
        "maxHours": st.floats(0.5, 100),
        "task": st.sampled_from(["language_model", "question_answering"]),
        "weights": st.sampled_from(["gpt2", "/data/mine"]),
        "name": NAMES,
    },
)
RENDEZVOUS = st.sampled_from([{}, {"backend": "c10d"}, {"tls": True}])
SWITCH = st.fixed_dictionaries({}, optional={"enabled": st.booleans()})
SECRETS = st.fixed_dictionaries(
    {}, optional={"huggingFaceToken": st.just("hf_token"), "wandbApiKey": st.just("wandb_key")}
)
ANY_STACK = {
    "training": TRAINING,
    "rendezvous": RENDEZVOUS,
    "tensorboard": SWITCH,
    "check": SWITCH,
    "secrets": SECRETS,
    "workers": WORKERS,
}
IMAGE = st.sampled_from([{}, {"builder": "prebuilt", "ref": "ghcr.io/you/trainer@sha256:" + "a" * 64}])
CLUSTER = st.fixed_dictionaries({}, optional={"namespace": NAMES, "name": NAMES, "deletionProtection": st.booleans()})
INPUT = st.sampled_from([["sample"], ["hf:squad"], ["/data/raw"]])
GCP = {
    **ANY_STACK,
    "cluster": CLUSTER,
    "image": IMAGE,
    "dataset": st.fixed_dictionaries({}, optional={"input": st.one_of(INPUT, st.just(["gs://bucket/texts"]))}),
    "nodes": st.fixed_dictionaries(
        {},
        optional={
            "consumption": st.sampled_from(["on_demand", "spot", "flex_start", "queued"]),
            "max": st.integers(3, 100),
            "gpuDriver": st.sampled_from(["managed", "daemonset"]),
            "diskGib": st.integers(50, 1000),
        },
    ),
    "storage": st.sampled_from(
        [
            {},
            {"retain": True},
            {"disk": "mine"},
            {"kind": "filestore", "sizeGib": 1024, "diskType": "pd-ssd", "retain": False},
        ]
    ),
}
AWS = {
    **ANY_STACK,
    "cluster": CLUSTER,
    "image": IMAGE,
    "dataset": st.fixed_dictionaries({}, optional={"input": st.one_of(INPUT, st.just(["s3://bucket/texts"]))}),
    "nodes": st.fixed_dictionaries(
        {},
        optional={
            "consumption": st.sampled_from(["on_demand", "spot"]),
            "max": st.integers(3, 100),
            "alternatives": st.sampled_from([[], ["g4dn.2xlarge"]]),
        },
    ),
    "eks": st.fixed_dictionaries(
        {},
        optional={
            "publicNodes": st.booleans(),
            "irsa": st.booleans(),
            "secretsEncryption": st.booleans(),
            "apiAllowedCidrs": st.sampled_from([["203.0.113.0/24"], ["198.51.100.7/32", "10.0.0.0/8"]]),
        },
    ),
}
LOCAL = {
    **ANY_STACK,
    "cluster": st.fixed_dictionaries({}, optional={"namespace": NAMES}),
    "dataset": st.fixed_dictionaries({}, optional={"input": INPUT}),
    "storage": st.sampled_from([{}, {"kind": "storageClass"}, {"kind": "storageClass", "className": "shared"}]),
}


def hold(stack: str, sections: dict[str, Any]) -> None:
    """No configuration made of changes to these sections breaks a rule; most of them have to be valid."""
    declared = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.fixed_dictionaries({}, optional=sections))
    def holds(changes: dict[str, dict[str, Any]]) -> None:
        nonlocal declared
        values = stack_file_values(stack)
        values |= {name: {**values.get(name, {}), **change} for name, change in changes.items()}
        try:
            parse(values, stack)
        except ConfigError:
            return
        declared += 1
        assert broken(record(stack, values)) == []

    holds()
    assert declared > EXAMPLES / 2


def test_stacks_on_google_cloud() -> None:
    hold("gcp-a100", GCP)


def test_stacks_on_aws() -> None:
    hold("aws-g4dn", AWS)


@pytest.mark.usefixtures("local_kubeconfig")
def test_stacks_on_a_cluster_that_is_there() -> None:
    hold("local", LOCAL)
