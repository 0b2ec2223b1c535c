"""Rules between the keys of a stack's configuration, for every kind of cluster.

Each takes the configuration and yields one line per problem; it ends (Unreadable) at a section with mistakes of its
own. The rules of a single cloud are in infra/gke/rules.py and infra/eks/rules.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from infra.clouds import CLOUDS, cloud_of, storage_kinds, volume_kind
from infra.config import Rule, StackConfig
from infra.machine import allocatable, for_pods, nearest
from infra.sections import DATA, NodesConfig
from trainer.config import memory
from trainer.config.schema import Config


def _cluster_kind(config: StackConfig) -> Iterator[str]:
    cluster = config.cluster
    if cloud_of(config).section is None:
        if not cluster.context:
            yield "cluster.context: missing; set it with `pulumi config set --path cluster.context VALUE`"
        if config.nodes is not None:
            makers = " or ".join(kind for kind, cloud in CLOUDS.items() if cloud.section)
            yield f"nodes: only used with clusters that the stack makes; set cluster.kind: {makers}, or remove nodes"
        return
    for key, value in (("context", cluster.context), ("kubeconfig", cluster.kubeconfig)):
        if value:
            yield f"cluster.{key}: only used with cluster.kind existing; the stack makes its own cluster; remove it"
    for key in ("node_selector", "tolerations", "runtime_class"):
        if getattr(config.workers, key):
            yield f"workers.{to_camel(key)}: only used with cluster.kind existing; the stack makes its nodes; remove it"


def _worker_range(config: StackConfig) -> Iterator[str]:
    workers = config.workers
    if workers.min > workers.count:
        yield f"workers.min: {workers.min} is more than workers.count; allowed: 1 to {workers.count}"
    if workers.gpus and workers.gpus != workers.processes:
        yield f"workers.processes: {workers.processes} for {workers.gpus} GPUs; allowed: {workers.gpus}, one per GPU"


#: Variables that the pods get from Kubernetes itself or from the stack's Secret.
_TAKEN = ("POD_IP", "RDZV_ID", "NODE_RANK", "NODE_NAME", "NAMESPACE", "HF_TOKEN", "WANDB_API_KEY")
#: Copied from policy/kubernetes.py: the policy pack also runs where infra is missing.
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSPHRASE|API_?KEY|(ACCESS|PRIVATE)_?KEY|(^|_)PAT|CREDENTIALS?)$")
#: NCCL's limits for its helper threads, and for their sockets together (NVIDIA/nccl, src/transport/net_socket.cc).
_THREADS, _SOCKETS = 16, 64


def _worker_environment(config: StackConfig) -> Iterator[str]:
    given = config.workers.environment
    for name in given:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield f"workers.environment: '{name}' is no name of a variable; allowed: letters, digits and _"
        if name in _TAKEN:
            yield f"workers.environment.{name}: the stack's own pods have it from elsewhere; remove it"
        elif _SECRET.search(name):
            yield f"workers.environment.{name}: the Job would show a secret as text; allowed: those of `secrets`"
    threads, sockets = (given.get(name, "1") for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"))
    numbers = [int(text) if text.isdecimal() else 0 for text in (threads, sockets)]
    if not (1 <= numbers[0] <= _THREADS and numbers[1] >= 1 and numbers[0] * numbers[1] <= _SOCKETS):
        yield (
            f"workers.environment: NCCL_SOCKET_NTHREADS {threads} with NCCL_NSOCKS_PERTHREAD {sockets}; allowed: 1 to "
            f"{_THREADS} threads, and {_SOCKETS} sockets over all threads"
        )


def _machine(config: StackConfig) -> Iterator[str]:
    known, wanted = cloud_of(config).workers(), config.section(NodesConfig).machine_type
    if known and wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1, cutoff=0.8)
        hint = f"did you mean {close[0]}?" if close else f"allowed: {nearest(wanted, known)}"
        yield f"nodes.machineType: '{wanted}' is not known as a worker; {hint}"


def _pods_fit_nodes(config: StackConfig) -> Iterator[str]:
    """A pod that asks for more than a node can give stays Pending forever, whatever the autoscaler does."""
    machine, nodes, workers = config.machine, config.section(NodesConfig), config.workers
    pods = workers.count + workers.spares
    if pods > nodes.max:
        spare = f" and workers.spares {workers.spares}" if workers.spares else ""
        yield f"nodes.max: {nodes.max} nodes for workers.count {workers.count}{spare}; allowed: {pods} or more"
    cpus = machine.threads(nodes.threads_per_core)
    cpu, memory = allocatable(machine, nodes.threads_per_core)
    most_cpu, most_memory = for_pods(machine, nodes.threads_per_core)
    threads = f" with {nodes.threads_per_core} thread a core" if nodes.threads_per_core else ""
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


def _precision_of_machine(config: StackConfig) -> Iterator[str]:
    machine, training = config.machine, config.training
    if training.precision in ("auto", *machine.precisions):
        return
    device = machine.accelerator or machine.name
    use = [name for name in ("bf16", "fp16", "fp32") if name in machine.precisions]
    yield f"training.precision: {training.precision} is not supported by {device}; use {', '.join(use)} or auto"


def _training(config: StackConfig) -> Iterator[str]:
    """Refuse settings that waste nodes. The trainer itself accepts them: by hand they are usual trials."""
    training = config.training
    rate, warmup = training.optimizer.learning_rate, training.optimizer.warmup_steps
    if rate > 1:
        yield f"training.optimizer.learningRate: {rate:g} lets any training diverge; allowed: at most 1"
    if warmup >= training.steps:
        yield (
            f"training.optimizer.warmupSteps: {warmup} leaves nothing of {training.steps} steps; allowed: 0 to "
            f"{training.steps - 1}"
        )
    if training.engine.zero_stage != 1 and training.engine.name != "deepspeed":
        name = training.engine.name
        yield f"training.engine.zeroStage: given, but engine.name is {name}; set deepspeed, or leave the stage out"
    for key, value, source in (
        ("run.directory", training.run.directory, "job.name"),
        ("data.directory", training.data.directory, "dataset.name"),
    ):
        if value:
            yield f"training.{key}: {value} would not be used; the folder follows from {source}; remove it"


#: NAME or OWNER/NAME, with an optional revision: a branch, a tag or a commit.
_HUB_NAME = re.compile(r"\w[-\w.]*(/\w[-\w.]*)?(@[-\w.]+)?")


def _models(config: StackConfig) -> Iterator[str]:
    """Refuse models that pods cannot reach: the pods would fail only after their nodes have started."""
    training = config.training
    for key, given in (("model.name", training.model.name), ("distillation.teacher", training.distillation.teacher)):
        if not given or _HUB_NAME.fullmatch(given) or given.startswith(f"{DATA}/"):
            continue
        address = re.fullmatch(r"hf:/*(.+)|https?://[^/]+/([^/]+/[^/]+).*", given)
        if address and _HUB_NAME.fullmatch(name := address[1] or address[2]):
            yield f"training.{key}: '{given}' is no name on the Hugging Face hub; did you mean {name}?"
        else:
            yield (
                f"training.{key}: '{given}' is no name on the Hugging Face hub, and pods see no folder but the shared "
                f"volume; `trainyard upload FOLDER --to models/NAME` brings it to {DATA}/models/NAME: give that"
            )
    shape = training.model.config
    if shape and not shape.startswith(f"{DATA}/"):
        yield (
            f"training.model.config: pods do not see {shape}; `trainyard upload FILE --to models/NAME` brings it to "
            f"{DATA}/models/NAME/config.json: give that"
        )


def _conversations(config: StackConfig) -> Iterator[str]:
    if config.training.task == "finetune" and "sample" in config.dataset.input:
        yield (
            "dataset.input: sample is a book, and training.task finetune learns from conversations; give JSONL files "
            "with messages, or with prompt and completion (`trainyard upload chats.jsonl`), or hf:NAME"
        )


def _text(config: StackConfig) -> Iterator[str]:
    task = config.training.task
    for key, value in config.dataset.reading.items() if task in ("finetune", "question_answering") else ():
        yield f"dataset.{to_camel(key)}: {value}, but training.task {task} reads no plain text; leave it out"


def _tokenizer(config: StackConfig) -> Iterator[str]:
    tokenizer, training = config.dataset.tokenizer, config.training
    words, learned = memory.words_to_train(tokenizer), training.model.name or training.distillation.teacher
    if words == 0:
        yield f"dataset.tokenizer: {tokenizer}; {memory.TRAINABLE}"
    elif words and learned:
        yield f"dataset.tokenizer: {tokenizer} makes words that {learned} has not learned; leave it out"


#: A run is refused when this share of the memory that it needs by the formula exceeds what there is: the formula counts
#: what autograd keeps without the compiler, and the size in a model's name is rounded.
_SURE = 0.85


def _memory(config: StackConfig) -> Iterator[str]:
    """Refuse a model that fits no worker before anything is rented; a model of unknown size passes."""
    training, workers, machine = config.training, config.workers, config.node_machine
    tokenizer = config.dataset.tokenizer
    words = memory.VOCABULARY if tokenizer in ("", "gpt2") else memory.words_to_train(tokenizer) or 0
    shape = memory.shape_of(training, words)
    there = machine.accelerator_gib if workers.gpus and machine else 0.0
    if shape is None or training.task == "question_answering" or (workers.gpus and not there):
        return
    if not there and "memory_gib" not in workers.model_fields_set:
        return  # the default says nothing about the nodes of an existing cluster
    precisions = machine.precisions if machine else ("fp32", "bf16")
    if training.precision != "auto":
        precisions = (training.precision,)
    world = workers.count * workers.processes

    def gib(chosen: Config) -> float:
        """GiB of an accelerator, else of the pod's memory, which its workers share with the first one's checkpoint."""
        needs = min(memory.needed(shape, chosen, name, world, accelerator=bool(there)) for name in precisions)
        return (needs if there else needs * workers.processes + memory.saved(shape, chosen)) / 2**30

    most = there or workers.memory_gib
    where = f"{machine.accelerator} has {there:g}" if machine and there else f"workers.memoryGib is {most:g}"
    model = training.model.size or training.model.name or training.model.config
    estimate = " by the size in its name" if memory.is_estimate(training) else ""
    if _SURE * gib(training) > most:
        kinds = {f"engine.name: fsdp on {world} workers": {"engine.name": "fsdp"}} if world > 1 else {}
        if training.model.name:
            kinds["adapter.kind: lora"] = {"adapter.kind": "lora", "engine.name": "ddp"}
        more = {"": {}, "model.checkpointing: true": {"model.checkpointing": True}}
        more["model.checkpointing: true, microBatch: 1"] = {"model.checkpointing": True, "micro_batch": 1}
        fitting: list[str] = []
        for kind, change in {**kinds, "": {}}.items():
            for addition, further in more.items():
                chosen = memory.allowed(training, {**change, **further})
                if chosen and gib(chosen) < most:
                    way = " with ".join(filter(None, (kind, addition)))
                    fitting.append(f"{way} ({gib(chosen):.1f} GiB)")
                    break
        yield (
            f"training.engine.name: {model} with {training.engine.name} needs {gib(training):.1f} GiB a "
            f"{'worker' if there else 'pod'}{estimate}, {where}; use {', '.join([*fitting, 'a smaller model'])} or "
            f"{'a larger machine' if machine else 'more memory'}"
        )
    elif there and _SURE * memory.saved(shape, training) / 2**30 > workers.memory_gib:
        yield (
            f"workers.memoryGib: {workers.memory_gib:g}, but a checkpoint of {model} takes "
            f"{memory.saved(shape, training) / 2**30:.1f} GiB{estimate} of the first worker's host memory; use a "
            "larger machine, adapter.kind: lora or a smaller model"
        )


def _exporters(config: StackConfig) -> Iterator[str]:
    """Without a key, each worker would start without Weights & Biases, and the training would go on unrecorded."""
    offline = config.workers.environment.get("WANDB_MODE") == "offline"
    if config.training.metrics.wandb_project and not config.secrets.wandb_api_key and not offline:
        yield (
            "secrets.wandbApiKey: missing for training.metrics.wandbProject; set it with "
            "`pulumi config set --secret --path secrets.wandbApiKey KEY`, or remove the project"
        )


def _storage_kind(config: StackConfig) -> Iterator[str]:
    storage, allowed = config.storage, cloud_of(config).storage
    if storage.kind is not None and storage.kind not in allowed:
        owner = storage_kinds()[storage.kind]
        if CLOUDS[owner].section is None:
            yield (
                f"storage.kind: {storage.kind} is not shared by the nodes of a cluster that the stack makes; "
                f"allowed: {', '.join(allowed)}"
            )
        else:
            yield f"storage.kind: {storage.kind} needs cluster.kind {owner}; allowed here: {', '.join(allowed)}"
    if cloud_of(config).section is None:
        for key, used in (("retain", storage.retain), ("disk", storage.disk)):
            if used:
                yield f"storage.{key}: only used with storage.kind nfs or efs; remove it"
    if "efs" not in allowed and "throughput" in storage.model_fields_set:
        yield "storage.throughput: only used with storage.kind efs; remove it"
    if storage.path and storage.kind != "hostPath":
        yield "storage.path: only used with storage.kind hostPath; set storage.kind, or remove the path"
    if storage.path and not storage.path.startswith("/"):
        yield f"storage.path: '{storage.path}' is relative; give the absolute directory on the node"
    if storage.class_name and storage.kind != "storageClass":
        yield "storage.className: only used with storage.kind storageClass; set storage.kind, or remove the class"


def _image_source(config: StackConfig) -> Iterator[str]:
    image, storage = config.image, config.storage
    references = {"image.ref": image.ref, "storage.serverImage": storage.server_image}
    if volume_kind(config) != "nfs" or "nfs" not in cloud_of(config).storage:
        references.pop("storage.serverImage")
        if storage.server_image:
            yield "storage.serverImage: only used with storage.kind nfs; remove it"
    if image.buildx and image.builder in ("buildah", "prebuilt"):
        yield f"image.buildx: only used with image.builder buildkit, not {image.builder}; remove it"
    if image.insecure and not image.registry:
        yield "image.insecure: only used with image.registry; remove it"
    for key, reference in references.items():
        if image.builder == "prebuilt":
            if not reference:
                yield f"{key}: missing; builder prebuilt needs the image as name@sha256:<64 hex digits>"
            elif not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", reference):
                yield f"{key}: '{reference}' is not by digest; allowed: name@sha256:<64 hex digits>"
        elif reference:
            yield f"{key}: only used with image.builder prebuilt; set the builder, or remove the ref"


def _work_for_all(config: StackConfig) -> Iterator[str]:
    training, workers = config.training, config.workers
    micro_batches = training.tokens_per_step // (training.sequence_length * (training.micro_batch or 1))
    processes = workers.count * workers.processes
    if 0 < micro_batches < processes:
        yield (
            f"training.microBatch: a step has {micro_batches} micro-batches for {processes} processes, some would "
            f"idle; lower microBatch or raise tokensPerStep"
        )


def _rendezvous(config: StackConfig) -> Iterator[str]:
    rendezvous = config.rendezvous
    if rendezvous.backend == "c10d":
        if rendezvous.tls:
            yield "rendezvous.tls: c10d has no encryption; set rendezvous.backend: etcd, or remove tls"
        if rendezvous.image:
            yield "rendezvous.image: only used with rendezvous.backend etcd; c10d runs in the trainer's image"


RULES: tuple[Rule, ...] = (
    _rendezvous,
    _cluster_kind,
    _worker_range,
    _worker_environment,
    _machine,
    _pods_fit_nodes,
    _precision_of_machine,
    _training,
    _models,
    _conversations,
    _text,
    _tokenizer,
    _exporters,
    _memory,
    _storage_kind,
    _image_source,
    _work_for_all,
)
