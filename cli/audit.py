"""Report known vulnerabilities of the locked requirements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from infra.stackfiles import ROOT

LOCKED = ("infra", "trainer", "policy")
OPTIONS = ("--require-hashes", "--disable-pip", "--progress-spinner", "off")


def audit() -> int:
    program = Path(sys.executable).with_name("pip-audit")
    codes = []
    for name in LOCKED:
        print(f"requirements/{name}.txt:", flush=True)
        command = [program, *OPTIONS, "--requirement", f"requirements/{name}.txt"]
        codes.append(subprocess.run(command, cwd=ROOT).returncode)
    return max(codes)
