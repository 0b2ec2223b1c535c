"""Progress on terminals of any width: no figure is cut or left out."""

from __future__ import annotations

import io
import re
import subprocess

import pytest
from rich.console import Console

from cli import export, fetch
from cli.follow import Board
from cli.progress import Bar
from infra.stackfiles import ROOT
from tests.cli.test_follow import a_look

FIGURES = ("step 1200/100000", "━", "0:00:00", "2:13:20 to go", "loss 7.123", "validation 8.500 (3.250 bits/byte)")
LONG = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {nvidia.com/gpu: present}"


def last_frame(shown: io.StringIO, width: int) -> str:
    """What the terminal shows at the end."""
    found = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", shown.getvalue())[-1])
    assert all(len(line.rstrip()) <= width for line in found.splitlines()), found
    return found


@pytest.mark.parametrize("width", [36, 80, 200])
def test_a_training_shows_every_figure(width: int) -> None:
    shown = io.StringIO()
    with Board(Console(file=shown, width=width, force_terminal=True)) as board:
        figures = {"validation_loss": 8.5, "bits_per_byte": 3.25, "tokens_per_second": 1234567.8, "eta_seconds": 8000}
        board.show(a_look(step=1200, steps=100_000, loss=7.1234, **figures))
    frame = last_frame(shown, width)
    assert [part for part in (*FIGURES, "1,234,568 tokens/s") if part not in frame] == []
    assert "…" not in frame
    assert ("\n" in frame.strip()) == (width < 140)


@pytest.mark.parametrize("width", [40, 200])
def test_a_reason_to_wait_is_read_to_its_end(width: int) -> None:
    shown = io.StringIO()
    with Board(Console(file=shown, width=width, force_terminal=True)) as board:
        board.wait(LONG)
    assert " ".join(last_frame(shown, width).split()).endswith(LONG)


@pytest.mark.parametrize("width", [40, 200])
def test_a_transfer_shows_every_figure(width: int) -> None:
    shown = io.StringIO()
    with Bar(Console(file=shown, width=width, force_terminal=True)) as bar:
        bar.expect(12, 80_000_000)
        bar.reached(20_000_000)
        bar._progress.refresh()
        frame = last_frame(shown, width)
    for part in ("12 files", "━", "20.0/80.0 MB", ":"):
        assert part in frame, frame


def test_a_figure_that_is_old_says_how_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("cli.follow.time.monotonic", lambda: now)
    shown = io.StringIO()
    with Board(Console(file=shown, width=200, force_terminal=True)) as board:
        board.show(found := a_look(step=12, steps=100))
        for seconds, told in ((5, ""), (100, "(1:45 ago)"), (1, "(1:46 ago)")):
            now += seconds
            board.show(found)
            board._progress.refresh()  # pyrefly: ignore[missing-attribute]
            assert told in last_frame(shown, 200)
            assert (" ago" in last_frame(shown, 200)) == bool(told)


@pytest.mark.parametrize(
    ("total", "said"),
    [(15_400, "1 file: 0 bytes of 15.4 kB ("), (2_500_000, "0 bytes of 2.5 MB ("), (0, "file (")],
)
def test_a_log_tells_the_size_of_small_files_too(total: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.progress.PLAIN_SECONDS", 0)
    console = Console(file=io.StringIO(), width=80)
    with Bar(console) as bar:
        bar.expect(1, total)
        bar.reached(0)
    assert isinstance(console.file, io.StringIO)
    assert said in console.file.getvalue()


def test_no_bar_is_drawn_for_no_bytes() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with Bar(console) as bar:
        bar.expect(0, 0)
    assert isinstance(console.file, io.StringIO)
    assert "━" not in console.file.getvalue()


def test_what_a_command_writes_into_the_checkout_by_default_git_ignores() -> None:
    for folder in (export.HOME, fetch.HOME):
        done = subprocess.run(["git", "check-ignore", "--quiet", f"{folder}/name/model.safetensors"], cwd=ROOT)
        assert done.returncode == 0, folder
