"""What pods, the volume and the hub say reaches a terminal as plain text."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli import CommandError, doctor, logs
from cli.__main__ import main
from cli.follow import display, report
from cli.progress import Bar
from cli.status import screen
from cli.target import Target
from cli.training_status import TrainingStatus, summarize
from infra.finding import ok, problem
from prove.engine import Result
from prove.report import Screen
from tests.cli.test_status import TARGET, job, pod, told
from trainer.plain import plain

HOSTILE = {
    "OSC 52 writes the clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "OSC that a string terminator ends": "\x1b]0;title\x1b\\",
    "OSC without an end": "\x1b]8;;http://evil",
    "C1 OSC": "\x9d52;c;cm0=\x9c",
    "DCS": "\x1bP1$r0m\x1b\\",
    "APC": "\x1b_Gf=100;AAAA\x1b\\",
    "CSI moves the cursor": "\x1b[2A\x1b[K",
    "CSI with all kinds of bytes": "\x1b[?1049h\x1b[38;2;1;2;3m\x1b[ q",
    "C1 CSI": "\x9b2J",
    "a sequence within one": "\x1b\x1b[31m[31m\x1b[\x1b[Am",
    "reset": "\x1bc",
    "character set": "\x1b(0",
    "bell, backspace, carriage return, delete": "\x07\x08\x08\r\x7f\x0b\x0c\x0e",
    "bidi controls": "\u202etxt.exe\u2066\u2069\u200f\u061c",
    "line separators": "\u2028\u2029\x85",
    "half a character": "\ud800",
}
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
RICHS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\x1b\[2K|\r")
"""What rich itself writes: colours, the cursor on and off, up and to the line's end."""


def clean(shown: str, terminal: bool = False) -> bool:
    """Whether text is before and after, and nothing else than rich commands the terminal."""
    found = RICHS.sub("", shown) if terminal else shown
    return not UNSAFE.search(found) and "before" in found and "after" in found


TEXT = f"before{''.join(HOSTILE.values())}after"


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_commands_a_terminal_goes(kind: str) -> None:
    assert clean(plain(f"before{HOSTILE[kind]}after"))


@pytest.mark.parametrize("terminal", [False, True])
def test_incidents_and_reasons_to_wait_in_follow(terminal: bool) -> None:
    happened = {"time": 1.0, "worker": TEXT, "cause": TEXT}
    for found in (
        summarize(job(), [pod(0)], told(incidents=[happened])),
        TrainingStatus("j", "Waiting", f"ErrImagePull: {TEXT}"),
    ):
        shown = io.StringIO()
        with display(Console(file=shown, width=300, force_terminal=terminal, color_system=None)) as show:
            show(found, TARGET)
        assert clean(shown.getvalue(), terminal), repr(shown.getvalue())


def test_the_end_of_a_training() -> None:
    message = json.dumps({"message": TEXT, "step": 1, "sample": TEXT, "checkpoint": TEXT})
    for code, kind in ((0, "Complete"), (42, "Failed")):
        shown = io.StringIO()
        ended = pod(0, "Failed", {"exitCode": code, "message": message})
        found = summarize(job([{"type": kind, "status": "True"}]), [ended])
        report(Console(file=shown, width=200), Target("c", "n", "j", None, {}), found, "s", False)
        assert clean(shown.getvalue()), repr(shown.getvalue())


def test_every_cell_of_status() -> None:
    ended = {"exitCode": 1, "finishedAt": "2026-11-21T12:22:30Z", "message": json.dumps({"message": TEXT})}
    waiting = {"type": "PodScheduled", "status": "False", "message": TEXT}
    happened = {"time": 1.0, "worker": TEXT, "cause": TEXT}
    found = summarize(
        job([{"type": "Failed", "status": "True", "reason": TEXT, "message": TEXT}]),
        [pod(0, "Failed", ended), pod(1, "Pending", conditions=[waiting], containerStatuses=[]), pod(2, name=TEXT)],
        told(message=TEXT, state=TEXT, members={TEXT: 0}, incidents=[happened]),
    )
    shown = io.StringIO()
    Console(file=shown, width=300).print(screen(found, TARGET))
    assert clean(shown.getvalue()), repr(shown.getvalue())


@pytest.mark.parametrize("size", [1, 1000], ids=lambda size: f"in pieces of {size} bytes")
def test_a_log_that_is_printed_as_it_comes(
    size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sequence may be cut anywhere between two pieces of the stream."""
    raw = f"{TEXT}\nnächste\n".encode(errors="surrogatepass")
    stream = lambda **_: [raw[at : at + size] for at in range(0, len(raw), size)]  # noqa: E731
    core = SimpleNamespace(read_namespaced_pod_log=lambda *_, **__: SimpleNamespace(stream=stream))
    found: Any = SimpleNamespace(core=core, namespace="n", read=lambda: ({}, [pod(0)]), records=lambda _: {})
    monkeypatch.setattr(logs, "target_of", lambda *_: TARGET)
    monkeypatch.setattr(logs.TrainingJob, "of", lambda *_: found)
    logs.logs("local")
    shown = capsys.readouterr().out
    assert clean(shown), repr(shown)
    assert shown.endswith("\nnächste\n")


def test_errors_of_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (CommandError(TEXT), FileNotFoundError(2, "No such file", TEXT), ConnectionError(TEXT)):

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("cli.status.chosen", fail)
        assert main(["status", "--stack", "local"]) == 1
        assert clean(capsys.readouterr().err.replace("\\x", "").replace("\\u", ""))


@pytest.mark.parametrize("terminal", [False, True])
def test_reasons_to_wait_in_a_transfer(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("cli.progress.PLAIN_SECONDS", 0.0)
    with Bar(Console(file=shown, width=400, force_terminal=terminal, color_system=None)) as bar:
        bar.reached(1)
        bar.waiting(TEXT)
        bar._status._live.refresh()
    assert clean(shown.getvalue(), terminal), repr(shown.getvalue())


def test_findings_of_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show("Stack", iter([problem(TEXT, TEXT, TEXT), ok("x", TEXT)]))
    assert clean(capsys.readouterr().out)


def test_evidence_of_a_proof() -> None:
    shown = io.StringIO()
    step: Any = SimpleNamespace(name="volume", title="writes and renames")
    seen: Any = SimpleNamespace(results={"volume": None})
    Screen(seen, 1, Console(file=shown, width=300)).end(step, Result("failed", TEXT))
    assert clean(shown.getvalue()), repr(shown.getvalue())
