"""Bring a stack up, test every claim on the live cluster, destroy it, write a report.

The proof uses a stack of its own, prove-NAME, with the machines and the model of Pulumi.NAME.yaml and a short
training; a running stack NAME is not touched. The report goes to bench/results/prove-NAME.md and .json.
"""

from __future__ import annotations

import fcntl
import math
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench import page
from cli import CommandError, last_line
from cli.target import PROOF, StackName, enter_local
from faults import on_pods
from faults.fault import Expected
from faults.stack import stop_signals
from infra.config import ConfigError
from infra.cost import estimate
from infra.finding import NoAnswer
from infra.private import private_folder
from infra.stackfiles import NODE_CONTEXT, stack_file_values
from prove import bring_up, close, report, volume
from prove.engine import State, Step, load, now, play
from prove.report import Screen
from prove.subject import Subject

MINUTES = 70
"""Rough time of a whole proof on a cloud: 15 until the stack is up and 10 until it is gone, as AWS takes, and 45 for
the steps between, in which nodes come four times."""


STEPS = (
    Step("doctor", "nothing stands in the way", bring_up.doctor, needed=True, short=True),
    Step("up", "pulumi up", bring_up.up, needed=True, short=True),
    Step("training", "the loss falls", bring_up.training, needed=True, short=True),
    Step("nodes", "worker nodes came from zero", bring_up.nodes_from_zero),
    Step("accelerators", "driver and device plugin", bring_up.accelerators),
    Step("exchange", "bus bandwidth between nodes", bring_up.exchange),
    Step("volume", "two pods write, rename and read on the shared volume", volume.shared, short=True),
    Step("pod", "a worker's pod is killed", on_pods.pod_killed, short=True),
    Step("notice", "a worker's pod is evicted", on_pods.pod_evicted),
    Step("etcd", "the rendezvous loses its data", on_pods.etcd_data_lost),
    Step("node", "a node is lost", on_pods.node_lost),
    Step("nfs", "the NFS server's pod is killed", on_pods.nfs_server_killed),
    Step("resize", "workers are added and removed", on_pods.resized),
    Step("spot", "the cloud takes a Spot machine back", on_pods.machine_taken_back),
    Step("own-data", "own text is uploaded and trained on", volume.own_data, short=True),
    Step("model", "the model is fetched and loads in transformers", volume.model_out, short=True),
    Step("no-changes", "preview shows no change", close.no_changes, short=True),
    Step("destroy", "pulumi destroy", close.destroy, closing=True, short=True),
    Step("leftovers", "nothing is left", close.leftovers, closing=True, short=True),
    Step("cost", "what it cost", close.cost, closing=True, short=True),
)


def steps(short: bool) -> tuple[Step, ...]:
    return tuple(step for step in STEPS if step.short or not short)


def prove(
    stack: StackName = "",
    short: Annotated[bool, typer.Option("--short", help="5 minutes: up, training, a lost pod, own text, destroy.")] = (
        False
    ),
    limit_usd: Annotated[float, typer.Option(metavar="USD", help="Destroy when it costs more.")] = 5,
    destroy: Annotated[bool, typer.Option("--destroy", help="Only remove what an interrupted run has left.")] = False,
    report_to: Annotated[
        Path, typer.Option("--report", metavar="FOLDER", help="Where the report goes.")
    ] = report.FOLDER,
    folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> int:
    if not limit_usd > 0:
        raise Refused(f"--limit-usd {limit_usd:g}: must be more than 0")
    if (stack_file_values(stack).get("cluster") or {}).get("context") == NODE_CONTEXT:
        enter_local()
    folder = folder or private_folder() / "prove" / stack
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"--stack {stack}: another proof of it runs now, or a command that a killed one has begun; wait for it "
                f"or ask it to stop: pkill -INT -f 'pulumi .*--stack {PROOF}{stack}'"
            ) from None
        try:
            state = _state(stack, short, destroy, folder)
            state.limit_usd = limit_usd
            screen = Screen(state, len(steps(state.short)))
            subject = Subject(stack, state, screen.say, held=(lock.fileno(),))
            return _prove(subject, screen, destroy, report_to)
        except (ConfigError, Expected, NoAnswer) as error:
            # The proof's own stack does not exist yet; its settings come from the user's.
            raise Refused(last_line(str(error)).replace(f"--stack {PROOF}{stack}", f"--stack {stack}")) from None


class Refused(CommandError):
    """Nothing was started; the text says why and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code=2)


def _state(stack: str, short: bool, destroy: bool, folder: Path) -> State:
    """The state of the run to destroy, or a new one."""
    known_state = load(folder / "state.json")
    if destroy:
        if known_state is None:
            raise Refused(f"--destroy: no run of {stack} is known here")
        return known_state
    if known_state is not None and known_state.is_up:
        raise Refused(
            f"--stack {stack}: the run begun at {known_state.begun} has not finished; give --destroy to remove it"
        )
    return State(stack, folder / "state.json", short=short, begun=now())


def _prove(subject: Subject, screen: Screen, destroy: bool, report_to: Path) -> int:
    state, stack = subject.state, subject.name
    if not destroy:
        if subject.stack.resources():
            name = subject.stack.name
            raise Refused(f"stack {name} has resources but no recorded run; first: trainyard down --stack {name}")
        _refuse_what_costs_more(subject)
        state.notes |= {"load": page.load(), "commit": report.commit()}
    state.save()
    played = tuple(step for step in steps(state.short) if step.closing or not destroy)
    if screen.console.is_terminal:
        screen.console.print(f"Proof of {stack} as stack {subject.stack.name}; log: {subject.folder / 'log.txt'}")
    try:
        with stop_signals(signal.default_int_handler):
            good = play(played, state, subject, screen)
    except KeyboardInterrupt:
        screen.close()
        print(f"\nInterrupted. {_what_is_there(subject)}", file=sys.stderr)
        return 130
    path = report.write(stack, steps(state.short), state, report.facts(subject.config, state), report_to)
    print(f"\n{report.verdict(state)}. Report: {path}")
    if state.is_up:
        print(_what_is_there(subject))
    else:
        state.file.unlink(missing_ok=True)
    return 0 if good else 1


def _refuse_what_costs_more(subject: Subject) -> None:
    """Refuse a run that the cost limit would cut off in the middle."""
    rate, limit = subject.state.usd_per_hour, subject.state.limit_usd
    if not rate:
        return
    if limit < rate == math.inf:
        bill = estimate(subject.config)
        raise Refused(
            f"--limit-usd {limit:g}: no list price is known for {'; '.join(bill.unknown if bill else ())} "
            f"(infra/{subject.config.cluster.kind}/prices.yaml), so no limit can be held; give --limit-usd inf"
        )
    if (expected := rate * MINUTES / 60) > limit:
        raise Refused(
            f"--limit-usd {limit:g}: {subject.name} costs {rate:.2f} USD an hour at full size, and a proof takes "
            f"about {MINUTES} min: give --limit-usd {expected * 1.2:.0f}, or a smaller stack"
        )


def _what_is_there(subject: Subject) -> str:
    """What remains after the command, what it costs, and how to remove it."""
    state = subject.state
    if not state.is_up:
        return "Nothing is left that costs money."
    bill = (
        f"up to {state.usd_per_hour:.2f} USD an hour are billed" if state.usd_per_hour else "nothing is billed for it"
    )
    return (
        f"Stack {subject.stack.name} is still there; {bill}; to remove it: "
        f"trainyard prove --stack {subject.name} --destroy"
    )
