"""The catalog agrees with what it describes."""

from __future__ import annotations

import pytest

from infra.eks import machines as eks_machines
from infra.eks import nodes as eks_nodes
from infra.gke import machines as gke_machines
from infra.gke import nodes as gke_nodes
from infra.machine import allocatable, for_pods

MACHINES = gke_machines.machines() | eks_machines.machines()


def test_what_pods_get_is_what_the_cloud_leaves() -> None:
    """GKE's documentation (plan-node-sizes) prints what `kubectl describe node` shows of an e2-standard-4, and
    amazon-eks-ami that the kubelet of a g4dn.xlarge keeps 574 MiB."""
    assert allocatable(MACHINES["e2-standard-4"]) == (3.92, pytest.approx(13498416 / 2**20, rel=0.01))
    assert allocatable(MACHINES["g4dn.xlarge"])[1] == pytest.approx(16 * 0.925 - (574 + 100) / 1024, abs=0.01)


def test_a_pod_never_gets_more_than_is_left_on_a_node() -> None:
    for machine in MACHINES.values():
        for threads in (1, 2):
            cpu, gib = for_pods(machine, threads)
            left_cpu, left_gib = allocatable(machine, threads)
            assert cpu < left_cpu < machine.threads(threads)
            assert gib < left_gib < machine.memory_gib


def test_every_worker_can_be_used() -> None:
    for machine in (machine for machine in MACHINES.values() if not machine.system):
        assert (machine.accelerator is None) == (machine.accelerators == 0)
        assert machine.bundled_ssds in machine.local_ssds
        assert for_pods(machine)[0] >= 1


def test_the_network_of_every_machine_with_accelerators_is_known() -> None:
    """Except for A3: a pod's interface does not reach its accelerators' network cards."""
    known = gke_nodes.INTERCONNECT["gbit_per_second"].keys() | eks_nodes.INTERCONNECT["gbit_per_second"].keys()
    wanted = {name for name, machine in MACHINES.items() if machine.accelerators and machine.family != "a3-highgpu"}
    assert known == wanted
