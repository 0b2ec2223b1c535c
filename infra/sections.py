"""The sections of a stack's configuration: every key, its default, what it means.

One class per key under `trainyard:`; infra/config.py puts them together, infra/rules.py has the rules between them. The
sentence under a field is its documentation in docs/configuration.md. `training:` is the trainer's own configuration.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from infra.effect import Impossible, OnlyWith, Replaces, changed, smaller
from trainer.config.addresses import address
from trainer.config.base import NO_MATHEMATICS, Free, Section
from trainer.config.paths import expanded

#: Where pods mount the shared volume; they see no other files of the user.
DATA = "/data"
#: RFC 1123 label; 40 characters leave room for the suffixes that Kubernetes adds to Job and Pod names (63 in all).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
#: A taint as `kubectl taint` writes it.
TAINT = re.compile(r"(?P<key>[^=:\s]+)(=(?P<value>[^:\s]*))?(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?")


def _taint(text: str) -> str:
    if not TAINT.fullmatch(text):
        raise ValueError(f"'{text}' is no taint; give KEY, KEY:EFFECT or KEY=VALUE:EFFECT, as in sku=gpu:NoSchedule")
    return text


#: Upper limits are beyond every machine, quota and patience: they catch a unit or a digit too many.
Cores = Annotated[float, Field(ge=0.001, le=4096)]
"""Kubernetes counts thousandths."""
Gib = Annotated[float, Field(ge=0.1, le=65_536)]
VolumeGib = Annotated[int, Field(ge=1, le=1_048_576)]
Hours = Annotated[float, Field(ge=0.01, le=24 * 365)]
"""Kubernetes and the clouds count seconds; the least is 36, of which none rounds to 0."""
Minutes = Annotated[int, Field(ge=1, le=7 * 24 * 60)]


#: EKS began on this day, and GKE three years earlier.
FIRST_DAY = datetime(2018, 6, 5, tzinfo=UTC)


def has_been(text: str, when: datetime) -> str:
    """The text of a time since clouds run Kubernetes. Raises ValueError."""
    if not FIRST_DAY <= when <= datetime.now(UTC):
        raise ValueError(
            f"'{text}' lies {'in the future' if when > FIRST_DAY else 'before EKS and GKE'}; give a real day"
        )
    return text


def _addresses(given: tuple[str, ...]) -> tuple[str, ...]:
    """IP addresses and ranges, in CIDR notation."""
    for text in given:
        try:
            if ipaddress.ip_network(text) and "%" in text:  # a network card's, as in a resolv.conf; policies take none
                raise ValueError
        except ValueError:
            raise ValueError(
                f"'{text}' is no address; give one as 10.0.0.10, or a range by its first address, as 10.0.0.0/28"
            ) from None
    return tuple(str(ipaddress.ip_network(text)) for text in given)


#: Where an own server may stand: of IANA's special-purpose registries (2026-11) what no route of the internet leads to
#: and clouds let networks have, ranges for tests and examples too.
PRIVATE = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
    "fc00::/7",
)
#: AWS's metadata, which gives a node's credentials to whoever asks.
_METADATA = ipaddress.IPv6Network("fd00:ec2::/32")


def within(text: str, ranges: Iterable[str]) -> bool:
    """Whether an address or range lies in one of the ranges."""
    inner = ipaddress.ip_network(text)
    every: list[Any] = [ipaddress.ip_network(each) for each in ranges]
    return any(inner.version == each.version and inner.subnet_of(each) for each in every)


def _private(given: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_addresses(given)))
    for text in found:
        if not within(text, PRIVATE):
            raise ValueError(f"'{text}' is in none of {', '.join(PRIVATE)}; the Job reaches the internet without it")
        if ipaddress.ip_network(text).overlaps(_METADATA):
            raise ValueError(f"'{text}' holds {_METADATA}, with the credentials of AWS's nodes; give the server alone")
    return found


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"'{text}' is relative; give the absolute directory on the node")
    return text


class ClusterConfig(Section):
    kind: Annotated[str, Replaces("cluster, data")] = "existing"
    """Where the cluster comes from. `existing`: one that a kubeconfig reaches, which the stack neither creates nor
    destroys. `gke` and `eks`: made on Google Cloud or AWS and destroyed with the stack; see `gke` or `eks`, and
    `nodes`."""
    context: Annotated[
        str | None,
        Replaces(on={"existing": "objects", "storageClass": "data, objects"}),
        OnlyWith("cluster.kind", "existing"),
        Field(min_length=1),
    ] = None
    """Context of an existing cluster in the kubeconfig. `trainyard-local` is the node that `make up` starts on this
    machine."""
    kubeconfig: Annotated[Annotated[str, AfterValidator(expanded)] | None, OnlyWith("cluster.kind", "existing")] = None
    """Path of the kubeconfig. Default: $KUBECONFIG, else ~/.kube/config, as for kubectl."""
    name: Annotated[
        Name | None,
        Replaces("cluster, data", on={"existing": "", "eks": "cluster"}),
        OnlyWith("cluster.kind", other_than="existing"),
    ] = None
    """Name of the cluster that the stack makes, and prefix of the names of all its parts. Default: trainyard-STACK."""
    deletion_protection: Annotated[bool, OnlyWith("cluster.kind", other_than="existing")] = False
    """Let the cloud refuse to delete the cluster. Run `trainyard up` with false before `trainyard down`, or before a
    change that replaces the cluster."""
    namespace: Annotated[Name, Replaces("objects", on={"storageClass": "data, objects"})] = "trainyard"
    """Namespace that the stack creates and destroys, with everything in it."""
    replace: bool = False
    """Allow a change that replaces the cluster, all that the stack has in it, or its data; otherwise `pulumi preview`
    and `up` refuse such a change. Set it for one `up`."""
    dns: Annotated[tuple[str, ...], AfterValidator(_addresses)] = ()
    """Addresses of name servers that the pods may ask, as 10.0.0.10 or 10.0.0.0/28, where the cluster's DNS is none
    of the usual ones (workloads/dns.yaml): CoreDNS in kube-system, NodeLocal DNSCache, Cloud DNS, OpenShift's."""
    ttl_hours: Hours | None = None
    """The workflow ttl.yml destroys a forgotten stack this long after its last `pulumi up`, with the data on its own
    storage. Default: never."""


class NodesConfig(Section):
    """The nodes that train, as on every cloud; each has its own class with further keys."""

    machine_type: Annotated[str, Replaces("workers")]
    """Machine type of the nodes that train, such as a2-highgpu-8g, c3-highmem-8 or g4dn.xlarge; machines.yaml in the
    cloud's folder lists them."""
    max: int = Field(default=2, ge=1, le=1000)
    """Maximum number of nodes that train. At rest there are none: the autoscaler adds them for the Job and removes them
    after it."""
    consumption: Any = "on_demand"  # each cloud has its own choices of these two
    fallback: Any = "none"
    compact_placement: Annotated[bool, Replaces("workers")] = False
    """Place the nodes close to each other: lower latency between them, but harder to get."""
    disk_gib: int = Field(default=200, ge=50, le=65_536)
    """Size of the boot disk, GiB: the image with its CUDA libraries takes 10."""
    local_ssds: Annotated[int | None, Replaces(on={"gke": "workers"}), Field(ge=0, le=32)] = None
    """Number of local SSDs for the pods' scratch: images, /tmp and caches. Default: those of the machine type."""

    @property
    def machine_types(self) -> tuple[str, ...]:
        """All that may come; pods are sized for the first."""
        return (self.machine_type,)


class WorkersConfig(Section):
    count: int = Field(default=2, ge=1, le=1000)
    """Pods of the training Job; one per node where the stack makes the nodes."""
    min: int = Field(default=1, ge=1, le=1000)
    """The training continues with this many pods when others are lost."""
    spares: int = Field(default=0, ge=0, le=100)
    """Ready pods beyond `count` that take the place of lost ones. With spares a change of `count` makes a new Job;
    without, pods join and leave the running one."""
    processes: int = Field(default=1, ge=1, le=64)
    """Training processes per pod: one per accelerator, or per NUMA node on CPUs. Default with `nodes`: one per
    accelerator, else one."""
    cpu: Cores = 1.0
    """CPU cores requested per pod; each process gets cpu / processes threads, at least one. Default with `nodes`: what
    a node can give."""
    memory_gib: Gib = 2.0
    """Memory per pod, requested and limit, GiB. Default with `nodes`: what a node can give."""
    gpus: int = Field(default=0, ge=0, le=16)
    """Accelerators (nvidia.com/gpu) per pod. Default with `nodes`: all of a node."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the workers, which override the stack's: `NCCL_DEBUG: INFO` shows what NCCL chose,
    `NCCL_SOCKET_NTHREADS` and `NCCL_NSOCKS_PERTHREAD` change it. Secrets belong in `secrets`."""
    node_selector: Annotated[dict[str, str], OnlyWith("cluster.kind", "existing")] = Field(default_factory=dict)
    """Labels of the nodes that train, such as `agentpool: gpu`. Default: any node that has room."""
    tolerations: Annotated[tuple[Annotated[str, AfterValidator(_taint)], ...], OnlyWith("cluster.kind", "existing")] = (
        Field(default=(), max_length=20)
    )
    """Taints of the nodes that train, as kubectl writes them: `sku=gpu:NoSchedule`. Pods with GPUs
    tolerate the customary nvidia.com/gpu:NoSchedule anyway."""
    runtime_class: Annotated[str | None, OnlyWith("cluster.kind", "existing")] = None
    """RuntimeClass of the pods that train. Set `nvidia` where `kubectl get runtimeclass` shows it,
    such as on k3s, RKE2, MicroK8s and k0s: without it pods see no GPU there. Default: the nodes' own."""
    allocator: Literal["glibc", "tcmalloc"] | None = None
    """Memory allocator of the trainer on the CPU: `tcmalloc` is preloaded from the image. Default: tcmalloc on C3,
    else glibc with the trainer's settings for it."""


class StorageConfig(Section):
    """The shared volume, as on every cluster; each kind of cluster has its own class with further keys."""

    kind: Any = None  # each kind of cluster has its own choices
    size_gib: VolumeGib = 10
    """Size of the volume, GiB; it can grow."""


class ExistingStorage(StorageConfig):
    kind: Annotated[Literal["hostPath", "storageClass"] | None, Replaces(on={"storageClass": "data"})] = None
    """`hostPath`: a directory of a single node. `storageClass`: a claim on the cluster's (default) class. Default: the
    directory of the local node; else the cluster's default class."""
    path: Annotated[Annotated[str, AfterValidator(_absolute)] | None, OnlyWith("storage.kind", "hostPath")] = None
    """Directory on the node, for hostPath. Default: the one that the local node offers."""
    class_name: Annotated[str | None, Replaces("data"), OnlyWith("storage.kind", "storageClass")] = None
    """StorageClass, for storageClass. Default: the cluster's default class."""
    access_mode: Annotated[Literal["ReadWriteMany", "ReadWriteOnce"] | None, Replaces(on={"storageClass": "data"})] = (
        None
    )
    """Default: ReadWriteMany for a named class; ReadWriteOnce for the cluster's default class, which is nearly always a
    disk or a directory of one node."""
    # k8s.io/kubernetes v1.34.4: pkg/apis/core/validation (ValidatePersistentVolumeClaimUpdate) and
    # plugin/pkg/admission/storage/persistentvolume/resize, read 2026-11-22.
    size_gib: Annotated[
        VolumeGib,
        Impossible(smaller, "a claim does not shrink", on=("storageClass",)),
        Impossible(changed, "the claim of a folder keeps its size, which nothing is held to", on=("hostPath",)),
    ] = 10
    """Size of the volume, GiB; a claim on a class can grow."""


class ImageConfig(Section):
    builder: Literal["buildah", "buildkit", "prebuilt"] | None = None
    """`buildkit` needs a Docker engine or a remote BuildKit; `buildah` needs neither; `prebuilt` builds nothing.
    Default: what the local node offers, else buildkit."""
    # As a reference of an image begins (github.com/distribution/reference, reference.go).
    registry: Annotated[
        Annotated[
            str, StringConstraints(pattern=r"^(\[[0-9a-fA-F:]+\]|[\w.-]+)(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$")
        ]
        | None,
        OnlyWith("cluster.kind", "existing"),
    ] = None
    """Registry that this machine pushes to and the cluster pulls from, for example localhost:5001, ghcr.io/you or
    docker.io/you. Default: the local node's. With kind gke the stack makes an Artifact Registry repository, with kind
    eks an ECR repository."""
    insecure: Annotated[bool, OnlyWith("image.registry")] = False
    """The registry speaks plain HTTP, as those of this machine (localhost:5001) and of the local node always do."""
    buildx: Annotated[
        Annotated[str, StringConstraints(pattern=r"^[a-zA-Z][-_.a-zA-Z0-9]*$")] | None,
        OnlyWith("image.builder", "buildkit", None),
    ] = None
    """The builder's name in `docker buildx ls`. A registry of this machine needs one on the host's
    network (`trainyard local use`). Default: the builder in use, else any that answers, else a new one."""
    base: str | None = None
    """Base image of the trainer's Dockerfile: Debian or Ubuntu with Python 3.11 or newer. Default: the Dockerfile's."""
    torch: Annotated[Literal["cpu", "cuda"] | None, OnlyWith("image.builder", other_than="prebuilt")] = None
    """torch's build in the trainer's image: `cpu` is a fraction of the size of `cuda`, and trains on no accelerator.
    Default: cuda where the workers have accelerators, else cpu."""
    ref: Annotated[str | None, OnlyWith("image.builder", "prebuilt")] = None
    """The image, by digest (name@sha256:...)."""


class RendezvousConfig(Section):
    image: str | None = None
    """etcd 3.4.29, 3.5.11 or newer, by digest or tag. Default: the local node's, else the upstream image."""
    tls: bool = False
    """Mutual TLS with certificates of this stack, for clusters whose network plug-in does not enforce
    NetworkPolicies."""


class DatasetConfig(Section):
    name: Name = ""
    """Folder under /data/datasets on the shared volume. Default: the first input and a hash of all that determines the
    data, so that another text, tokenizer or task gets another folder."""
    input: Annotated[tuple[Annotated[str, AfterValidator(address)], ...], Free()] = Field(
        default=("sample",), min_length=1
    )
    """Text, or with task finetune conversations: files or folders on the shared volume; `sample`, Newton's Opticks,
    which the image carries; `hf:NAME` for a data set of the Hugging Face hub; https://, gs:// or s3:// addresses. The
    stack gets read access to the gs:// buckets named here with kind gke, to the s3:// buckets with kind eks."""
    tokenizer: str = ""
    """`gpt2`, a folder, a name on the Hugging Face hub, or `train:1024`: one of 1,024 tokens, trained on the text, for
    a small model from scratch. Default: that of `training.model.name`, else gpt2."""
    text_field: str = Field(default="text", min_length=1)
    """Field with the text in a record of JSON lines, Parquet or a data set of the hub."""
    documents: Literal["file", "lines", "blank-lines", "end-of-text"] = "file"
    """How a text file is split into documents: not at all, at each line, at blank lines, or at lines of
    <|endoftext|>."""
    validation_fraction: float = Field(default=0.05, ge=1e-6, lt=0.5)
    """Share of the text that is held out for the validation loss."""
    private_servers: Annotated[tuple[str, ...], AfterValidator(_private), NO_MATHEMATICS] = ()
    """Private addresses of servers that `input` names or redirects to, as 10.0.0.10 or 10.0.0.0/28: where policies are
    enforced, the dataset Job reaches no others."""
    timeout_minutes: Annotated[Minutes, NO_MATHEMATICS] = 60
    """How long the text may take to be fetched and tokenised: then the Job ends, and `pulumi up` says so. A core
    tokenises about 2 GB a minute; allow four times as long."""
    cpu: Annotated[Cores, NO_MATHEMATICS] = 0.5
    """CPU cores of the dataset Job, which runs a process for each."""
    memory_gib: Annotated[Gib, NO_MATHEMATICS] = 2.0
    """Memory of the dataset Job, GiB."""

    @property
    def reading(self) -> dict[str, str]:
        """The keys that say how to find text in the inputs, where they differ from the defaults."""
        given = {"text_field": self.text_field, "documents": self.documents}
        return {key: value for key, value in given.items() if value != DatasetConfig.model_fields[key].default}

    def buckets(self, scheme: str) -> list[str]:
        """The buckets that `input` names with SCHEME://BUCKET, sorted."""
        return sorted({text.split("/")[2] for text in self.input if text.startswith(f"{scheme}://")})


class JobConfig(Section):
    name: Name | None = None
    """Folder of the run under /data/runs. Default: the model and a hash of what changes the mathematics, so that the
    same training resumes and a different one starts afresh."""
    runtime: Literal["job", "trainjob"] = "job"
    """What runs the pods. `job`: a Kubernetes Job, on any cluster. `trainjob`: the same Job inside a TrainJob, for a
    cluster with Kubeflow Trainer v2; `workers.count` is then fixed while it trains."""
    max_hours: Hours = 168
    """End the Job after this time, whatever it has reached, to limit the bill. The next training of the same name
    resumes it. The default is a week: a training that only begins rounds, or that everybody forgot, ends then."""
    hold_minutes: Annotated[Annotated[float, Field(ge=0.1, le=25)] | None, OnlyWith("job.runtime", "job")] = 15
    """How long a training whose `workers.min` have not all found a node may keep those that it got. Then it lets them
    go and waits in the queue; null: it keeps them. At most 25: after 30 minutes its pods begin anew to wait."""


class TensorBoardConfig(Section):
    enabled: bool = True
    """Run TensorBoard beside the training, reached by port-forward."""


class CheckConfig(Section):
    enabled: bool = False
    """Before the training, run a Job on all workers that measures the exchange between them, lists their accelerators
    and writes to the shared volume; its result is the output `gpuCheck`. It interrupts a training that has the nodes;
    with kind existing, where it might evict the pods of others, it waits for that training's end."""
    megabytes: int = Field(default=256, ge=1, le=4096)
    """Size of the exchanged tensor, MB."""
    storage_megabytes: int = Field(default=1024, ge=1, le=1_048_576)
    """What the check writes to the shared volume, MB."""
    timeout_minutes: Minutes = 45
    """How long the check may take: nodes with accelerators take up to 15 minutes to start. Then the Job ends, and
    `pulumi up` says so."""


def _login(given: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+:[!-~]+", given.get_secret_value()):
        raise ValueError("not of the form USER:TOKEN, where TOKEN may read the registry")
    return given


def _token(given: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", given.get_secret_value()):
        raise ValueError("has a space, a line end or a letter outside ASCII in it, as no token has; give it alone")
    return given


Token = Annotated[SecretStr, AfterValidator(_token)]


class SecretsConfig(Section):
    """Set with `pulumi config set --secret --path secrets.KEY VALUE`."""

    hugging_face_token: Token | None = None
    """Token for the Hugging Face hub, for gated models and data sets."""
    wandb_api_key: Token | None = None
    """Key for Weights & Biases."""
    image_pull: Annotated[SecretStr, AfterValidator(_login)] | None = None
    """USER:TOKEN with which nodes pull from a private `image.registry`, or a private `image.ref`: a new package of
    ghcr.io is private. Not for `storage.serverImage`."""
