"""A stack through Pulumi's Automation API, on the real engine, with a state of its own and no cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from faults.fault import Expected
from faults.stack import Stack
from infra.stackfiles import ROOT
from local import environment
from tests.conftest import OFFER, write_kubeconfig

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_stack_is_made_previewed_and_removed_and_the_selected_one_stays(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", "trainyard-local", OFFER)
    backend = environment.state_url(tmp_path / "state")
    variables = {**os.environ, **environment.settings(), "KUBECONFIG": str(kubeconfig), "PULUMI_BACKEND_URL": backend}
    stack = Stack("driven", tmp_path, variables)

    def pulumi(*command: str) -> str:
        return subprocess.run(
            ["pulumi", "stack", *command], cwd=ROOT, env=variables, capture_output=True, text=True
        ).stdout

    selected = pulumi("--show-name")
    assert (stack.exists(), stack.resources()) == (False, [])
    stack.init()
    assert (stack.exists(), stack.resources(), stack.outputs()) == (True, [], {})
    assert "kubernetes:batch/v1:Job training create" in stack.preview()
    with pytest.raises(Expected, match="no changes were expected"):
        stack.preview(expect_no_changes=True)
    stack.write(workers={"coutn": 3})  # from the file that the stack wrote, beside the user's
    with pytest.raises(Expected, match="invalid configuration of stack driven"):
        stack.up()
    stack.destroy()
    stack.remove()
    assert not stack.exists()
    assert pulumi("--show-name") == selected
    assert not (ROOT / "Pulumi.driven.yaml").exists()
