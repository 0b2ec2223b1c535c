"""The faults of pods, played on any place that has the few methods of Place: processes, the local node, a cloud.

Each is a function of a Place and returns what its `recovered` says.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from faults.fault import PERIOD, Cannot, expect, fault
from trainer.contract import EXIT_TERMINATED
from trainer.plain import counted

MANY = 3
"""Workers of the processes and of the node; a cloud's stack has its own number."""


class Place(Protocol):
    """A training that can be broken, and waits for its recovery."""

    count: int
    """The workers that train when all is well."""

    def train(self, count: int | None = None) -> list[Any]:
        """Wait until there is something to lose, and mark the fault; return the workers, by index."""
        ...

    def delete(self, pod: Any, grace: int | None = None) -> int | None:
        """Delete a worker; return its exit code."""
        ...

    def lose_node(self, pod: Any) -> None: ...

    def scale(self, count: int) -> list[int | None]:
        """Change the number of workers; return the exit codes of those that left."""
        ...

    def lose_etcd(self) -> None:
        """Take etcd and its data away, on the node for a minute, and bring an empty one back."""
        ...

    def stayed(self, pods: list[Any]) -> bool:
        """Whether these pods are still the workers, in a new round."""
        ...

    def recovered(self) -> Any:
        """Wait until all workers train again, or have ended."""
        ...


@fault("pod deleted with grace", "processes", "node", seconds=20)
def pod_deleted(place: Place) -> Any:
    code = place.delete(place.train()[-1])
    expect(code == EXIT_TERMINATED, f"the deleted pod ended with {code}, not {EXIT_TERMINATED}")
    return place.recovered()


@fault("pod deleted without grace", "processes", "node", "cloud", steps_lost=PERIOD + 2)
def pod_deleted_at_once(place: Place) -> Any:
    place.delete(place.train()[-1], grace=0)
    return place.recovered()


@fault("node lost, no FIN", "processes", "cloud", steps_lost=PERIOD + 2, seconds=45)
def node_lost(place: Place) -> Any:
    """Processes: drop all packets of a machine. A cloud: delete the machine. No cloud: cordon, and kill its workers."""
    place.lose_node(place.train()[-1])
    return place.recovered()


@fault(f"1 -> {MANY} pods", "processes", "node")
def scale_out(place: Place) -> Any:
    place.train(1)
    place.scale(MANY)
    return place.recovered()


@fault(f"{MANY} -> 1 pods", "processes", "node", seconds=20)
def scale_in(place: Place) -> Any:
    place.train()
    codes = place.scale(1)
    expect(set(codes) == {EXIT_TERMINATED}, f"scaled-in pods ended with {codes}")
    return place.recovered()


@fault("etcd's data lost", "processes", "node")
def etcd_data_lost(place: Place) -> Any:
    """The same pods form one new round at the new etcd, which knows none of them."""
    pods = place.train()
    place.lose_etcd()
    said = place.recovered()
    expect(place.stayed(pods), "the same pods did not make one new round")
    return said


@fault("pod evicted: a notice", "node", seconds=20)
def pod_evicted(place: Any) -> Any:
    code = place.evict(place.train()[-1])
    expect(code == EXIT_TERMINATED, f"the evicted pod ended with {code}, not {EXIT_TERMINATED}")
    return place.recovered()


@fault("workers are added and removed", "cloud")
def resized(place: Any) -> str:
    if place.most < 2:
        raise Cannot("the stack has one worker node at most")
    if not place.elastic:
        raise Cannot("the stack's training is not elastic (workers.spares, job.runtime or queued nodes)")
    count, lines = place.count, []
    other = count + 1 if place.most > count else count - 1
    for before, wanted in ((count, other), (other, count)):
        place.train()
        clock = time.monotonic()
        place.scale(wanted)
        place.recovered()
        lines.append(f"{before} to {counted(wanted, 'worker')}, training after {time.monotonic() - clock:.0f} s")
    return "; ".join([*lines, "the same Job all the time"])


@fault("the NFS server's pod is killed", "cloud")
def nfs_server_killed(place: Any) -> str:
    return place.kill_nfs_server()


@fault("the cloud takes a Spot machine back", "cloud")
def spot(place: Any) -> str:
    place.take_machine_back()
    return place.recovered()


NODE = (scale_out, pod_deleted, pod_deleted_at_once, pod_evicted, etcd_data_lost, scale_in)
"""In the order in which one training on the local node meets them."""
FAULTS = (*NODE, node_lost, resized, nfs_server_killed, spot)
