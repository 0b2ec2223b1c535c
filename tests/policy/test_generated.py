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
from tests.infra.recorded import changed

#: Configurations of each stack; each takes half a second to declare.
EXAMPLES = 12

NAMES = ["a", "trainyard", "team-1", "x" * 40]


def section(**keys: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keys, each with a value of a list or of a strategy."""
    return st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(of) if isinstance(of, list) else of for key, of in keys.items()}
    )


QUESTIONS = {
    "task": "question_answering",
    "model": {"name": "bert-large-uncased"},
    "sequenceLength": 384,
    "tokensPerStep": 48 * 384,
    "microBatch": 3,
}
SWITCH = section(enabled=[True, False])
ANY_STACK = {
    "training": st.builds(
        lambda engine, task: {**engine, **task},
        section(steps=st.integers(10**4, 10**6), engine=[{"name": "ddp"}, {"name": "deepspeed"}]),
        st.sampled_from([{}, {"model": {"name": "gpt2"}}, {"model": {"name": "/data/mine"}}, QUESTIONS]),
    ),
    "job": section(name=NAMES, maxHours=st.floats(0.5, 100)),
    "rendezvous": st.sampled_from([{}, {"tls": True}]),
    "tensorboard": SWITCH,
    "check": SWITCH,
    "secrets": section(huggingFaceToken=["hf_token"], wandbApiKey=["wandb_key"], imagePull=["you:ghp_x"]),
    "workers": section(spares=st.integers(0, 2), min=[1]),
}
INPUT = [["sample"], ["hf:squad"], ["/data/raw"]]
CLOUD = {
    **ANY_STACK,
    "cluster": section(namespace=NAMES, name=NAMES, deletionProtection=[True, False]),
    "image": st.sampled_from([{}, {"builder": "prebuilt", "ref": "ghcr.io/you/trainer@sha256:" + "a" * 64}]),
}
FILESTORE = {"kind": "filestore", "sizeGib": 1024, "retain": False}
GCP = {
    **CLOUD,
    "dataset": section(input=[*INPUT, ["gs://bucket/texts"]]),
    "nodes": section(
        consumption=["on_demand", "spot", "flex_start", "queued"],
        max=st.integers(3, 100),
        gpuDriver=["managed", "daemonset"],
        diskGib=st.integers(50, 1000),
    ),
    "storage": st.sampled_from([{}, {"retain": True}, {"disk": "mine"}, FILESTORE]),
}
AWS = {
    **CLOUD,
    "dataset": section(input=[*INPUT, ["s3://bucket/texts"]]),
    "nodes": section(consumption=["on_demand", "spot"], max=st.integers(3, 100), alternatives=[[], ["g4dn.2xlarge"]]),
    "eks": section(
        publicNodes=[True, False],
        irsa=[True, False],
        secretsEncryption=[True, False],
        apiAllowedCidrs=[["203.0.113.0/24"], ["198.51.100.7/32", "10.0.0.0/8"]],
    ),
}
LOCAL = {
    **ANY_STACK,
    "cluster": section(namespace=NAMES),
    "dataset": section(input=INPUT),
    "storage": st.sampled_from([{}, {"kind": "storageClass"}, {"kind": "storageClass", "className": "shared"}]),
    "workers": section(
        min=[1],
        nodeSelector=[{"agentpool": "gpu"}],
        tolerations=[["sku=gpu:NoSchedule"], ["dedicated"]],
        runtimeClass=["nvidia"],
    ),
}


def hold(stack: str, sections: dict[str, Any]) -> None:
    """Check that no configuration with changes of these sections breaks a rule; most must be valid."""
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


@pytest.mark.parametrize(
    ("stack", "nodes"),
    [
        ("gcp-a100", {"gpuDriver": "daemonset"}),
        ("aws-g4dn", {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True}),
    ],
)
def test_what_sees_its_node_may_do_so(stack: str, nodes: dict[str, Any]) -> None:
    found = record(stack, changed(stack, nodes=nodes))
    assert {"gpu-driver", "efa-device-plugin"} & {
        item.inputs.get("metadata", {}).get("name") for item in found.resources
    }
    assert broken(found) == []


@pytest.mark.usefixtures("local_kubeconfig")
def test_stacks_on_a_cluster_that_is_there() -> None:
    hold("local", LOCAL)
