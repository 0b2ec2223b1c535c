"""The configuration that a proof derives from a stack file, its early refusals, and its report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.__main__ import main
from infra.finding import problem
from infra.parse import parse
from infra.stackfiles import stack_file_values, stacks
from prove import bring_up, close, command, report
from prove.command import STEPS, steps
from prove.engine import Cannot, Result, State
from prove.subject import LONG, MAX_HOURS, Subject, hourly, overridden
from review.recording import record


@pytest.mark.parametrize("stack", stacks())
def test_every_stack_can_be_proved(stack: str, local_kubeconfig: Path) -> None:
    state = State(stack, Path())
    values = overridden(stack_file_values(stack), stack, state)
    config = parse(values, f"prove-{stack}")
    assert config.training.steps == LONG
    assert config.workers.min == 1
    assert config.check.enabled
    storage = config.storage.model_dump()
    assert not storage.get("disk")
    assert not storage.get("retain")
    # Google allows a service account 30 characters.
    assert config.nodes is None or len(f"{config.name}-nodes") <= 30
    if config.nodes is None:  # those of clouds are declared below, where their minutes are counted
        record(f"prove-{stack}", values)
    assert overridden({}, stack, State(stack, Path(), notes={"values": values})) == values


def test_the_machines_and_the_model_are_those_of_the_stack() -> None:
    given = stack_file_values("gcp-a100")
    changed = overridden(given, "gcp-a100", State("gcp-a100", Path()))
    for key in ("machineType", "consumption", "max"):
        assert changed["nodes"][key] == given["nodes"][key]
    for key in ("model", "precision", "engine", "microBatch", "tokensPerStep", "sequenceLength"):
        assert changed["training"].get(key) == given["training"].get(key)
    assert given == stack_file_values("gcp-a100")


def test_a_training_that_begins_with_weights_is_proved_without_them() -> None:
    given = {"training": {"task": "distillation", "model": {"name": "gpt2"}}}
    given["training"]["distillation"] = {"teacher": "gpt2"}
    config = parse(overridden({"cluster": {"context": "x"}, **given}, "x", State("x", Path())), "prove-x")
    assert (config.training.model.size, config.training.distillation.teacher) == ("micro", "")


@pytest.mark.parametrize(
    ("tokenizer", "kept"), [("train:1024", {"tokenizer": "train:1024"}), ("Qwen/Qwen2.5-0.5B", {})]
)
def test_the_stacks_own_vocabulary_is_proved_where_it_needs_no_web(tokenizer: str, kept: dict[str, str]) -> None:
    state = State("x", Path())
    changed = overridden({"dataset": {"input": ["mine"], "tokenizer": tokenizer}}, "x", state)
    assert changed["dataset"] == {"name": state.notes["run"], "input": ["sample"], **kept}


@pytest.mark.parametrize("stack", [name for name in stacks() if name.endswith("-smoke")])
def test_the_smallest_stacks_are_proved_for_two_dollars(stack: str) -> None:
    values = overridden(stack_file_values(stack), stack, State(stack, Path()))
    assert 0 < hourly(parse(values, f"prove-{stack}")) * command.MINUTES / 60 < 2


def test_a_proof_costs_at_most_what_its_dearest_machines_do() -> None:
    def rate(**nodes: Any) -> float:
        values = stack_file_values("aws-g4dn")
        return hourly(parse({**values, "nodes": {**values["nodes"], **nodes}}, "aws-g4dn"))

    alone = rate(alternatives=[])
    assert rate(alternatives=["g4dn.2xlarge", "g4dn.4xlarge"]) == rate(alternatives=["g4dn.4xlarge"]) > alone
    assert rate(alternatives=[], fallback="on_demand") == rate(alternatives=[], consumption="on_demand") > alone


@pytest.mark.parametrize(("limit_usd", "hours"), [(100.0, 1.7), (10_000.0, MAX_HOURS)])
def test_the_training_of_a_proof_that_died_ends_near_its_limit(
    limit_usd: float, hours: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "")
    subject = Subject("gcp-a100", State("gcp-a100", tmp_path / "state.json", limit_usd=limit_usd), print)
    assert 59 < subject.state.usd_per_hour < 60
    assert subject.stack.values["job"]["maxHours"] == hours
    assert f"maxHours: {hours}" in subject.stack.config.read_text()


Prove = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Prove:
    """What `trainyard prove` says where it refuses to begin."""

    def prove(*arguments: str) -> str:
        assert main(["prove", *arguments]) == 2
        return capsys.readouterr().err

    return prove


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stack", "local", "--limit-usd", "-1"], "error: --limit-usd -1: must be more than 0"),
        (["--stack", "gcp-c3", "--destroy"], "error: --destroy: no run of gcp-c3 is known here"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], said: str, refused: Prove, tmp_path: Path) -> None:
    told = refused(*arguments, "--folder", str(tmp_path))
    assert told.startswith(said)
    assert len(told.splitlines()) == 1


def test_a_fix_names_the_users_stack_and_not_the_one_of_the_proof(
    refused: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = stack_file_values("local")
    del values["cluster"]["context"]
    monkeypatch.setattr("prove.subject.stack_file_values", lambda _: values)
    told = refused("--stack", "local", "--folder", str(tmp_path / "run"))
    assert "pulumi config set --stack local --path cluster.context" in told


def test_a_stack_that_would_cost_more_than_the_limit_is_not_begun(pulumi: Path, refused: Prove, tmp_path: Path) -> None:
    told = refused("--stack", "gcp-a100", "--folder", str(tmp_path / "run"))
    assert "error: --limit-usd 5: gcp-a100 costs" in told
    assert "give --limit-usd" in told
    assert not (tmp_path / "run" / "state.json").exists()


def test_a_machine_without_a_price_has_no_limit_to_hold(
    pulumi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = stack_file_values("gcp-a100")
    values["nodes"] = {"machineType": "a3-highgpu-1g", "consumption": "spot", "max": 1}
    monkeypatch.setattr("prove.subject.stack_file_values", lambda _: values)
    state = State("gcp-a100", tmp_path / "state.json", limit_usd=5)
    subject = Subject("gcp-a100", state, print)
    said = r"no list price is known for .*a3-highgpu-1g.* \(infra/gke/prices.yaml\).*; give --limit-usd inf"
    with pytest.raises(command.Refused, match=said):
        command._refuse_what_costs_more(subject)
    state.limit_usd = float("inf")
    command._refuse_what_costs_more(subject)


def test_a_doctor_that_stops_the_proof_names_the_stack_that_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject("gcp-smoke", State("gcp-smoke", tmp_path / "state.json"), print)
    fix = "pulumi config set --stack prove-gcp-smoke --path gke.project ID"
    monkeypatch.setattr("prove.bring_up.diagnose", lambda *_: [problem("gke.project", "is still a placeholder", fix)])
    with pytest.raises(AssertionError, match=r"--stack gcp-smoke --path gke\.project"):
        bring_up.doctor(subject)
    with pytest.raises(Cannot, match="nothing was made"):
        close.cost(subject)


def test_what_another_stack_has_is_no_leftover(pulumi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """prove-local-sweep may live on the same node."""
    own = ["trainyard-prove-local", "trainyard-trainyard-prove-local"]
    others = ["trainyard-prove-local-sweep", "trainyard-trainyard-prove-local-sweep", "my-trainyard-prove-local"]
    found = {"items": [{"metadata": {"name": name}} for name in (*own, *others)]}
    monkeypatch.setattr("prove.close.as_json", lambda ask: found)
    monkeypatch.setattr("prove.close.connect", lambda *_: None)
    monkeypatch.setattr("faults.stack.Stack.destroy", lambda stack: None)
    monkeypatch.setattr("faults.stack.Stack.remove", lambda stack: None)
    types = ["core/v1:Namespace", "core/v1:PersistentVolume", "core/v1:Service"]
    inputs = [*({"metadata": {"name": name}} for name in own), {"metadata": {"name": own[0], "namespace": own[0]}}]
    made = [{"urn": "u", "type": f"kubernetes:{kind}", "inputs": put} for kind, put in zip(types, inputs, strict=True)]
    pulumi.write_text(json.dumps({"deployment": {"resources": made}}))
    subject = Subject("local", State("local", tmp_path / "state.json"), lambda _: None)
    monkeypatch.setattr("prove.close._tidy", lambda subject: "")
    close.destroy(subject)
    assert close._objects(subject)[1] == [f"Namespace {own[0]}", f"PersistentVolume {own[1]}"]


def test_a_stack_that_is_there_is_not_touched(pulumi: Path, refused: Prove, tmp_path: Path) -> None:
    resources = [{"urn": "urn:pulumi:prove-gcp-c3::trainyard::gcp:x::y", "type": "gcp:x"}]
    pulumi.write_text(json.dumps({"deployment": {"resources": resources}}))
    told = refused("--stack", "gcp-c3", "--folder", str(tmp_path / "run"))
    assert "stack prove-gcp-c3 has resources but no recorded run; first: trainyard down --stack prove-gcp-c3" in told


def test_a_run_that_is_not_at_its_end_is_not_begun_anew(refused: Prove, tmp_path: Path) -> None:
    State("gcp-c3", tmp_path / "state.json", begun="2026-11-22", billed_from=1.0).save()
    told = refused("--stack", "gcp-c3", "--folder", str(tmp_path))
    assert "the run begun at 2026-11-22 has not finished; give --destroy to remove it" in told


def test_the_report_has_every_step_for_people_and_for_programs(tmp_path: Path) -> None:
    state = State("local", Path(), begun="2026-11-22T06:00:00Z")
    state.results = {step.name: Result("passed", f"{step.name} | seen", 61.0) for step in STEPS}
    state.results["accelerators"] = Result("cannot", "the stack asks for no accelerators")
    path = report.write("local", steps(short=False), state, {"date": "2026-11-22"}, tmp_path)
    page, content = path.read_text(), json.loads(path.with_suffix(".json").read_text())
    assert f"{len(STEPS) - 1} passed, 1 cannot be done here" in page
    assert "| accelerators | driver and device plugin | cannot be done here |" in page
    assert "up \\| seen" in page
    assert list(content["steps"]) == [step.name for step in STEPS]
    assert path.name == "prove-local.md"
