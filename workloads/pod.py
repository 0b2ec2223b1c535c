"""What all our pods share: security contexts, and the trainer's volumes and environment."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pulumi_kubernetes as k8s

from infra.cluster import NVIDIA_GPU, WorkerPool
from infra.config import WorkersConfig
from trainer.contract import BIND_CORES, DEVICE, TRAINER_ID
from workloads.layout import DATA

#: For pods that an autoscaler must not evict to consolidate nodes.
STAYS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


def root_security(*capabilities: str, read_only: bool | None = True) -> k8s.core.v1.SecurityContextArgs:
    """Security of a container that must be root: the named capabilities alone, and a read-only root file system."""
    return k8s.core.v1.SecurityContextArgs(
        run_as_user=0,
        allow_privilege_escalation=False,
        read_only_root_filesystem=read_only,
        capabilities=k8s.core.v1.CapabilitiesArgs(drop=["ALL"], add=list(capabilities) or None),
        seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
    )


def pod_security(user: int = TRAINER_ID) -> k8s.core.v1.PodSecurityContextArgs:
    """What the restricted Pod Security standard asks of a pod."""
    return k8s.core.v1.PodSecurityContextArgs(
        run_as_non_root=True,
        run_as_user=user,
        run_as_group=user,
        fs_group=user,
        # A recursive chown of a volume full of checkpoints takes minutes.
        fs_group_change_policy="OnRootMismatch",
        seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
    )


def container_security() -> k8s.core.v1.SecurityContextArgs:
    """What the restricted Pod Security standard asks of a container, and a read-only root file system."""
    return k8s.core.v1.SecurityContextArgs(
        allow_privilege_escalation=False,
        read_only_root_filesystem=True,
        capabilities=k8s.core.v1.CapabilitiesArgs(drop=["ALL"]),
    )


def environment(values: Mapping[str, str]) -> list[k8s.core.v1.EnvVarArgs]:
    return [k8s.core.v1.EnvVarArgs(name=name, value=value) for name, value in values.items()]


def from_field(name: str, path: str) -> k8s.core.v1.EnvVarArgs:
    """An environment variable from the pod's own fields."""
    source = k8s.core.v1.EnvVarSourceArgs(field_ref=k8s.core.v1.ObjectFieldSelectorArgs(field_path=path))
    return k8s.core.v1.EnvVarArgs(name=name, value_from=source)


#: The root file system is read-only: caches and home go to /tmp.
TRAINER_ENVIRONMENT = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1"}


#: Where the image has tcmalloc (trainer/Dockerfile). A step of GPT-2 (2 layers, 512 wide, 512 tokens, one core) takes
#: 1.30 s of CPU and 1.27 GB with it, 1.33 s and 1.77 GB with glibc's settings of the launcher, 1.74 s and 1.32 GB with
#: plain glibc (libtcmalloc-minimal4 2.10, Debian 12, AMD EPYC, 2026-11-21).
TCMALLOC = "/usr/lib/trainer/libtcmalloc.so"


def node_environment(workers: WorkersConfig, pool: WorkerPool) -> dict[str, str]:
    """What a training process must know of its node: network interface, threads, core binding, allocator."""
    cores = workers.cpu / pool.threads_per_core
    values = {
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        # One thread per core: two hyperthreads share its matrix unit.
        "OMP_NUM_THREADS": str(max(1, (math.ceil if pool.whole_cores else math.floor)(cores / workers.processes))),
        **pool.environment,
    }
    if pool.whole_cores and workers.processes == 1:
        # The launcher turns it into OpenMP's settings, for the workers alone (trainer/elastic/processor.py).
        values[BIND_CORES] = "1"
    if workers.gpus:
        # Under too old a driver torch finds no device and would train without one (trainer/parallel/world.py).
        values[DEVICE] = "cuda"
    if workers.allocator == "tcmalloc":
        values["LD_PRELOAD"] = TCMALLOC
    return values | workers.environment


def beside_others() -> k8s.core.v1.AffinityArgs:
    """Schedule a pod beside those that have the volume: on another node it would wait for the volume forever."""
    meta = k8s.meta.v1
    others = meta.LabelSelectorArgs(
        match_labels={"app.kubernetes.io/name": "trainyard"},
        match_expressions=[
            meta.LabelSelectorRequirementArgs(
                key="app.kubernetes.io/component", operator="NotIn", values=["rendezvous"]
            )
        ],
    )
    term = k8s.core.v1.PodAffinityTermArgs(topology_key="kubernetes.io/hostname", label_selector=others)
    return k8s.core.v1.AffinityArgs(
        pod_affinity=k8s.core.v1.PodAffinityArgs(required_during_scheduling_ignored_during_execution=[term])
    )


def trainer_mounts(read_only: bool = False) -> list[k8s.core.v1.VolumeMountArgs]:
    mount = k8s.core.v1.VolumeMountArgs
    return [
        mount(name="data", mount_path=DATA, read_only=read_only or None),
        mount(name="tmp", mount_path="/tmp"),
        mount(name="shm", mount_path="/dev/shm"),
    ]


def resources(
    cpu: float, memory_gib: float, gpus: int = 0, whole_cores: bool = False, devices: Mapping[str, str] | None = None
) -> k8s.core.v1.ResourceRequirementsArgs:
    """Requests, of which memory and accelerators are limits as well; a CPU limit would throttle a pod on idle cores.

    With `whole_cores` CPU is a limit too: the kubelet gives exclusive cores to a pod whose requests equal its limits.
    """
    memory = f"{round(memory_gib * 1024)}Mi"
    accelerators = {**({NVIDIA_GPU: str(gpus)} if gpus else {}), **(devices or {})}
    return k8s.core.v1.ResourceRequirementsArgs(
        requests={"cpu": f"{round(cpu * 1000)}m", "memory": memory, **accelerators},
        limits={**({"cpu": f"{round(cpu * 1000)}m"} if whole_cores else {}), "memory": memory, **accelerators},
    )
