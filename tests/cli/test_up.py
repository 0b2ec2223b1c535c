"""`trainyard up` and `down`: what is typed to Pulumi, and when nothing is; the local node's side is in
tests/local/test_another_cluster.py and tests/e2e."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from infra.stackfiles import NODE_CONTEXT, stack_file_values
from infra.state import BUILT
from review.recording import Recording, record_anywhere
from tests.forked import fork
from tests.local.test_leftovers import stack, stack_with
from tests.standin.api_server import until

#: Records what is typed; fails where a file $FAIL names the command; knows a stack with a training.
PULUMI = """#!/bin/sh
echo "$*" >> {notes}
[ "$1" = "$FAIL" ] && exit 9
case "$*" in
  version) echo 3.200.0 ;;
  *"stack export"*) cat {notes}.state 2>/dev/null || echo '{{"deployment": {{}}}}' ;;
  *"stack output"*) echo '{{"context": "there", "namespace": "n", "jobName": "j", "credentialsCommand": "log in"}}' ;;
esac
exit 0
"""
ASK_NOBODY = ["--yes", "--skip-preview", "--suppress-progress"]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the stand-in for Pulumi notes its command lines."""
    notes = tmp_path / "notes"
    notes.touch()
    (tmp_path / "pulumi").write_text(PULUMI.format(notes=notes))
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("cli.target.is_local", lambda stack: False)
    monkeypatch.setattr("cli.up.is_local", lambda stack: False)
    return notes


def test_a_cloud_stack_is_made_where_it_is_not_there_and_destroyed_with_its_history_kept(
    typed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--stack", "gcp-c3", "--yes"]) == 0
    select, up, *_ = typed.read_text().splitlines()
    assert select == "stack select --create gcp-c3"
    assert up.split() == ["up", "--stack", "gcp-c3", *ASK_NOBODY], "with Pulumi's own outputs"
    assert capsys.readouterr().err == "the stack is up; to see its training: run log in\n"
    assert main(["down", "--stack", "gcp-c3", "--yes"]) == 0
    looked, destroyed = [line.split() for line in typed.read_text().splitlines()[-2:]]
    assert looked[:2] == ["stack", "export"]
    assert destroyed == ["destroy", "--stack", "gcp-c3", *ASK_NOBODY, "--suppress-outputs"]


def test_an_up_that_may_replace_has_pulumis_preview(typed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There Pulumi refuses to replace what `pulumi state protect` protects; without it, when half is replaced."""
    values = stack_file_values("gcp-c3")
    monkeypatch.setattr(
        "cli.target.stack_file_values", lambda _: {**values, "cluster": {**values["cluster"], "replace": True}}
    )
    assert main(["up", "--stack", "gcp-c3", "--yes"]) == 0
    assert "up --stack gcp-c3 --yes --suppress-progress\n" in typed.read_text()


@pytest.mark.parametrize(("command", "fails", "code"), [("up", "up", 9), ("down", "destroy", 9), ("down", "stack", 1)])
def test_the_exit_code_is_pulumis_and_nothing_follows_a_failure(
    command: str, fails: str, code: int, typed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", fails)
    assert main([command, "--stack", "gcp-c3", "--yes"]) == code
    assert "stack output" not in typed.read_text(), "no training is resumed"
    assert ("destroy" in typed.read_text()) == (fails == "destroy"), "nor a state destroyed that cannot be read"


def in_state(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:gcp-c3::trainyard::{kind}::{name}", "type": kind, "custom": True, **more}


GKE, EKS, DISK = "gcp:container/cluster:Cluster", "aws:eks/cluster:Cluster", "gcp:compute/disk:Disk"
KEY = "cluster.deletionProtection: stack gcp-c3 was brought up with true, which protects"
BY_HAND = "stack gcp-c3: its state protects"


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ([in_state(GKE, "cluster", protect=True, inputs={"deletionProtection": True})], [f"{KEY} {GKE} cluster; "]),
        ([in_state(EKS, "cluster", inputs={"deletionProtection": True})], [f"{KEY} {EKS} cluster; "]),
        (
            [in_state(DISK, "data", protect=True), in_state(GKE, "cluster", inputs={"deletionProtection": False})],
            [f"{BY_HAND} {DISK} data (", f"--stack gcp-c3 urn:pulumi:gcp-c3::trainyard::{DISK}::data`"],
        ),
        (
            [in_state(DISK, f"d{n}", protect=True, retainOnDelete=True) for n in range(5)],
            [f"{BY_HAND} {DISK} d0, {DISK} d1, {DISK} d2, 2 more (", "unprotect --stack gcp-c3 --all`"],
        ),
    ],
    ids=["by the key", "by the cloud alone", "by hand", "all of them"],
)
def test_a_protected_stack_is_refused_before_anything_is_destroyed(
    resources: list[dict[str, Any]], said: list[str], typed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed.with_name("notes.state").write_text(json.dumps({"version": 3, "deployment": {"resources": resources}}))
    assert main(["down", "--stack", "gcp-c3", "--yes"]) == 2
    told = capsys.readouterr().err
    assert [part for part in said if part not in told] == [], told
    assert told.count("nothing was destroyed") == len(told.splitlines())
    assert "destroy" not in typed.read_text()


@pytest.mark.parametrize("key", ["storage.retain", "cluster.deletionProtection"])
@pytest.mark.parametrize(("built", "code"), [(False, 2), (True, 0)])
def test_what_the_file_would_keep_since_the_last_up_is_not_destroyed(
    key: str, built: bool, code: int, typed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pulumi destroys by the state, in which the disk is to go."""
    section, name = key.split(".")
    monkeypatch.setattr("cli.up.stack_file_values", lambda _: {"storage": None, section: {name: True}})
    parts = [in_state(BUILT, "storage", outputs={"values": json.dumps({key: built})}), in_state(BUILT, "cluster")]
    typed.with_name("notes.state").write_text(json.dumps({"deployment": {"resources": parts}}))
    assert main(["down", "--stack", "gcp-c3", "--yes"]) == code
    assert ("destroy" in typed.read_text()) == built
    assert capsys.readouterr().err.startswith(
        "" if built else f"error: {key}: true in Pulumi.gcp-c3.yaml, but stack gcp-c3"
    )


def test_what_the_stack_only_reads_protects_nothing(typed: Path) -> None:
    theirs = in_state(GKE, "theirs", external=True, inputs={"deletionProtection": True})
    typed.with_name("notes.state").write_text(json.dumps({"deployment": {"resources": [theirs]}}))
    assert main(["down", "--stack", "gcp-c3", "--yes"]) == 0


def test_without_a_terminal_nothing_happens_unasked(typed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--stack", "gcp-c3"]) == 2
    said = "error: nobody can be asked whether to destroy it without a terminal; give --yes\n"
    assert (capsys.readouterr().err, typed.read_text()) == (said, "")


def test_every_mistake_of_a_stack_file_is_told_before_anything_is_made(
    typed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infra.stackfiles.ROOT", tmp_path)
    (tmp_path / "Pulumi.mine.yaml").write_text(
        "config: {trainyard:cluster: {context: trainyard-local}, trainyard:workers: {count: 0}}\n"
    )
    assert main(["up", "--stack", "mine", "--yes"]) == 2
    assert "workers.count: 0 is not allowed" in capsys.readouterr().err
    assert typed.read_text() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_reaches_pulumi_which_ends_what_it_has_begun(terminal: bool, typed: Path) -> None:
    program = typed.with_name("pulumi")
    program.write_text(
        f"#!{sys.executable}\nimport signal, sys, time\nif 'export' in sys.argv:\n    print('{{}}'); sys.exit()\n"
        f"def end(*_):\n    time.sleep(0.2); open({str(typed)!r}, 'a').write('ended\\n'); sys.exit(5)\n"
        f"signal.signal(signal.SIGINT, end)\nopen({str(typed)!r}, 'a').write('began\\n')\n"
        "time.sleep(30) if 'destroy' in sys.argv else None\n"
    )
    ours, theirs = pty.openpty()
    streams = (theirs, theirs, theirs) if terminal else (-1, -1, -1)
    process = fork(["cli", "down", "--stack", "gcp-c3", "--yes"], {**os.environ}, streams)
    until(lambda: "began" in typed.read_text(), "Pulumi has begun")
    os.killpg(process, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 5
    os.close(ours)
    os.close(theirs)
    assert typed.read_text() == "began\nended\n"


@pytest.mark.parametrize(
    ("others", "words", "answer", "stopped", "said"),
    [
        ({"cloud": None, "kind": "kind-kind"}, ["--yes"], "", True, ""),
        ({"a": NODE_CONTEXT, "b": NODE_CONTEXT}, ["--yes"], "", False, "the node has the stacks a, b too, whose train"),
        ({"mine": NODE_CONTEXT}, [], "y", True, "Stop the node all the same?"),
    ],
)
def test_the_node_is_not_stopped_under_other_stacks_unasked(
    others: dict[str, str | None],
    words: list[str],
    answer: str,
    stopped: bool,
    said: str,
    typed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("infra.state.BACKEND", tmp_path / ".local/state")
    monkeypatch.setattr("cli.up._refuse_unasked", lambda *_: None)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr("cli.up.run", lambda *command: ran.append(command) or 0)
    monkeypatch.setattr("cli.up.pulumi", lambda *_: pytest.fail("the stack itself never was up"))
    for name, context in {"local": NODE_CONTEXT, **others}.items():
        stack(tmp_path, name, *stack_with(context))
    assert main(["down", "--stack", "local", *words]) == 0
    shown = capsys.readouterr().err
    assert any(command[-2:] == ("local", "down") for command in ran) == stopped
    assert said in shown
    assert ("the node stays up; to stop it: trainyard local down" in shown) == (not stopped)


def test_a_stack_whose_node_is_stopped_says_so(
    typed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed.with_name("pulumi").write_text(PULUMI.format(notes=typed).replace('"there"', f'"{NODE_CONTEXT}"'))
    monkeypatch.setattr("cli.target.is_local", lambda stack: True)
    monkeypatch.setattr("cli.target.enter_local", lambda: None)
    monkeypatch.setattr("cli.target.ROOT", tmp_path)
    assert main(["status", "--stack", "mine"]) == 1
    assert capsys.readouterr().err.startswith("error: the node is stopped; `trainyard local up` starts it")


def test_pulumi_that_fails_because_the_node_was_stopped_says_so(
    typed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `down` that waited for its answer while another one stopped the node."""
    monkeypatch.setattr("cli.up.is_local", lambda stack: True)
    monkeypatch.setattr("cli.up.enter_local", lambda: None)
    monkeypatch.setattr("cli.up.exported", lambda stack: {})
    monkeypatch.setattr("cli.target.ROOT", tmp_path)
    monkeypatch.setattr("cli.up.run", lambda *_: 0)
    monkeypatch.setattr("cli.pulumi._piped", lambda *_: 255)
    assert main(["down", "--stack", "mine", "--yes"]) == 255
    assert "error: the node is stopped; `trainyard local up` starts it" in capsys.readouterr().err


#: Has a volume after the first `up`, which it is told to stop there.
UPLOADING = """#!/bin/sh
[ "$1" = up ] && echo "up $TRAINYARD_ONLY_VOLUME" >> {notes}
case "$*" in
  *"stack output"*) grep -q up {notes} && echo '{{"context": "there", "namespace": "n"}}' || echo '{{}}' ;;
esac
"""


@pytest.mark.parametrize("there", [False, True])
def test_data_is_uploaded_between_the_volume_and_the_training_in_one_command(
    there: bool, typed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed.with_name("pulumi").write_text(UPLOADING.format(notes=typed))
    typed.write_text("up before\n" if there else "")
    monkeypatch.setattr("infra.stackfiles.ROOT", tmp_path)
    monkeypatch.setattr("cli.up._resume", lambda stack: 0)

    def send(source: Path, stack: str, *given: object, **_: object) -> None:
        with typed.open("a") as notes:
            notes.write(f"{Path(source).name} to {given[0]}\n")

    monkeypatch.setattr("cli.upload.send", send)
    values: dict[str, Any] = {"cluster": {"context": "kind-kind"}, "image": {"registry": "r:1"}}
    values |= {
        "dataset": {"input": ["*.txt", "corpus/*.md"], "tokenizer": "/data/words"},
        "training": {"model": {"name": "/data/models/base"}},
    }
    config = {f"trainyard:{key}": value for key, value in values.items()}
    (tmp_path / "Pulumi.mine.yaml").write_text(yaml.safe_dump({"config": config}))
    (tmp_path / "0a1b2c").write_text("text")
    (tmp_path / "book.txt").symlink_to("0a1b2c")  # as in the Hugging Face cache
    for folder, name in (("corpus", "a.md"), ("base", "config.json"), ("words", "tokenizer.json"), ("other", "b.md")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("{}")
    (tmp_path / "base" / "model.safetensors").symlink_to("../0a1b2c")
    sources = [word for name in ("book.txt", "corpus", "base", "words") for word in ("--data", str(tmp_path / name))]
    assert main(["up", "--stack", "mine", "--yes", *sources]) == 1, "a link without consent"
    assert main(["up", "--stack", "mine", "--yes", "--follow-links", *sources]) == 0
    sent = ["book.txt to /data", "corpus to /data/corpus", "base to /data/models/base", "words to /data/words"]
    assert typed.read_text().splitlines() == ["up before" if there else "up true", *sent, "up "]


def test_data_that_the_stack_does_not_read_is_refused_before_anything_is_made(
    typed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text("text")
    for given, said in (
        ("other.txt", "does not read /data/other.txt. To train on it: pulumi config"),
        ("gone", "no such"),
    ):
        assert main(["up", "--stack", "gcp-c3", "--yes", "--data", str(tmp_path / given)]) in (1, 2)
        assert said in capsys.readouterr().err
    assert typed.read_text() == ""


def test_a_volume_alone_has_what_an_upload_needs_and_no_job(
    local_stack: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_ONLY_VOLUME", "true")
    first = record_anywhere("local")
    kinds = {item.kind for item in first.resources}
    assert "PodTemplate" in kinds
    assert "Job" not in kinds
    assert {"context", "namespace"} <= first.outputs.keys()
    assert "jobName" not in first.outputs
    urns = {item.urn for item in local_stack.resources}
    assert {item.urn for item in first.resources} <= urns, "the rest is added to it"
