"""The faults of pods, on any cluster.

Each is a function that breaks a training, waits until all workers train again in the same Job, and returns what was
seen in a line.
"""

from __future__ import annotations

import time

from faults.cluster import Cluster
from faults.fault import Cannot, expect
from trainer.plain import counted


def pod_killed(there: Cluster) -> str:
    there.kill(there.train()[-1])
    return there.recovered()


def pod_evicted(there: Cluster) -> str:
    """A notice, as where a node is drained: the Job must not see it as a failure of the pod."""
    pods, failed = there.train(), there.training().failed
    there.evict(pods[-1])
    said = there.recovered()
    expect(there.training().failed == failed, "the eviction counts as a failure of the pod")
    return said


def etcd_data_lost(there: Cluster) -> str:
    """The same pods form a new round at the new etcd, which knows none of them."""
    there.train()
    there.lose_etcd()
    return there.recovered()


def node_lost(there: Cluster) -> str:
    there.lose_node(there.train()[-1])
    return there.recovered()


def nfs_server_killed(there: Cluster) -> str:
    return there.kill_nfs_server()


def machine_taken_back(there: Cluster) -> str:
    there.take_machine_back()
    return there.recovered()


def resized(there: Cluster) -> str:
    if there.most < 2:
        raise Cannot("the stack has one worker node at most")
    if not there.elastic:
        raise Cannot("the stack's training is not elastic (workers.spares, job.runtime or queued nodes)")
    count, lines = there.count, []
    other = count + 1 if there.most > count else count - 1
    for before, wanted in ((count, other), (other, count)):
        there.train()
        clock = time.monotonic()
        there.scale(wanted)
        there.recovered()
        lines.append(f"{before} to {counted(wanted, 'worker')}, training after {time.monotonic() - clock:.0f} s")
    return "; ".join([*lines, "the same Job all the time"])
