"""The page of the GPU tests, made of pytest's output (`-v -ra`) as it comes, and what of it a terminal shows."""

import re
from collections import Counter
from pathlib import Path

from bench import page

VERDICT = re.compile(r"tests/gpu/(\S+?::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b ?(.*?)\s*(\[ *\d+%\])?$")
BEGUN = re.compile(r"tests/gpu/(\S+?::.+?)\s*$")
REASON = re.compile(r"(FAILED|ERROR) tests/gpu/(.+?)(?: - (.*))?$")
LAST = re.compile(r"=+ (.*\b(?:passed|failed|skipped|deselected|errors?)\b.*?) =+$")
SHOWN = 10
"""Failures that the terminal shows; the page has all."""


class Verdicts:
    """Those so far. read() and end() write the page."""

    def __init__(self, file: Path, machine: str) -> None:
        self._file, self._machine = file, machine
        self._verdicts: dict[str, str] = {}
        self._collected, self._failures = "?", 0

    def read(self, line: str) -> str:
        """Take a line of output; return what to show: a letter for a verdict, a line for a failure and for the end."""
        line = line.strip()
        if last := LAST.match(line):
            return last[1]
        if counted := re.search(r"\bcollected (\d+) items?(?:.* (\d+) selected)?", line):
            self._collected = counted[2] or counted[1]
        elif reason := REASON.match(line):
            self._verdicts[reason[2]] = f"{reason[1].lower()}: {reason[3] or 'see the log'}"
            self._failures += 1
            self._write("")
            return line if self._failures <= SHOWN else ""
        elif found := VERDICT.match(line):
            self._verdicts[found[1]] = f"{found[2].lower()} {found[3]}".strip()
            self._write("")
            return "." if found[2] == "PASSED" else found[2][0].replace("S", "s")
        elif begun := BEGUN.match(line):
            self._verdicts.setdefault(begun[1], "not done")  # a list of warnings names tests, too
        return ""

    def end(self, verdict: str) -> None:
        """Write how the stage ended."""
        self._write(f" The stage {verdict}.")

    def _write(self, ended: str) -> None:
        kinds = Counter(re.split(r"\W", verdict)[0] for verdict in self._verdicts.values())
        count = ", ".join(f"{kinds[kind]} {kind}" for kind in ("passed", "failed", "error", "skipped"))
        said = f"{count}; {len(self._verdicts)} of {self._collected} tests.{ended}"
        rows = ([cell.replace("::", ": ").replace("|", "\\|") for cell in row] for row in self._verdicts.items())
        table = page.table(("test", "verdict"), rows)
        page.write(self._file, "# Tests on a GPU", "Written by `make gpu STAGE=tests`.", self._machine, said, table)
