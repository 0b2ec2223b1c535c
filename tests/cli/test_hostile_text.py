"""What pods, the volume and the hub say reaches a terminal as plain text."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli import CommandError, doctor, logs
from cli.__main__ import main
from cli.follow import display, report
from cli.progress import Bar
from cli.status import screen
from cli.training_status import TrainingStatus, summarize
from infra.finding import ok, problem
from prove.engine import Result
from prove.report import Screen
from tests.cli.cluster import TARGET, ended_job, job, pod
from tests.cli.test_status import told
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


HAPPENED = {"time": 1.0, "worker": TEXT, "cause": TEXT}
LAUNCHER = json.dumps({"message": TEXT, "step": 1, "sample": TEXT, "checkpoint": TEXT})
FAILED = summarize(
    job([{"type": "Failed", "status": "True", "reason": TEXT, "message": TEXT}]),
    [
        pod(0, "Failed", {"exitCode": 1, "finishedAt": "2026-11-21T12:22:30Z", "message": LAUNCHER}),
        pod(1, "Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": TEXT}]),
        pod(2, name=TEXT),
    ],
    told(message=TEXT, state=TEXT, members={TEXT: 0}, incidents=[HAPPENED]),
)
COMPLETE = summarize(ended_job("Complete"), [pod(0, "Succeeded", {"exitCode": 0, "message": LAUNCHER})])
RUNS = summarize(job(), [pod(0)], told(incidents=[HAPPENED]))
WAITS = TrainingStatus("j", "Waiting", f"ErrImagePull: {TEXT}")


def follow(console: Console, found: TrainingStatus) -> None:
    with display(console) as show:
        show(found, TARGET)


def transfer(console: Console) -> None:
    with Bar(console) as bar:
        bar.reached(1)
        bar.waiting(TEXT)
        bar._status._live.refresh()


def proof(console: Console) -> None:
    step: Any = SimpleNamespace(name="volume", title="writes and renames")
    seen: Any = SimpleNamespace(results={"volume": None})
    Screen(seen, 1, console).end(step, Result("failed", TEXT))


SHOWN: dict[str, Callable[[Console], None]] = {
    "every cell of status": lambda console: console.print(screen(FAILED, TARGET)),
    "incidents in follow": lambda console: follow(console, RUNS),
    "what follow waits for": lambda console: follow(console, WAITS),
    "the end of one that failed": lambda console: report(console, TARGET, FAILED, "s", False),
    "the end of one that is done": lambda console: report(console, TARGET, COMPLETE, "s", False),
    "what a transfer waits for": transfer,
    "evidence of a proof": proof,
}


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("what", SHOWN)
def test_what_a_console_shows(what: str, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.progress.PLAIN_SECONDS", 0.0)
    shown = io.StringIO()
    SHOWN[what](Console(file=shown, width=400, force_terminal=terminal, color_system=None))
    assert clean(shown.getvalue(), terminal), repr(shown.getvalue())


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


def test_findings_of_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show("Stack", iter([problem(TEXT, TEXT, TEXT), ok("x", TEXT)]))
    assert clean(capsys.readouterr().out)
