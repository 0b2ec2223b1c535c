"""Rows of the fault matrix as tests: some in every run, all of them with `make chaos` (marker `chaos`)."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import page
from faults import __main__ as command
from faults import on_pods, on_processes
from faults.fault import HEADER, Expected, Fault, Place, Result, judge
from faults.journal import Journal
from faults.lab import Lab
from faults.network import answer
from faults.nodes import Pod, descendants
from faults.report import PAGES, PLAYED, Matrix, merge_page, page_line
from prove.command import STEPS
from trainer.contract import EXIT_FATAL

#: Rows that every test run plays: no other test drops all packets of a machine.
QUICK = ("node-lost",)
ROWS = PLAYED["processes"]
BY_NAME = {fault.name: fault for fault in ROWS}

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare", "tini"))),
    reason="network namespaces need root, iproute2, util-linux and tini",
)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(tmp_path_factory.mktemp("chaos"))


@needs_namespaces
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.chaos) for name in BY_NAME]
)
def test_the_training_survives(matrix: Matrix, name: str) -> None:
    result = matrix.play(BY_NAME[name])
    assert not result.problem, result


def test_a_loss_that_is_off_or_no_number_is_a_problem() -> None:
    """In the laboratory, a training that lost the samples of one step ends 6e-4 off."""
    assert judge(ROWS[0], 0, [0], 5e-6) == ""
    for difference in (6e-4, -6e-4, math.nan):
        assert "off" in judge(ROWS[0], 0, [0], difference)


def test_rounds_are_counted_also_where_their_numbers_begin_again(tmp_path: Path) -> None:
    pod = Pod("pod", "", [], [], [], tmp_path)
    (tmp_path / "pod.log").write_text("event=round round=1 world_size=3 rank=2\n" * 2)
    assert (pod.round, pod.rounds) == (1, [(1, 3, 2)] * 2)


@pytest.mark.parametrize("place", PLAYED)
def test_every_fault_of_the_promise_has_a_row(place: Place) -> None:
    """The results name more than there is if a fault goes."""
    faults = PLAYED[place]
    assert len({fault.name for fault in faults}) == len({fault.title for fault in faults}) == len(faults)
    assert all(place in fault.where for fault in faults)
    lines = PAGES[place].read_text("utf-8").splitlines()
    told = {line.split("|")[1].strip() for line in lines if line.startswith("| ")}
    assert told - {HEADER[0]} <= {fault.title for fault in faults}


def test_a_fault_is_played_somewhere_and_is_in_its_list() -> None:
    proved = {step.play for step in STEPS}
    for module in (on_pods, on_processes):
        made = {value for value in vars(module).values() if isinstance(value, Fault)}
        assert made == set(module.FAULTS)
        assert {fault for fault in made if "cloud" in fault.where} == {fault for fault in made if fault.play in proved}


def test_a_journal_counts_the_steps_that_were_made_again(tmp_path: Path) -> None:
    def line(step: int, time: float) -> str:
        return f'{{"step": {step}, "loss": 1.0, "time": {time}}}\n'

    journal = Journal(tmp_path)
    journal.end()
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, float(step)) for step in range(1, 11)))
    journal._look()
    path.write_text("".join(line(step, float(step)) for step in range(1, 8)) + line(8, 30.0) + '{"step": 9, "lo')
    journal._look()
    assert (journal.step, journal.lost) == (8, 3)
    assert journal.longest_pause(9.5) == pytest.approx(20.0)
    assert journal.longest_pause(12.0) == pytest.approx(18.0)


def test_the_laboratorys_name_server_knows_its_names_only() -> None:
    question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"\x04etcd\x05chaos\x00"
    found = answer(question + b"\x00\x01\x00\x01", {"etcd.chaos": "10.77.0.2"})
    assert found[:2] == b"\x12\x34"
    assert found.endswith(bytes([10, 77, 0, 2]))
    other = answer(question + b"\x00\x01\x00\x01", {})
    assert other[3] & 0x0F == 3
    ipv6 = answer(question + b"\x00\x1c\x00\x01", {"etcd.chaos": "10.77.0.2"})
    assert (ipv6[3] & 0x0F, ipv6[7]) == (0, 0)


def test_a_pod_that_gives_up_ends_a_wait_whatever_it_waits_for(tmp_path: Path) -> None:
    """Exit code 42 is reported at once, also while a row waits for step 42; only `ended` waits on."""
    lab: Any = Lab(tmp_path, tmp_path)
    lab.pods = [SimpleNamespace(name=str(code), code=code, last_words={}, log="") for code in (EXIT_FATAL, None)]
    with pytest.raises(Expected, match="step 42: 42 ended with 42"):
        lab.until(lambda: False, 1, "step 42")
    assert lab.ended(lab.pods[:1]) == [EXIT_FATAL]
    with pytest.raises(Expected, match="the end of the pods: not within 0 s"):
        lab.ended(lab.pods, 0)


def test_descendants_are_found_parents_first() -> None:
    """Also the child of another thread than the main one, and its child."""
    with ThreadPoolExecutor(1) as pool:
        command = ["sh", "-c", "sleep 60 & echo $!; wait"]
        child = pool.submit(lambda: subprocess.Popen(command, stdout=subprocess.PIPE, text=True)).result()
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        try:
            found = descendants(os.getpid())
        finally:
            os.kill(grandchild, signal.SIGKILL)
            child.communicate()
    assert found[0] == os.getpid()
    assert 0 < found.index(child.pid) < found.index(grandchild)


def test_rows_that_were_not_played_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "chaos.md"
    first, second, third = (Result(row, "", seconds=1.5) for row in ROWS[:3])
    merge_page("processes", [page_line(second, 0.02), page_line(first, 0.5)], path=path)
    merge_page("processes", [page_line(third, 0.0), page_line(Result(ROWS[1], "hung"), 0.25)], path=path)
    *_, one, two, three, _, rest = path.read_text().splitlines()
    assert rest.startswith(f"Not played yet: {ROWS[3].title}; ")
    assert one.startswith(f"| {first.fault.title} | yes | 0 | 1.5 ")
    assert one.endswith("50% busy |")
    assert two.startswith(f"| {second.fault.title} | hung |")
    assert three.startswith(f"| {third.fault.title} | yes |")


@pytest.mark.parametrize(("user", "said"), [(1000, "chaos needs root"), (0, "missing: no-such-program; ")])
def test_what_chaos_lacks_is_told_in_one_line(
    user: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["chaos"])
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(command, "NEEDED", ("no-such-program",))
    assert command.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of proc(5)'s stat: user nice system idle iowait irq softirq steal guest guest_nice."""
    monkeypatch.setattr(page, "CALM_SECONDS", 0.2)
    assert 0 <= page.busy() <= 1
    read = iter(["cpu  100 5 10 800 40 1 2 3 50 5\ncpu0", "cpu  115 10 14 860 60 2 3 12 58 9\ncpu0"])
    monkeypatch.setattr(page.Path, "read_text", lambda self: next(read))
    assert page.busy() == pytest.approx(1 - 80 / 115)
