"""What every stack declares is reviewed: a change of the graph changes a file in tests/snapshots/."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import infra.image
import workloads.training
from cli.__main__ import main
from infra.stackfiles import ROOT, stacks
from review import snapshot
from review.recording import Recorded, Recording, record_anywhere
from tests.infra.recorded import recorded

Edit = Callable[[Path], object]


@pytest.mark.parametrize("stack", stacks())
def test_the_program_declares_what_was_reviewed(stack: str) -> None:
    text = snapshot.difference(stack, snapshot.declared(stack))
    assert not text, f"\n{text}\n\nIf that is meant: `make snapshots`, and commit tests/snapshots/{stack}.yaml"


def test_a_change_of_the_trainers_code_makes_a_new_image_and_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recorded("local").outputs["jobName"]
    monkeypatch.setattr(infra.image, "content_hash", lambda *_: "fedcba987654")
    after = record_anywhere("local")
    assert after.one("BuildahImage").inputs["target"].endswith(":fedcba987654")
    assert before != after.outputs["jobName"]


def test_a_change_that_makes_a_new_job_shows_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a key that enters the hash of every stack's Job, whose trainings it would restart."""
    real = workloads.training.identity
    monkeypatch.setattr(workloads.training, "identity", lambda *given: {**real(*given), "new": True})
    lines = snapshot.difference("local", snapshot.declared("local")).splitlines()
    former = [line.split(":")[0].strip("- ") for line in lines if line[:1] == "-" and "name:" in line]
    assert former == ["name", "name", "configMap", "name"], "the Job, its patch, and its configuration"


def test_a_change_of_an_option_shows_as_one_readable_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(snapshot, "FOLDER", tmp_path)
    assert main(["dev", "snapshot", "--stack", "local", "--update"]) == 0
    path = tmp_path / "local.yaml"
    path.write_text(path.read_text().replace("backoffLimitPerIndex: 20", "backoffLimitPerIndex: 21"))
    capsys.readouterr()
    assert main(["dev", "snapshot", "--stack", "local"]) == 1
    shown = capsys.readouterr()
    changed = [line for line in shown.out.splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    assert [line.split() for line in changed] == [
        ["-", "backoffLimitPerIndex:", "21"],
        ["+", "backoffLimitPerIndex:", "20"],
    ]
    assert "make snapshots" in shown.err


def resource(name: str, after: tuple[str, ...] = (), **inputs: object) -> Recorded:
    urn = "urn:pulumi:s::p::test:index:Thing::{}".format
    before = tuple(map(urn, after))
    return Recorded(
        type="test:index:Thing", name=name, urn=urn(name), inputs=dict(inputs), dependencies=before, custom=True
    )


def test_no_secret_reaches_the_file_at_any_depth() -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "hunter2"}
    stack = Recording([resource("a", token=secret, nested={"list": [secret]})], {"password": secret})
    text = snapshot.snapshot(stack, "s")
    assert "hunter2" not in text
    assert text.count("[secret]") == 3


def test_the_order_of_registration_and_implied_dependencies_do_not_show() -> None:
    first, second, third = resource("a"), resource("b", ("a",)), resource("c", ("a", "b"))
    text = snapshot.snapshot(Recording([first, second, third], {}), "s")
    assert text == snapshot.snapshot(Recording([third, first, second], {}), "s")
    assert "after: ['test:index:Thing b']" in text


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit: the stack gcp-smoke with its snapshot, and `mine`, which has none."""
    for relative in ("Pulumi.gcp-smoke.yaml", "tests/snapshots/gcp-smoke.yaml"):
        (tmp_path / relative).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / relative).write_text((ROOT / relative).read_text())
    (tmp_path / "Pulumi.mine.yaml").write_text((ROOT / "Pulumi.local.yaml").read_text())
    monkeypatch.setattr(snapshot, "ROOT", tmp_path)
    monkeypatch.setattr(snapshot, "FOLDER", tmp_path / "tests" / "snapshots")
    monkeypatch.setattr("infra.stackfiles.ROOT", tmp_path)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def edited(old: str, new: str) -> Edit:
    def edit(file: Path) -> None:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return edit


def copied(file: Path) -> None:
    file.write_text((ROOT / "Pulumi.local.yaml").read_text())


@pytest.mark.parametrize(
    ("stack", "edit", "said"),
    [
        ("mine", edited("memoryGib: 2", "memoryGib: 3"), "changed `kubernetes:batch/v1:Job training"),
        (
            "mine",
            edited("config:", "config:\n  trainyard:secrets: {wandbApiKey: b}"),
            "other in Pulumi.mine.yaml: `secrets.wandbApiKey`",
        ),
        (
            "gcp-smoke",
            edited("ttlHours: ", "ttlHours: 1"),
            "0 added, 0 deleted, 0 changed\n\n- other in Pulumi.gcp-smoke.yaml: `cluster.ttlHours`",
        ),
        ("new", copied, "added `kubernetes:batch/v1:Job training"),
        ("gcp-smoke", Path.unlink, "deleted `gcp:container/cluster:Cluster"),
    ],
    ids=["edited", "secret", "no resource", "new", "removed"],
)
def test_what_the_stacks_declare_is_compared_with_a_commit_whether_snapshots_follow_or_not(
    stack: str, edit: Edit, said: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(repository / f"Pulumi.{stack}.yaml")
    names = [] if said.startswith("deleted") else ["--stack", stack]
    assert main(["dev", "snapshot", *names, "--against", "HEAD"]) == 0
    shown = capsys.readouterr().out
    assert said in shown.partition(f"### {stack} against HEAD")[2].partition("###")[0]
    if said.startswith("deleted `gcp"):
        assert "→ 0\n" in shown, "and costs nothing any more"


def test_what_git_does_not_know_is_refused_in_a_line(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "snapshot", "--stack", "mine", "--against", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: git knows no commit 'nowhere'; give a branch")


def test_a_file_that_no_longer_passes_is_named_with_its_commit(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_git", lambda *words: None if ":tests" in words[-1] else "config: {trainyard:x: 1}")
    assert main(["dev", "snapshot", "--stack", "mine", "--against", "HEAD"]) == 2
    assert capsys.readouterr().err.startswith("error: Pulumi.mine.yaml in HEAD cannot be compared: invalid config")


def test_a_name_from_a_fork_is_no_markup(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"resources": {"x:y:Z a` <img src=x> [b](c)": {}}}
    monkeypatch.setattr(snapshot, "_at", lambda *_: named)
    assert "- deleted `x:y:Z a <img src=x> [b](c)`" in snapshot.summary("mine", "HEAD")
