"""Rules between the keys of a stack's configuration, for every kind of cluster.

Each takes the configuration, whose sections are valid, and yields one line per problem; it ends (Absent) where the
stack has no such section. The rules about the training and its data are in infra/training_rules.py, those of a single
cloud in infra/gke/rules.py and infra/eks/rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from infra import training_rules
from infra.clouds import cloud_of, keys
from infra.config import Rule, StackConfig, breaks
from infra.effect import OnlyWith, conditions
from infra.facts import load
from infra.machine import allocatable, for_pods, instead_of, nearest, refuse_reference
from infra.sections import NodesConfig
from infra.stackfiles import TOKEN
from trainer.plain import counted


@cache
def _conditional(kind: str) -> dict[str, list[OnlyWith]]:
    """The keys of a kind of cluster that are used with others only."""
    return {key: found for key, field in keys(kind).items() if (found := conditions(field))}


@breaks("", {"cluster": {"context": "a", "name": "mine"}}, "cluster.name: only used with cluster.kind other than exi")
@breaks("gcp-a100", {"cluster": {"context": "kind"}}, "cluster.context: only used with cluster.kind existing")
@breaks("gcp-a100", {"image": {"registry": "ghcr.io/me"}}, "image.registry: only used with cluster.kind existing")
@breaks("", {"image": {"builder": "buildah", "buildx": "mine"}}, "image.buildx: only used with image.builder buildkit;")
@breaks("", {"image": {"insecure": True}}, "image.insecure: only used with image.registry; set image.registry, or")
@breaks("aws-g4dn", {"nodes": {"consumption": "on_demand", "fallback": "on_demand"}}, "nodes.fallback: only used with")
def _used(config: StackConfig) -> Iterator[str]:
    """Refuse a key that nothing would read (infra/effect.py, OnlyWith)."""
    for key, needed in _conditional(config.cluster.kind).items():
        for each in needed if config.gives(key) and config.value(key) not in (None, False, "none", [], {}) else ():
            if not each.holds(config.value(each.key)):
                yield f"{key}: {each}; set {each.key}, or remove {key}"


@breaks("", {"cluster": {}}, "cluster.context: missing; set it with `pulumi config set --stack test --path cluster.co")
def _context(config: StackConfig) -> Iterator[str]:
    if cloud_of(config).section is None and not config.cluster.context:
        yield "cluster.context: missing; set it with `pulumi config set --path cluster.context VALUE`"


@breaks(
    "gcp-smoke",
    {"cluster": {"ttlHours": 5, "deletionProtection": True}},
    "cluster.ttlHours: 5 with cluster.deletionProtection, with which the cloud refuses to delete the",
)
def _time_to_live(config: StackConfig) -> Iterator[str]:
    cluster = config.cluster
    if cluster.ttl_hours is not None and cluster.deletion_protection and cloud_of(config).section:
        yield (
            f"cluster.ttlHours: {cluster.ttl_hours:g} with cluster.deletionProtection, with which the cloud refuses to "
            "delete the cluster; remove one of them"
        )


@breaks("", {"workers": {"count": 2, "min": 3}}, "workers.min: 3 is more than workers.count; allowed: 1 to 2")
@breaks("", {"workers": {"gpus": 8}}, "workers.processes: 1 for 8 GPUs; allowed: 8, one per GPU")
def _worker_range(config: StackConfig) -> Iterator[str]:
    workers = config.workers
    if workers.min > workers.count:
        yield f"workers.min: {workers.min} is more than workers.count; allowed: 1 to {workers.count}"
    if workers.gpus and workers.gpus != workers.processes:
        gpus = counted(workers.gpus, "GPU")
        yield f"workers.processes: {workers.processes} for {gpus}; allowed: {workers.gpus}, one per GPU"


#: Variables that the pods get from Kubernetes itself or from the stack's Secret.
_TAKEN = ("POD_IP", "RDZV_ID", "NODE_RANK", "NODE_NAME", "NAMESPACE", "HF_TOKEN", "WANDB_API_KEY")
#: Names of environment variables that hold secrets.
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSPHRASE|API_?KEY|(ACCESS|PRIVATE)_?KEY|(^|_)PAT|CREDENTIALS?)$")


@breaks("", {"workers": {"environment": {"A-B": "1"}}}, "workers.environment: 'A-B' is no name of a variable")
@breaks(
    "",
    {"workers": {"environment": {"RDZV_ID": "1"}}},
    "workers.environment.RDZV_ID: the stack sets it itself; remove it",
)
@breaks(
    "",
    {"workers": {"environment": {"GITHUB_PAT": "1"}}},
    "workers.environment.GITHUB_PAT: would be plain text in the Job; remove it",
)
def _worker_environment(config: StackConfig) -> Iterator[str]:
    given = config.workers.environment
    for name, value in given.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield f"workers.environment: '{name}' is no name of a variable; allowed: letters, digits and _"
        if name in _TAKEN:
            yield f"workers.environment.{name}: the stack sets it itself; remove it"
        elif SECRET.search(name) or TOKEN.search(value):
            yield f"workers.environment.{name}: would be plain text in the Job; remove it, or use a key of `secrets`"


@breaks(
    "gcp-a100",
    {"nodes": {"machineType": "a2-highgpu-3g"}},
    "nodes.machineType: 'a2-highgpu-3g' is not known as a worker; allowed: a2-highgpu-1g, a2-highgpu-2g, a2-",
)
@breaks(
    "gcp-c3",
    {"nodes": {"machineType": "c4-highmem-8"}},
    "nodes.machineType: 'c4-highmem-8' is not known as a worker; with no accelerator: c3-highmem-8, ",
)
@breaks(
    "aws-g4dn",
    {"nodes": {"machineType": "a2-highgpu-8g"}},
    "nodes.machineType: 'a2-highgpu-8g' is not known as a worker; allowed: g4dn.xlarge",
)
@breaks(
    "aws-g4dn",
    {"nodes": {"machineType": "G6.XLARGE"}},
    "nodes.machineType: 'G6.XLARGE' is not known as a worker; allowed: g6.",
)
def _machine(config: StackConfig) -> Iterator[str]:
    cloud, wanted = cloud_of(config), config.section(NodesConfig).machine_type
    known = cloud.workers()
    if known and wanted not in known:
        elsewhere = cloud.folder and cloud.folder / "elsewhere.yaml"
        hint = instead_of(wanted, known, load(elsewhere) if elsewhere and elsewhere.exists() else {})
        yield f"nodes.machineType: '{wanted}' is not known as a worker; {hint}"


@breaks(
    "gcp-a100",
    {"gke": {"systemMachineType": "n4-standard-4"}},
    "gke.systemMachineType: 'n4-standard-4' is not known; allowed: e2-standard-2, e2-standard-4",
)
@breaks("aws-g4dn", {"dataset": {"memoryGib": 40}}, "dataset.memoryGib: 40 fits no m6i.large; allowed: at most")
@breaks("gcp-c3", {"dataset": {"cpu": 32}}, "dataset.cpu: 32 fits no e2-standard-4; allowed: at most")
def _system_machine(config: StackConfig) -> Iterator[str]:
    """The dataset Job runs on the nodes without accelerators, and waits for ever where it fits none."""
    key, known = f"{config.cluster.kind}.systemMachineType", cloud_of(config).system()
    if not known:
        return
    name, dataset = config.value(key), config.dataset
    if name not in known:
        yield f"{key}: '{name}' is not known; allowed: {nearest(name, known)}"
        return
    free = zip(allocatable(known[name]), known[name].node.daemons, strict=True)
    cpu, memory = (have - daemons for have, daemons in free)
    for field, asked, most in (("cpu", dataset.cpu, cpu), ("memoryGib", dataset.memory_gib, memory)):
        if asked > most:
            allowed = f"at most {int(most * 10) / 10:g}, or a larger {key}"
            yield f"dataset.{field}: {asked:g} fits no {name}; allowed: {allowed}"


@breaks(
    "gcp-a100", {"nodes": {"localSsds": 4}}, "nodes.localSsds: a2-highgpu-8g does not take 4 local SSDs; allowed: 0, 8"
)
def _local_ssds(config: StackConfig) -> Iterator[str]:
    machine, count = config.machine, config.section(NodesConfig).local_ssds
    if count is not None and count not in machine.local_ssds:
        allowed = ", ".join(map(str, machine.local_ssds))
        yield f"nodes.localSsds: {machine.name} does not take {count} local SSDs; allowed: {allowed}"


@breaks(
    "gcp-a100",
    {"nodes": {"machineType": "a3-highgpu-1g", "localSsds": None}},
    "nodes.consumption: on_demand on a3-highgpu-1g, which comes in other ways; allowed: spot, flex_start, queued",
)
def _ways(config: StackConfig) -> Iterator[str]:
    """A pod waits for ever where a machine cannot be had in the way that it is asked for."""
    machine, nodes = config.machine, config.section(NodesConfig)
    for key, way in (("consumption", nodes.consumption), ("fallback", nodes.fallback)):
        if machine.ways and way not in (*machine.ways, "none"):
            yield f"nodes.{key}: {way} on {machine.name}, which comes in other ways; allowed: {', '.join(machine.ways)}"


@breaks("gcp-a100", {"workers": {"count": 3}}, "nodes.max: 2 nodes for workers.count 3; allowed: 3 or more")
@breaks(
    "gcp-a100",
    {"workers": {"spares": 1}},
    "nodes.max: 2 nodes for workers.count 2 and workers.spares 1; allowed: 3 or more",
)
def _pods_fit_nodes(config: StackConfig) -> Iterator[str]:
    """A pod that asks for more than a node can give stays Pending forever, whatever the autoscaler does."""
    nodes, workers = config.section(NodesConfig), config.workers
    pods = workers.count + workers.spares
    if pods > nodes.max:
        spare = f" and workers.spares {workers.spares}" if workers.spares else ""
        most = counted(nodes.max, "node")
        yield f"nodes.max: {most} for workers.count {workers.count}{spare}; allowed: {pods} or more"


@breaks(
    "gcp-c3",
    {"nodes": {"threadsPerCore": 1}, "workers": {"cpu": 7}},
    "workers.cpu: 7 on c3-highmem-8 with 1 thread a core, which has 4 CPUs, 3.92 of them for pods, less what the cl",
)
@breaks(
    "gcp-c3",
    {"workers": {"memoryGib": 64}},
    "workers.memoryGib: 64 on c3-highmem-8, which has 56.5 GiB for pods, less what the cluster's own pods take; all",
)
@breaks("gcp-c3", {"workers": {"cpu": 6.5}}, "workers.cpu: 6.5 is no whole number; pods get whole cores")
@breaks(
    "gcp-a100", {"workers": {"gpus": 4}}, "workers.gpus: 4 on a2-highgpu-8g, which has nvidia-tesla-a100 x8; allowed: 8"
)
def _pod_fits_node(config: StackConfig) -> Iterator[str]:
    machine, workers, per_core = config.machine, config.workers, config.threads_per_core
    cpus = machine.threads(per_core)
    cpu, memory = allocatable(machine, per_core)
    most_cpu, most_memory = for_pods(machine, per_core)
    threads = f" with {per_core} thread a core" if per_core else ""
    if workers.cpu > most_cpu:
        yield (
            f"workers.cpu: {workers.cpu:g} on {machine.name}{threads}, which has {cpus} CPUs, "
            f"{cpu:g} of them for pods, less what the cluster's own pods take; allowed: at most {most_cpu:g}"
        )
    if workers.memory_gib > most_memory:
        yield (
            f"workers.memoryGib: {workers.memory_gib:g} on {machine.name}, which has {memory:g} GiB for pods, less "
            f"what the cluster's own pods take; allowed: at most {most_memory:g}"
        )
    if workers.gpus != machine.accelerators:
        has = f"{machine.accelerator} x{machine.accelerators}" if machine.accelerator else "no accelerator"
        yield f"workers.gpus: {workers.gpus} on {machine.name}, which has {has}; allowed: {machine.accelerators}"
    if machine.capability == "amx_bf16" and workers.cpu != int(workers.cpu):
        yield (
            f"workers.cpu: {workers.cpu:g} is no whole number; pods get whole cores of {machine.name}; "
            f"allowed: 1 to {most_cpu:g}"
        )


@breaks(
    "gcp-a100",
    {"nodes": {"machineType": "n1-standard-8", "localSsds": 0}},
    "training.precision: bf16 is not supported by nvidia-tesla-t4; use fp16, fp32 or auto",
)
@breaks(
    "gcp-c3",
    {"training": {"precision": "fp16"}},
    "training.precision: fp16 is not supported by c3-highmem-8; use bf16, fp32 or auto",
)
def _precision_of_machine(config: StackConfig) -> Iterator[str]:
    machine, training = config.machine, config.training
    if training.precision in ("auto", *machine.precisions):
        return
    device = machine.accelerator or machine.name
    use = [name for name in ("bf16", "fp16", "fp32") if name in machine.precisions]
    yield f"training.precision: {training.precision} is not supported by {device}; use {', '.join(use)} or auto"


@breaks("", {"image": {"builder": "prebuilt", "ref": "x:latest"}}, "image.ref: 'x:latest' is not by digest")
@breaks("gcp-a100", {"image": {"torch": "cpu"}}, "image.torch: cpu, which uses none of the 8 GPUs of workers.gpus; all")
def _image_source(config: StackConfig) -> Iterator[str]:
    image = config.image
    if image.torch == "cpu" and config.workers.gpus:
        gpus = counted(config.workers.gpus, "GPU")
        yield f"image.torch: cpu, which uses none of the {gpus} of workers.gpus; allowed: cuda, or remove it"
    yield from refuse_reference("image.ref", image.ref, image)


RULES: tuple[Rule, ...] = (
    *training_rules.RULES,
    _used,
    _context,
    _time_to_live,
    _worker_range,
    _worker_environment,
    _machine,
    _system_machine,
    _local_ssds,
    _ways,
    _pods_fit_nodes,
    _pod_fits_node,
    _precision_of_machine,
    _image_source,
)
