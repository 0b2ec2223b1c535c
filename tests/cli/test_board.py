"""TensorBoard's port on this machine, and the template of the pods that reach the volume."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cli import CommandError, board
from cli.target import Target
from tests.infra.recorded import variant
from trainer.train.exporters import tag
from trainer.train.metrics import StepFigures
from workloads.layout import VOLUME_ACCESS


def test_a_forward_that_breaks_is_told_and_goes_on_with_the_next_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes, kubectl = tmp_path / "notes", tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\n[ -e {tmp_path}/none ] && echo "error: deployments.apps not found" >&2 && exit 1\n'
        f'echo "$KUBECONFIG $@" >> {notes}\necho Forwarding\n'
        f"[ $(wc -l < {notes}) = 2 ] && kill -INT $PPID && exec sleep 9\n"
        "echo error: lost connection to pod >&2; exit 1\n"
    )
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(board, "PAUSE", 0)
    target = Target("here", "space", "job", None, {}, kubeconfig="/k:/l")
    monkeypatch.setattr(board, "targets_of", lambda *_: [target])
    opened: list[str] = []
    monkeypatch.setattr(board.webbrowser, "open", opened.append)
    board.board("x", port=16006, no_browser=False)
    shown = capsys.readouterr()
    assert shown.out == "TensorBoard is at http://localhost:16006; Ctrl-C ends it\n"
    (page,) = map(urlsplit, opened)
    assert (page.netloc, page.fragment) == ("localhost:16006", "timeseries")
    pinned = json.loads(parse_qs(page.query)["pinnedCards"][0])
    assert pinned[0] == {"plugin": "scalars", "tag": "loss/loss"}, "the loss is on top"
    figures = {tag(name) for name in (*StepFigures.__dataclass_fields__, "validation_loss")}
    assert {card["tag"] for card in pinned} <= figures, "and each is a figure of a run"
    assert shown.err == "error: lost connection to pod; reload the page\n"
    forward = "port-forward --address=127.0.0.1 deployment/tensorboard 16006:6006"
    assert notes.read_text() == f"/k:/l --context=here --namespace=space {forward}\n" * 2
    (tmp_path / "none").touch()
    with pytest.raises(CommandError, match=r"^deployments\.apps not found$"):
        board.board("x", port=16006, no_browser=False)


def test_the_pod_on_the_volume_reads_from_web_and_buckets_as_the_dataset_job_does() -> None:
    stack = variant("gke spot")
    pod = stack.one("PodTemplate", VOLUME_ACCESS).inputs["template"]
    policy = stack.one("NetworkPolicy", "dataset").inputs["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= pod["metadata"]["labels"].items()
    account = stack.one("ServiceAccount", "dataset").inputs["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] == account
