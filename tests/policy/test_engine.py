"""The policy pack in the real Pulumi engine: `pulumi preview --policy-pack policy` and `pulumi up` with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.stackfiles import ROOT
from tests.conftest import OFFER, write_kubeconfig
from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import CloudStack
from tests.standin.aws.account import Account, aws

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
PACK = ("--policy-pack", "policy")
#: Appended to the program: what nobody should add.
LOAD_BALANCER = """
import pulumi_kubernetes as k8s

k8s.core.v1.Service(
    "open",
    spec=k8s.core.v1.ServiceSpecArgs(type="LoadBalancer"),
    opts=pulumi.ResourceOptions(provider=cluster.provider),
)
"""


@pytest.fixture(scope="module", autouse=True)
def pack_environment() -> None:
    if not (ROOT / ".venv" / "policy" / "bin" / "python").exists():
        pytest.fail("the pack's environment is missing; run `make .venv/policy.stamp`")


@pytest.fixture
def local(tmp_path: Path) -> CloudStack:
    """The local stack, on a node that is a file."""
    stack = cloud_stack.make("local", tmp_path)
    stack.environment["KUBECONFIG"] = str(write_kubeconfig(tmp_path / "kubeconfig", "trainyard-local", OFFER))
    return stack


def test_the_local_stack_passes_and_each_thing_that_is_wrong_is_told(local: CloudStack) -> None:
    shown = local.pulumi("preview", *PACK)
    assert "✅ trainyard@" in shown
    assert "can't run policy" not in shown, "a rule stopped at a value that is not known yet"
    local.configure(rendezvous={"image": "quay.io/coreos/etcd:v3.6.5"})
    local.pulumi("preview", *PACK, fails=True)
    assert "[mandatory]  image-by-digest" in local.text
    assert "container etcd runs quay.io/coreos/etcd:v3.6.5; give NAME@sha256:DIGEST" in local.text
    assert local.text.count("[mandatory]") == 1


def test_the_stack_on_aws_passes(tmp_path: Path) -> None:
    with aws() as endpoint:
        stack = cloud_stack.make("aws-g4dn", tmp_path, Account(endpoint, "500000000099", "us-east-2"))
        shown = stack.pulumi("preview", *PACK)
    assert "✅ trainyard@" in shown
    assert "can't run policy" not in shown


def test_up_stops_before_it_makes_what_breaks_a_rule(tmp_path: Path) -> None:
    stack = cloud_stack.make("gcp-c3", tmp_path)
    stack.pulumi("up", "--yes", "--skip-preview", *PACK)
    assert "✅ trainyard@" in stack.text
    program = tmp_path / "__main__.py"
    text = program.read_text()
    program.unlink()
    program.write_text(text + LOAD_BALANCER)
    stack.pulumi("up", "--yes", "--skip-preview", *PACK, fails=True)
    assert "[mandatory]  no-load-balancer" in stack.text
    assert not [thing for thing in stack.cloud.things().values() if thing.name == "open"]
    # The pack sees no deletedWith, so only the check of a recording has the rule for it.
    assert "goes-with-cluster" not in stack.text
