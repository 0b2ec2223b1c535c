"""The faults of a rendezvous, which need what only the laboratory has: signals to one process, a link that is cut, and
its etcd. A cluster's pods meet those of on_pods.py.

Each is a function of a Lab that breaks something at lab.fault(), checks how the pods react, and returns the exit codes
of the pods that are left at the end.
"""

from __future__ import annotations

import signal
import time

from faults.fault import PERIOD, expect, fault
from faults.lab import Lab


@fault("worker SIGKILL")
def worker_killed(lab: Lab) -> list[int]:
    pods = lab.train()
    pods[1].signal(signal.SIGKILL, pods[1].worker())
    return lab.ended(pods)


@fault("node lost, no FIN", seconds=45)
def node_lost(lab: Lab) -> list[int]:
    pods = lab.train()
    lost = pods.pop()
    codes = lab.ended([*pods, lab.lose_machine(lost, successor=3)])
    expect("world_size=2" in pods[0].log, "the others never trained without it")
    return codes


@fault("worker SIGSTOP", seconds=45)
def frozen_worker(lab: Lab) -> list[int]:
    pods = lab.train()
    pods[1].signal(signal.SIGSTOP, pods[1].worker())
    return lab.ended(pods)


@fault("agent SIGSTOP", seconds=45)
def frozen_agent(lab: Lab) -> list[int]:
    """Stop an agent while its worker and the others train on, for enough steps to notice the agent's silence."""
    pods = lab.train(steps=400)
    agent = pods[1].agent()
    pods[1].signal(signal.SIGSTOP, agent)
    lab.until(lambda: pods[0].round >= 2, 40, "a round without the frozen agent")
    pods[1].signal(signal.SIGCONT, agent)
    return lab.ended(pods)


@fault("agent and worker SIGSTOP", seconds=45)
def frozen_pod(lab: Lab) -> list[int]:
    """Stop agent and worker, as when a machine hangs. They continue when the others are in another round."""
    pods = lab.train()
    pids = pods[1].everything()
    pods[1].signal(signal.SIGSTOP, *pids)
    lab.until(lambda: pods[0].round >= 2, 40, "a round without the frozen pod")
    lab.more_steps()
    pods[1].signal(signal.SIGCONT, *pids)
    return lab.ended(pods)


@fault("etcd away for 30 s", steps_lost=0, seconds=2)
def etcd_killed(lab: Lab) -> list[int]:
    """Stop etcd for 30 s, twice the time after which a silent member counts as lost."""
    pods = lab.train(step=40, steps=400)
    lab.kill_etcd()
    time.sleep(30)
    lab.start_etcd()
    codes = lab.ended(pods)
    expect(max(pod.round for pod in pods) == 1, "the outage cost a round")
    return codes


@fault("etcd away for 60 s and a worker SIGKILL", seconds=90)
def etcd_killed_with_a_worker(lab: Lab) -> list[int]:
    """Kill a worker while etcd is away for 60 s, as when its pod moves to another node. The new round must wait."""
    pods = lab.train()
    lab.kill_etcd()
    pods[1].signal(signal.SIGKILL, pods[1].worker())
    time.sleep(60)
    lab.start_etcd()
    return lab.ended(pods)


@fault("rank 0's node lost three times", steps_lost=3 * PERIOD + 6, seconds=45)
def first_host_lost_three_times(lab: Lab) -> list[int]:
    """Cut off the machine of rank 0, which also hosts the workers' store, three times."""
    pods = lab.start()
    for successor, step in ((3, 60), (4, 100), (5, 140)):  # between checkpoints
        lab.step(step)
        current = max(pod.round for pod in pods)
        first = next(pod for pod in pods if pod.round == current and pod.rounds[-1][-1] == 0)
        pods.remove(first)
        pods.append(lab.lose_machine(first, successor))
    return lab.ended(pods)


FAULTS = (
    worker_killed,
    node_lost,
    frozen_worker,
    frozen_agent,
    frozen_pod,
    etcd_killed,
    etcd_killed_with_a_worker,
    first_host_lost_three_times,
)
