"""The progress of a transfer: on a terminal of any width no figure is cut or left out, and a log hears of it."""

from __future__ import annotations

import io
import re
import subprocess

import pytest
from rich.console import Console

from cli import export, fetch
from cli.progress import Bar
from infra.stackfiles import ROOT

LONG = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {nvidia.com/gpu: present}"


@pytest.mark.parametrize("width", [40, 200])
def test_a_terminal_shows_every_figure_and_a_reason_to_its_end(width: int) -> None:
    with Bar(Console(file=(shown := io.StringIO()), width=width, force_terminal=True)) as bar:
        bar._begun -= 10
        for tell, words in (
            (lambda: bar.waiting(LONG), [LONG]),
            (lambda: bar.expect(12, 80_000_000), ["12 files: 0 bytes of 80.0 MB ("]),
            (lambda: bar.reached(20_000_000), ["12 files: 20.0 MB of 80.0 MB, ", " to go ("]),
        ):
            tell()
            bar._status._live.refresh()
            frame = re.sub(
                r"\x1b\[[0-9;?]*[A-Za-z]", "", re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", shown.getvalue())[-1]
            )
            assert all(word in " ".join(frame.split()) for word in words), frame


@pytest.mark.parametrize(
    ("total", "said"),
    [(15_400, "… 1 file: 0 bytes of 15.4 kB ("), (2_500_000, "0 bytes of 2.5 MB ("), (0, "… 1 file (")],
)
def test_a_log_tells_the_size_of_small_files_too(total: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.progress.PLAIN_SECONDS", 0)
    with Bar(Console(file=(text := io.StringIO()), width=20)) as bar:
        bar.expect(1, total)
        bar.reached(total)
    assert said in text.getvalue()
    assert (" in 0:00\n" in text.getvalue()) == bool(total), "nothing came"


def test_what_a_command_writes_into_the_checkout_by_default_git_ignores() -> None:
    for folder in (export.HOME, fetch.HOME):
        done = subprocess.run(["git", "check-ignore", "--quiet", f"{folder}/name/model.safetensors"], cwd=ROOT)
        assert done.returncode == 0, folder
