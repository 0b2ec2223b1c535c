"""What Pulumi prints and how it waits, as `up` and `down` pass it on. The texts are those of Pulumi 3.200.0."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from cli.pulumi import short
from infra.stackfiles import ROOT
from infra.state import lock

UP = """\
Updating (t):
    pulumi:pulumi:Stack pp-t  warning: take care
 +  pulumi:pulumi:Stack pp-t creating (0s) warning: take care
 +  my:infra:Comp comp creating (0s) \n\
 +  kubernetes:core/v1:Namespace n creating (0s) \n\
 ~  kubernetes:apps/v1:Deployment d updating (0s) [diff: ~spec]
 ++ kubernetes:batch/v1:Job j creating replacement (0s) [diff: ~metadata]
 +  kubernetes:core/v1:Namespace n created (0.31s) \n\
 ~  kubernetes:apps/v1:Deployment d updating (2s) [diff: ~spec]; [1/2] Waiting for 1 of 2
 ~  kubernetes:apps/v1:Deployment d updated (4s) [diff: ~spec]
 +  trainyard:BuildahImage trainer creating (15s) image: step 3 of 16, 15 s
 +  trainyard:BuildahImage trainer creating (16s) image: step 3 of 16, 15 s
 +  trainyard:BuildahImage trainer created (30s) \n\
 ++ kubernetes:batch/v1:Job j created replacement (0.1s) [diff: ~metadata]
 +- kubernetes:batch/v1:Job j replacing (0s) [diff: ~metadata]
 +- kubernetes:batch/v1:Job j replaced (0.00s) [diff: ~metadata]
 -- kubernetes:batch/v1:Job j deleting original (0s) [diff: ~metadata]
 -- kubernetes:batch/v1:Job j deleted original (0.1s) [diff: ~metadata]
 +  pulumi-python:dynamic:Resource bad creating (0s) error: Traceback (most recent call last):
 +  pulumi-python:dynamic:Resource bad **creating failed** error: Traceback (most recent call last):
    pulumi:pulumi:Stack pp-t running error: update failed
    pulumi:pulumi:Stack pp-t **failed** 1 error; 4 warnings
Diagnostics:
  pulumi-python:dynamic:Resource (bad):
    error: boom: no such thing
 +  a:b:C d creating (0s) \n\

Duration: 5s
"""


def test_each_resource_has_one_line_and_every_error_is_there() -> None:
    before, _, after = UP.partition("Diagnostics:\n")
    shown = "".join(short(UP.splitlines(keepends=True)))
    lines, _, rest = shown.partition("Diagnostics:\n")
    assert rest == after, "nothing of the diagnostics is left out"
    told = lines.splitlines()
    for line in before.splitlines():
        assert line in told or "error" not in line
    assert [line for line in told if "Namespace n" in line] == [" +  kubernetes:core/v1:Namespace n created (0.31s) "]
    assert [line for line in told if "Deployment d" in line] == [
        " ~  kubernetes:apps/v1:Deployment d updated (4s) [diff: ~spec]"
    ]
    assert [line.split("Job j ")[1].split(" (")[0] for line in told if "Job j" in line] == [
        "created replacement",
        "replaced",
        "deleted original",
    ]
    assert sum("image: step 3" in line for line in told) == 1, "a slow resource tells how far it is, once"
    assert "    pulumi:pulumi:Stack pp-t  warning: take care" in told


def test_a_removed_stack_is_not_called_maintained() -> None:
    end = (
        "Duration: 3s\n\nThe resources in the stack have been deleted, but the history and configuration associated "
        "with the stack are still maintained. \nIf you want to remove the stack completely, run `pulumi stack rm t`.\n"
    )
    lines = end.splitlines(keepends=True)
    assert "".join(short(lines, removed=True)).strip() == "Duration: 3s"
    assert "".join(short(lines)) == end, "a cloud's stack keeps its history"


def gone() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("host", "process", "said"),
    [
        ("", "gone", "which is gone on this machine: it was killed; `trainyard local run -- pulumi cancel mine --yes`"),
        ("", "alive", "; wait until it has ended"),
        ("elsewhere", "gone", " on elsewhere; wait until it has ended there; if it was killed: `trainyard local run"),
        ("", "unreadable", ""),
    ],
)
def test_the_holder_of_a_lock_is_named_and_what_to_do(
    host: str, process: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.state.BACKEND", tmp_path)
    folder = tmp_path / ".pulumi" / "locks" / "organization" / "trainyard" / "mine"
    folder.mkdir(parents=True)
    shutil.copy2(shutil.which("cat") or "", tmp_path / "pulumi")
    alive = subprocess.Popen([tmp_path / "pulumi"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert alive.stdin
    assert alive.stdout
    alive.stdin.write(b"x")
    assert alive.stdout.read(1) == b"x", "the kernel gives it its name after the parent goes on"
    try:
        pid = alive.pid if process == "alive" else gone()
        held = {"pid": pid, "username": "ann", "hostname": host or socket.gethostname()}
        held["timestamp"] = "2026-11-28T11:53:47.252238995+02:00"
        (folder / "7e48.json").write_text("" if process == "unreadable" else json.dumps(held))
        told = lock("mine")
        assert (said in told) if said else not told
        if said:
            assert told.startswith(f"stack mine is locked by ann's pulumi, process {pid} since 2026-11-28 09:53 UTC")
            assert "\n" not in told
        assert not lock("another")
    finally:
        alive.communicate()


#: In place of Pulumi: shows its window, waits for Ctrl-C if it is told to, and ends as a destroy does, in pieces.
DESTROYS = """
import os, signal, sys, time
def end(*_):
    print("interrupted", flush=True)
    sys.exit(5)
signal.signal(signal.SIGINT, end)
print("destroying The stack", flush=True)
time.sleep(0.2)
print(os.get_terminal_size().columns, sys.stdin.isatty(), flush=True)
while sys.argv[1:]:
    time.sleep(0.1)
os.write(1, b"Duration: 3s\\n\\nThe resources in the stack have been del")
time.sleep(0.2)
os.write(1, b"eted, but the history and configuration are still maintained. \\n")
time.sleep(0.2)
print("If you want to remove the stack completely, run rm.", flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(("interrupted", "code", "last"), [(False, 3, "Duration: 3s"), (True, 5, "interrupted")])
def test_on_a_terminal_too_and_ctrl_c_window_and_exit_code_pass(interrupted: bool, code: int, last: str) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 77))
    program = [sys.executable, "-c", DESTROYS, *(["wait"] if interrupted else [])]
    script = f"import sys; from cli.pulumi import on_terminal; sys.exit(on_terminal({program!r}))"
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=theirs, stdout=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the terminal's end
            while more := os.read(ours, 4096):
                shown += more
                # The whole line: a terminal drops what it has not yet shown when Ctrl-C comes.
                if interrupted and b"\n" in shown.partition(b"77 True")[2]:
                    interrupted = os.write(ours, b"\x03") == 0
    lines = shown.decode().replace("^C", "").split()
    assert process.returncode == code
    assert " ".join(lines) == f"destroying The stack 77 True {last}"
