"""The faults of a rendezvous, which need what only the laboratory has: signals to one process, a link that is cut, and
its etcd. A cluster's pods meet those of on_pods.py.

Each is a function of a Lab that breaks something at lab.fault(), checks how the pods react, and returns the exit codes
of the pods that are left at the end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from faults.fault import PERIOD, expect
from faults.lab import Lab, Pod


def worker_hit(lab: Lab, number: int) -> list[int]:
    pods = lab.train()
    pods[1].worker().send_signal(number)
    return lab.ended(pods)


def frozen(lab: Lab, whole: bool) -> list[int]:
    """Stop an agent while its worker and the others train on, for enough steps to notice the agent's silence, or all of
    a pod, as when a machine hangs. They continue when the others are in another round."""
    pods = lab.train(steps=400)
    stopped = pods[1].processes() if whole else [pods[1].agent()]
    for process in stopped:
        process.suspend()
    lab.until(lambda: pods[0].round >= 2, 40, "a round without what is frozen")
    if whole:
        lab.more_steps()
    for process in stopped:
        process.resume()
    return lab.ended(pods)


def node_lost(lab: Lab) -> list[int]:
    pods = lab.train()
    lost = pods.pop()
    codes = lab.ended([*pods, lab.lose_machine(lost, successor=3)])
    expect("world_size=2" in pods[0].log, "the others never trained without it")
    return codes


def first_host_lost_three_times(lab: Lab) -> list[int]:
    """Cut off the machine of rank 0, which also hosts the workers' store, three times."""
    pods = lab.start()
    for successor, step in ((3, 60), (4, 100), (5, 140)):  # between checkpoints
        lab.step(step)
        first = first_host(pods)
        pods.remove(first)
        pods.append(lab.lose_machine(first, successor))
    return lab.ended(pods)


def first_host(pods: list[Pod]) -> Pod:
    """The pod with rank 0 of the newest round."""
    newest = max(pod.round for pod in pods)
    return next(pod for pod in pods if pod.round == newest and pod.rounds[-1][-1] == 0)


def etcd_away(lab: Lab, seconds: float, worker_dies: bool) -> list[int]:
    """Stop etcd for longer than the time after which a silent member counts as lost. With a worker that dies meanwhile,
    as when its pod moves to another node, the new round must wait for it."""
    pods = lab.train(steps=400)
    lab.kill_etcd()
    if worker_dies:
        pods[1].worker().kill()
    time.sleep(seconds)
    lab.start_etcd()
    codes = lab.ended(pods)
    expect(worker_dies or max(pod.round for pod in pods) == 1, "the outage cost a round")
    return codes


@dataclass(frozen=True)
class Fault:
    name: str
    title: str
    play: Callable[[Lab], list[int]]
    """Breaks the training and waits for its end. Returns the exit codes of the pods that are left."""
    steps_lost: int = PERIOD + 2
    """How many steps may be repeated."""
    seconds: float = 45
    """The longest allowed time without an optimizer step after the fault, on an otherwise idle machine."""


FAULTS = (
    Fault("worker-killed", "worker SIGKILL", partial(worker_hit, number=signal.SIGKILL), seconds=30),
    Fault("node-lost", "node lost, no FIN", node_lost),
    Fault("frozen-worker", "worker SIGSTOP", partial(worker_hit, number=signal.SIGSTOP)),
    Fault("frozen-agent", "agent SIGSTOP", partial(frozen, whole=False)),
    Fault("frozen-pod", "agent and worker SIGSTOP", partial(frozen, whole=True)),
    Fault("etcd-killed", "etcd away for 30 s", partial(etcd_away, seconds=30, worker_dies=False), 0, seconds=2),
    Fault(
        "etcd-killed-with-a-worker",
        "etcd away for 60 s and a worker SIGKILL",
        partial(etcd_away, seconds=60, worker_dies=True),
        seconds=90,
    ),
    Fault("first-host-lost-three-times", "rank 0's node lost three times", first_host_lost_three_times, 3 * PERIOD + 6),
)
