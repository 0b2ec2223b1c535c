"""The laboratory: a machine that goes without a word, and how an end is judged. `make chaos` plays every fault."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults import __main__ as command
from faults import on_pods
from faults.fault import Expected
from faults.journal import Journal
from faults.lab import Lab, Pod, make_dataset
from faults.on_processes import FAULTS, first_host
from prove.command import STEPS
from trainer.contract import EXIT_FATAL


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare", "tini"))),
    reason="network namespaces need root, iproute2, util-linux and tini",
)
def test_two_nodes_become_one_when_the_machine_of_rank_0_goes_without_a_word(tmp_path: Path) -> None:
    """No other test drops all packets of a machine. Here it also has the workers' store. SIGTERM leaves nothing."""

    class Quick(Lab):
        def launch(self, machine: str, arguments: list[str]) -> list[str]:
            """Notice a silence after 3 s. `make chaos` has the trainer's own 15."""
            timing = ["--rdzv-conf", "keep_alive_interval=1,last_call_timeout=2"]
            return [*(command := super().launch(machine, arguments))[:2], *timing, *command[2:]]

    lab = Quick(tmp_path / "lab", make_dataset(tmp_path / "data"))
    with contextlib.suppress(KeyboardInterrupt), lab:
        pods = lab.start(2, tokens_per_step=128, **{"checkpoint.every_steps": 5})
        # One that starts late comes in a second round.
        lab.until(lambda: all(pod.rounds and pod.rounds[-1][1] == 2 for pod in pods), 90, "both in a round")
        lab.more_steps(6)
        pods.remove(first := first_host(pods))
        lab.network.cut(first.machine)
        lab.until(lambda: (first.round + 1, 1, 0) in pods[0].rounds, 90, "a round without it")
        lab.more_steps(1)
        assert lab.journal.lost <= 5 + 2
        os.kill(os.getpid(), signal.SIGTERM)
    assert not [space for space in os.listdir("/run/netns") if space.startswith(lab.network.prefix)]
    assert [pod.name for pod in lab.pods if pod.code is None] == []


@pytest.mark.parametrize(
    ("lost", "codes", "difference", "said"),
    [
        (1, [0, 0], 5e-6, ""),
        (0, [0], 6e-4, "off"),  # a training that lost the samples of one step ends as far off in the laboratory
        (0, [0], -6e-4, "off"),
        (0, [0], math.nan, "off"),
        (0, [0, 143], 0.0, "exit codes [0, 143]"),
        (FAULTS[0].steps_lost + 1, [0], 0.0, "43 steps lost, 42 allowed"),
    ],
)
def test_an_end_is_judged(lost: int, codes: list[int], difference: float, said: str) -> None:
    problem = command.Result(FAULTS[0], lost, codes, difference).problem
    assert said in problem
    assert bool(said) is bool(problem)


def test_every_fault_of_pods_is_a_step_of_a_proof() -> None:
    own = {name: value for name, value in vars(on_pods).items() if getattr(value, "__module__", "") == on_pods.__name__}
    faults = {value for name, value in own.items() if name[0] != "_"}
    assert faults == faults & {step.play for step in STEPS}
    assert len(faults) == 7


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


def test_a_pod_says_its_rounds_and_ends_a_wait_whatever_it_waits_for(tmp_path: Path) -> None:
    """Exit code 42 is reported at once, also while a fault waits for step 42; only `ended` waits on."""
    lab: Any = Lab(tmp_path, tmp_path)
    lab.pods = [
        Pod(str(code), "n0", tmp_path, SimpleNamespace(poll=lambda code=code: code))  # pyrefly: ignore[bad-argument-type]
        for code in (EXIT_FATAL, None)
    ]
    (tmp_path / f"{EXIT_FATAL}.log").write_text("event=round round=1 world_size=3 rank=2\n" * 2)
    assert (lab.pods[0].round, lab.pods[0].rounds) == (1, [(1, 3, 2)] * 2)
    with pytest.raises(Expected, match="step 42: 42 ended with 42"):
        lab.until(lambda: False, 1, "step 42")
    assert lab.ended(lab.pods[:1]) == [EXIT_FATAL]
    with pytest.raises(Expected, match="the end of the pods: not within 0 s"):
        lab.ended(lab.pods, 0)


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
