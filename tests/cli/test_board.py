"""TensorBoard's port on this machine, and the template of the pods that reach the volume."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cli import board
from cli.target import Target
from review.recording import Recording, record
from tests.infra.recorded import changed
from trainer.train.exporters import tag
from trainer.train.metrics import StepFigures
from workloads.layout import VOLUME_ACCESS


def test_a_forward_that_breaks_is_told_and_goes_on_with_the_next_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes, pods = tmp_path / "notes", iter(["tensorboard-1", "tensorboard-2", "tensorboard-3"])
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\necho "$KUBECONFIG $@" >> {notes}\n[ $(wc -l < {notes}) = 3 ] && kill -INT $PPID && sleep 9\n'
        "echo error: lost connection to pod >&2; exit 1\n"
    )
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(board, "PAUSE", 0)
    monkeypatch.setattr(board, "connect", lambda *_: None)
    target = Target("here", "space", "job", None, {}, kubeconfig="/k:/l")
    monkeypatch.setattr(board, "targets_of", lambda stack: [target])
    monkeypatch.setattr(board, "ready_pod", lambda *_: next(pods))
    opened: list[str] = []
    monkeypatch.setattr(board.webbrowser, "open", opened.append)
    board.board("x", port=16006, no_browser=False)
    shown = capsys.readouterr()
    (port,) = re.findall(r"http://localhost:(\d+); Ctrl-C ends it", shown.out)
    (page,) = map(urlsplit, opened)
    assert (page.netloc, page.fragment) == (f"localhost:{port}", "timeseries")
    pinned = json.loads(parse_qs(page.query)["pinnedCards"][0])
    assert pinned[0] == {"plugin": "scalars", "tag": "loss/loss"}, "the loss is on top"
    figures = {tag(name) for name in (*StepFigures.__dataclass_fields__, "validation_loss")}
    assert {card["tag"] for card in pinned} <= figures, "and each is a figure of a run"
    assert shown.err == "error: lost connection to pod; reload the page\n" * 2
    assert notes.read_text().splitlines() == [
        f"/k:/l --context=here --namespace=space port-forward --address=127.0.0.1 pod/tensorboard-{at} {port}:6006"
        for at in (1, 2, 3)
    ]


def test_a_port_that_is_taken_gives_the_next_one() -> None:
    port = board.free_port(17006)
    with socket.create_server(("127.0.0.1", port)):
        assert board.free_port(port) > port
        with pytest.raises(OSError, match=f"--port {port}: taken"):
            board.free_port(port, tries=1)


def pod_on_the_volume(stack: Recording) -> dict[str, Any]:
    return stack.one("PodTemplate", VOLUME_ACCESS).inputs["template"]


def test_the_pod_on_the_volume_gets_out_to_the_web_as_the_dataset_job_does(local_stack: Recording) -> None:
    policy = local_stack.one("NetworkPolicy", "dataset").inputs["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= pod_on_the_volume(local_stack)["metadata"]["labels"].items()


@pytest.mark.parametrize(("name", "bucket"), [("gcp-c3", "gs://texts/corpus"), ("aws-g4dn", "s3://texts/corpus")])
def test_on_a_cloud_it_may_read_the_buckets_that_the_stack_may_read(name: str, bucket: str) -> None:
    stack = record(name, changed(name, dataset={"input": [bucket]}))
    account = stack.one("ServiceAccount", "dataset").inputs["metadata"]["name"]
    assert pod_on_the_volume(stack)["spec"]["serviceAccountName"] == account
