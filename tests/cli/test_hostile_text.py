"""What pods, the volume and the hub say reaches a terminal as plain text, and what is no record crashes no command."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli import CommandError, doctor, logs
from cli.__main__ import main
from cli.follow import Board, report
from cli.progress import Bar
from cli.status import screen
from cli.target import Target
from cli.training_status import TrainingStatus, status_file, summarize
from infra.finding import ok, problem
from prove.engine import Result
from prove.report import Screen
from tests.cli.test_status import TARGET, job, pod, told
from trainer.record import of_line

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


@pytest.fixture(params=HOSTILE)
def text(request: pytest.FixtureRequest) -> str:
    return f"before{HOSTILE[request.param]}after"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_incidents_and_reasons_to_wait_in_follow(text: str, terminal: bool) -> None:
    happened = {"time": 1.0, "worker": text, "cause": text}
    for found in (
        summarize(job(), [pod(0)], told(incidents=[happened])),
        TrainingStatus("j", "Waiting", f"ErrImagePull: {text}"),
    ):
        shown = io.StringIO()
        with Board(Console(file=shown, width=300, force_terminal=terminal, color_system=None)) as board:
            board.show(found)
        assert clean(shown.getvalue(), terminal), repr(shown.getvalue())


def test_the_end_of_a_training(text: str) -> None:
    message = json.dumps({"message": text, "step": 1, "sample": text, "checkpoint": text})
    for code, kind in ((0, "Complete"), (42, "Failed")):
        shown = io.StringIO()
        ended = pod(0, "Failed", {"exitCode": code, "message": message})
        found = summarize(job([{"type": kind, "status": "True"}]), [ended])
        report(Console(file=shown, width=200), Target("c", "n", "j", None, {}), found, "s", False)
        assert clean(shown.getvalue()), repr(shown.getvalue())


def test_every_cell_of_status(text: str) -> None:
    ended = {"exitCode": 1, "finishedAt": "2026-11-21T12:22:30Z", "message": json.dumps({"message": text})}
    waiting = {"type": "PodScheduled", "status": "False", "message": text}
    happened = {"time": 1.0, "worker": text, "cause": text}
    found = summarize(
        job([{"type": "Failed", "status": "True", "reason": text, "message": text}]),
        [pod(0, "Failed", ended), pod(1, "Pending", conditions=[waiting], containerStatuses=[]), pod(2, name=text)],
        told(message=text, state=text, members={text: 0}, incidents=[happened]),
    )
    shown = io.StringIO()
    Console(file=shown, width=300).print(screen(found, TARGET, datetime(2026, 11, 21, 12, 30, tzinfo=UTC)))
    assert clean(shown.getvalue()), repr(shown.getvalue())


@pytest.mark.parametrize("size", [1, 3, 1000], ids=lambda size: f"in pieces of {size} bytes")
def test_a_log_that_is_printed_as_it_comes(
    text: str, size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sequence may be cut anywhere between two pieces of the stream."""
    raw = f"{text}\nnächste\n".encode(errors="surrogatepass")
    stream = lambda **_: [raw[at : at + size] for at in range(0, len(raw), size)]  # noqa: E731
    core = SimpleNamespace(read_namespaced_pod_log=lambda *_, **__: SimpleNamespace(stream=stream))
    found: Any = SimpleNamespace(core=core, read=lambda: ({}, [pod(0)]), records=lambda _: {})
    monkeypatch.setattr(logs, "target_of", lambda *_: TARGET)
    monkeypatch.setattr(logs.TrainingJob, "of", lambda *_: found)
    logs.logs("local")
    shown = capsys.readouterr().out
    assert clean(shown), repr(shown)
    assert shown.endswith("\nnächste\n")


def test_a_line_without_an_end_is_printed_in_pieces_and_hides_none_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []

    def log() -> Iterator[bytes]:
        yield b"2026-01-01T00:00:01.000000000Z long "
        for _ in range(50):
            yield b"z" * (1 << 16)
            most.append(tracemalloc.get_traced_memory()[0])
        yield b"\n2026-01-01T00:00:02.000000000Z short\n"

    core: Any = SimpleNamespace(read_namespaced_pod_log=lambda *_, **__: SimpleNamespace(stream=lambda **_: log()))
    seen: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: seen.append(text[-10:]))
    tracemalloc.start()
    newest = logs.print_after("", logs.TrainingJob(core, core, "n", "j"), "pod")
    tracemalloc.stop()
    assert len(most) == 50
    assert max(most) - most[0] < 4 << 20
    assert seen[-1] == "short\n"
    assert len(seen) == 52
    assert logs.print_after(newest, logs.TrainingJob(core, core, "n", "j"), "pod") == newest
    assert len(seen) == 52, "what was printed is not printed again"


def test_errors_of_every_command(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (CommandError(text), FileNotFoundError(2, "No such file", text), ConnectionError(text)):

        def fail(_: str, __: str, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("cli.status.chosen", fail)
        assert main(["status", "--stack", "local"]) == 1
        assert clean(capsys.readouterr().err.replace("\\x", "").replace("\\u", ""))


@pytest.mark.parametrize("terminal", [False, True])
def test_reasons_to_wait_in_a_transfer(text: str, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("cli.progress.PLAIN_SECONDS", 0.0)
    with Bar(Console(file=shown, width=200, force_terminal=terminal, color_system=None)) as bar:
        bar.advance(1)
        bar.waiting(text)
        bar._progress.refresh()
    assert clean(shown.getvalue(), terminal), repr(shown.getvalue())


def test_findings_of_the_doctor(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show("Stack", iter([problem(text, text, text), ok("x", text)]))
    assert clean(capsys.readouterr().out)


def test_evidence_of_a_proof(text: str) -> None:
    shown = io.StringIO()
    step: Any = SimpleNamespace(name="volume", title="writes and renames")
    seen: Any = SimpleNamespace(results={"volume": None})
    Screen(seen, 1, Console(file=shown, width=300)).end(step, Result("failed", text))
    assert clean(shown.getvalue()), repr(shown.getvalue())


LINES = {
    "a step that is text": 'record {"step":"ten","steps":200,"loss":7,"tokens_per_second":1,"eta_seconds":1}',
    "no steps": 'record {"step":1,"loss":7.1,"tokens_per_second":5,"eta_seconds":3}',
    "NaN": 'record {"step":1,"steps":2,"loss":NaN,"tokens_per_second":NaN,"eta_seconds":NaN}',
    "infinity": 'record {"step":1e400,"steps":2,"loss":1e400,"tokens_per_second":1e999,"round":1e400}',
    "5,000 digits": f'record {{"step":{"9" * 5000},"steps":2,"loss":1,"tokens_per_second":1,"eta_seconds":1}}',
    "a validation that is text": 'record {"step":1,"validation_loss":"low"}',
    "a part of a validation": 'record {"step":1,"validation_loss":1,"bits_per_byte":"","f1":"x"}',
    "lists": 'record {"step":[1],"steps":[2],"loss":[3],"round":[],"members":[],"incidents":5}',
    "negative": 'record {"step":-1,"steps":-5,"loss":-1,"tokens_per_second":-1,"eta_seconds":-1}',
    "half of a record": 'record {"step":1,"ste',
    "a record of a megabyte": "record {" + "x" * 1_000_000,
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_that_is_no_record_or_an_odd_one_ends_no_command(line: str) -> None:
    shown = io.StringIO()
    board = Board(Console(file=shown, width=200))
    for found in (of_line(line), told()):
        board.show(summarize(job(), [pod(0)], found))
    assert "step 120/500  loss 3.210" in shown.getvalue()


@pytest.mark.parametrize(
    "record",
    [
        *("[]", "null", "5", '"text"', "{", "[" * 100_000, '{"step": ' + "9" * 5000 + "}"),
        '{"step": "ten", "steps": [], "loss": {}, "round": [1], "tokens_per_second": "fast", "updated": "now"}',
        '{"step": NaN, "steps": Infinity, "loss": NaN, "round": NaN, "eta_seconds": -1e400, "updated": NaN}',
        '{"step": 1e300, "steps": true, "round": -1, "updated": 1e14, "times": {"loss": "x"}, "loss": 3.0}',
        '{"step": 1, "steps": 2, "times": [1], "validation_loss": null, "world_size": "1"}',
        '{"step": 1, "steps": 2, "times": {"step": {}, "loss": 1e300}, "loss": 2, "updated": -1e14}',
    ],
    ids=lambda record: record[:40],
)
def test_a_status_json_or_a_last_message_of_any_kind(record: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(record)
    target, shown = Target("c", "n", "j", str(tmp_path), {}, "/data/runs/x"), io.StringIO()
    ended = {"exitCode": 0, "finishedAt": "2026-11-21T12:22:30Z", "message": record}
    found = summarize(job(), [pod(0, "Succeeded", ended)], status_file(target))
    Console(file=shown, width=200).print(screen(found, target, datetime(2026, 11, 21, 12, 30, tzinfo=UTC)))
    over = summarize(job([{"type": "Complete", "status": "True"}]), [pod(0, "Succeeded", ended)])
    report(Console(file=shown, width=200), target, over, "s", False)
    assert "train-small-1-0-abcde" in shown.getvalue()


def test_a_pod_that_somebody_made_under_the_jobs_label_is_shown() -> None:
    for label in ("x", "", "9" * 5000, None):
        odd = pod(0, name="odd")
        odd["metadata"]["labels"] = {} if label is None else dict.fromkeys(odd["metadata"]["labels"], label)
        assert [each.name for each in summarize(job(), [pod(1), odd]).pods] == ["odd", "train-small-1-1-abcde"]
        assert logs.choose([odd, pod(1)], 1, lambda _: {}) == "train-small-1-1-abcde"
