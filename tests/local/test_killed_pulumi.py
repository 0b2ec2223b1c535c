"""A Pulumi that is killed leaves nothing behind: its language host would wait for half an hour."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.fault import until
from local import environment, processes
from local.environment import tie

#: Makes a resource each second, in the dynamic provider's process.
PROGRAM = """
import time
from pulumi.dynamic import CreateResult, Resource, ResourceProvider
class Provider(ResourceProvider):
    def create(self, props):
        time.sleep(1)
        return CreateResult("id", {})
class Thing(Resource, name="Thing"):
    def __init__(self, name):
        super().__init__(Provider(), name, {})
for number in range(600):
    Thing(f"r{number}")
"""


@pytest.mark.parametrize("kind", ["binary", "script"])
def test_a_tied_program_ends_with_the_process_that_started_it(kind: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    if kind == "binary":
        shutil.copy2(shutil.which("sleep") or "", program)
    else:
        program.write_text('#!/bin/sh\nexec sleep "$@"\n')
        program.chmod(0o755)
    tie(program)
    before = program.read_bytes()
    tie(program)
    assert program.read_bytes() == before, "once"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program", "program.real"]
    start = (
        f"import subprocess, time; print(subprocess.Popen([{str(program)!r}, '1000']).pid, flush=True); time.sleep(99)"
    )
    parent = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    command = Path(f"/proc/{child}/cmdline")
    until(lambda: b"program.real" in command.read_bytes() or kind == "script", 10, "the program itself")
    time.sleep(0.2)
    assert processes.start_time(child) is not None
    parent.kill()
    parent.wait()
    until(lambda: processes.start_time(child) is None, 10, "its end")


@pytest.mark.engine
def test_a_killed_pulumi_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.prepare()
    for name in ("state", "home"):
        (tmp_path / name).mkdir()
    variables = {
        **environment.variables(),
        "PULUMI_HOME": str(tmp_path / "home"),
        "PULUMI_BACKEND_URL": environment.state_url(tmp_path / "state"),
    }
    virtualenv = Path(sys.executable).parent.parent
    (tmp_path / "Pulumi.yaml").write_text(
        f"name: killed\nruntime: {{name: python, options: {{virtualenv: '{virtualenv}'}}}}\n"
    )
    (tmp_path / "__main__.py").write_text(PROGRAM)
    subprocess.run(["pulumi", "stack", "init", "a"], cwd=tmp_path, env=variables, check=True, capture_output=True)
    command = ["pulumi", "up", "--yes", "--skip-preview", "--stack", "a", "--non-interactive", "--parallel=1"]
    with (tmp_path / "log").open("wb") as log:
        pulumi = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=log, stderr=log, start_new_session=True)

    def session() -> list[int]:
        def ours(entry: Path) -> bool:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            return fields[0] not in "ZX" and int(fields[3]) == pulumi.pid

        return processes.find(ours)

    try:
        log = tmp_path / "log"
        until(lambda: "r1 " in log.read_text(), 120, "a second resource", log.read_text)
        assert len(session()) >= 4, "engine, language host, program, dynamic provider"
        os.kill(pulumi.pid, signal.SIGKILL)
        pulumi.wait()
        until(lambda: not session(), 20, "the end of all", session)
    finally:
        processes.end_all([pulumi.pid, *session()], 1.0)
