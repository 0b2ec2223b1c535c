"""An existing cluster: whatever a kubeconfig's context reaches (kind, k3d, minikube, the local node, any cloud).

The stack neither creates nor destroys the cluster. The local node's kubeconfig names its registry, storage directory
and base images in an extension (name `trainyard`), so that no stack file holds an address or a path of one machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi_kubernetes as k8s
import yaml

from infra.api_client import kubeconfig_text
from infra.buildx import is_docker_hub, is_loopback
from infra.cluster import ETCD_IMAGE, NVIDIA_GPU, Cluster, Registry, SharedStorage, WorkerPool, static_volume
from infra.config import ConfigError, StackConfig
from infra.image import compression
from infra.sections import DATA, TAINT, ExistingStorage, ImageConfig, StorageConfig
from trainer.config.addresses import on_volume
from trainer.config.values import Plain, read_yaml


@dataclass(frozen=True)
class Offer:
    """What a local cluster says of itself in its kubeconfig; all empty for any other cluster."""

    registry: str | None = None
    registryInsecure: bool = False
    registryAuth: str | None = None
    builder: str | None = None
    storagePath: str | None = None
    baseImage: str | None = None
    etcdImage: str | None = None

    def account_for(self, registry: str | None) -> str | None:
        """The file with the account of a registry, if it is the one that is offered."""
        return self.registryAuth if registry == self.registry else None


def existing_cluster(config: StackConfig, stack: str) -> Cluster:
    """The cluster behind `cluster.context`.

    Raises:
        ConfigError: when no kubeconfig has the context, or when the registry is neither configured nor offered.
    """
    cluster = config.cluster
    assert cluster.context is not None, "infra.rules lets no existing cluster without a context through"
    kubeconfig, offer = find_context(cluster.context, cluster.kubeconfig, stack)
    image, storage = _together(stack, lambda: image_settings(config, stack), lambda: _storage(config, offer, stack))
    if missing := _missing_inputs(config, storage.local_folder):
        raise ConfigError(stack, missing)
    registry = image.registry
    assert image.builder is not None
    runnable = {"kubernetes.io/os": "linux"}
    if image.builder == "buildkit":  # the others' architecture is not known (infra/image.py)
        runnable["kubernetes.io/arch"] = "amd64"
    provider = k8s.Provider(
        "cluster",
        context=cluster.context,
        # The one file that has the context: $KUBECONFIG may be a list of files, which the provider does not take.
        kubeconfig=str(kubeconfig),
        # A plain string, known at preview: an unknown one would show every object as replaced.
        cluster_identifier=cluster.context,
        enable_server_side_apply=True,
    )
    return Cluster(
        name=cluster.context,
        context=cluster.context,
        provider=provider,
        workers=_workers(config, runnable),
        storage=storage,
        registry=Registry(
            address=registry,
            insecure=image.insecure,
            compression=compression("existing"),
            authfile=offer.account_for(registry),
        )
        if registry
        else None,
        builder=image.builder,
        buildx=image.buildx,
        base_image=image.base or offer.baseImage,
        etcd_image=config.rendezvous.image or offer.etcdImage or ETCD_IMAGE,
        node_selector=runnable,
        # A node that offers a folder is this machine.
        shared=offer.storagePath is None,
    )


def _together(stack: str, *asked: Callable[[], Any]) -> list[Any]:
    """What the functions return. Raises ConfigError with the problems of all of them."""
    found, problems = [], []
    for each in asked:
        try:
            found.append(each())
        except ConfigError as error:
            problems += error.lines
    if problems:
        raise ConfigError(stack, problems)
    return found


def _missing_inputs(config: StackConfig, folder: str | None) -> list[str]:
    """Inputs that are not on a volume which this machine sees, before their Job finds out.

    A stack whose volume is new has to come up before anything can be uploaded; a dataset that is complete is not read
    again.
    """
    datasets = Path(folder or "/nowhere", "datasets")
    if not datasets.is_dir() or (datasets / config.dataset.name / "index.json").exists():
        return []
    places = {
        f"dataset.input.{at}": on_volume(text, DATA)
        for at, text in enumerate(config.dataset.input)
        if config.training.task != "question_answering"
    }
    return [
        f"{key}: {place} is not there; `trainyard upload {Path(place).name}` brings yours to the shared volume"
        for key, place in places.items()
        if place.startswith(f"{DATA}/")
        and not re.search(r"[*?[]", place)
        and not Path(datasets.parent, place.removeprefix(f"{DATA}/")).exists()
    ]


def image_settings(config: StackConfig, stack: str) -> ImageConfig:
    """`image`, completed by what the cluster offers: builder, registry, and whether the registry speaks plain HTTP.

    Raises:
        ConfigError: the registry is neither configured nor offered, or no builder would reach it.
    """
    image, context = config.image, config.cluster.context or ""
    _, offer = find_context(context, config.cluster.kubeconfig, stack)
    builder = image.builder or offer.builder or "buildkit"
    registry = image.registry or offer.registry
    if builder != "prebuilt" and not registry:
        raise ConfigError(
            stack,
            [
                f"image.registry: missing, and context '{context}' offers none; set a registry that this "
                "machine pushes to and the cluster pulls from: `pulumi config set --path image.registry ghcr.io/YOU`"
            ],
        )
    if registry and is_docker_hub(registry) and not re.fullmatch(r"[^/]+/[^/]+", registry):
        raise ConfigError(
            stack, [f"image.registry: '{registry}' names no account of Docker Hub's; allowed: docker.io/ACCOUNT"]
        )
    if builder == "buildkit" and registry and is_loopback(registry) and not image.buildx:
        raise ConfigError(
            stack,
            [
                f"image.registry: '{registry}' is this machine's, which a builder in a container does not reach; "
                f"`trainyard local use {context} --registry {registry}` makes one that does, or name yours in "
                "image.buildx"
            ],
        )
    # Loopback registries speak plain HTTP by convention; the local node says so itself.
    plain = image.insecure or is_loopback(registry or "") or (registry == offer.registry and offer.registryInsecure)
    return image.model_copy(update={"builder": builder, "registry": registry, "insecure": plain})


def _workers(config: StackConfig, runnable: dict[str, str]) -> WorkerPool:
    """The nodes that `workers` names, else any that can run the image; GPU nodes carry NVIDIA's taint by custom."""
    workers = config.workers
    custom = [f"{NVIDIA_GPU}:NoSchedule"] if workers.gpus else []
    return WorkerPool(
        node_selector=runnable | workers.node_selector,
        accelerators=workers.gpus,
        tolerations=tuple(_toleration(taint) for taint in (*custom, *workers.tolerations)),
    )


def _toleration(taint: str) -> k8s.core.v1.TolerationArgs:
    """A toleration of `taint`, written as for kubectl; without a value or an effect it matches any."""
    parts = TAINT.fullmatch(taint)
    assert parts is not None, "infra.sections lets no other through"
    operator = "Exists" if parts["value"] is None else "Equal"
    return k8s.core.v1.TolerationArgs(key=parts["key"], operator=operator, value=parts["value"], effect=parts["effect"])


def _storage(config: StackConfig, offer: Offer, stack: str) -> SharedStorage:
    storage = config.section(ExistingStorage)
    path = storage.path or offer.storagePath
    if in_folder(storage, offer):
        if not path:
            raise ConfigError(stack, ["storage.path: missing; hostPath needs the absolute directory on the node"])
        host_path = k8s.core.v1.HostPathVolumeSourceArgs(path=path, type="Directory")
        # A node that offers a folder is this machine, so it sees whichever folder is used.
        return static_volume(storage.size_gib, host_path=host_path, local_folder=path if offer.storagePath else None)
    if config.workers.gpus and not (storage.access_mode or storage.class_name):
        raise ConfigError(
            stack,
            [
                "storage.className: missing; the default class is mostly a disk of one node, where all pods with GPUs "
                "would have to be; name a class that nodes share (and storage.kind: storageClass), or where one node "
                "has all the GPUs give storage.accessMode: ReadWriteOnce and the node in workers.nodeSelector"
            ],
        )
    access_mode = storage.access_mode or ("ReadWriteMany" if storage.class_name else "ReadWriteOnce")
    return SharedStorage(size_gib=storage.size_gib, access_mode=access_mode, class_name=storage.class_name)


def in_folder(storage: StorageConfig, offer: Offer) -> bool:
    """Whether the shared volume is a directory of the node, not a StorageClass's volume."""
    return storage.kind == "hostPath" or (storage.kind is None and offer.storagePath is not None)


def find_context(context: str, kubeconfig: str | None, stack: str) -> tuple[Path, Offer]:
    """The file that has the context, and what its cluster offers. Raises ConfigError."""
    files = kubeconfig_files(kubeconfig)
    known: list[str] = []
    for file in files:
        content = _load(file, stack)
        clusters = {entry["name"]: entry.get("cluster") or {} for entry in content["clusters"]}
        for entry in content["contexts"]:
            known.append(entry["name"])
            if entry["name"] == context:
                try:
                    return file, _offer(clusters.get((entry.get("context") or {}).get("cluster"), {}))
                except (AttributeError, TypeError, KeyError) as error:  # text or a number where an object is
                    raise _no_kubeconfig(
                        file, f"context {context} or its cluster has another form ({error})", stack
                    ) from None
    allowed = f"known contexts: {', '.join(known)}" if known else "no context is known"
    searched = ", ".join(map(str, files))
    raise ConfigError(
        stack,
        [
            f"cluster.context: '{context}' is not in {searched}; {allowed}; "
            "`trainyard local up` starts a cluster on this machine as trainyard-local"
        ],
    )


def _load(file: Path, stack: str) -> dict[str, list[dict[str, Any]]]:
    """The named entries of a kubeconfig. Raises ConfigError."""
    try:
        content = read_yaml(kubeconfig_text(file), Plain) or {}
    except FileNotFoundError:
        content = {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(stack, [f"cluster.kubeconfig: cannot read {file}: {reason}"]) from error
    found: dict[str, list[dict[str, Any]]] = {}
    for name in ("clusters", "contexts"):
        entries = (content.get(name) or []) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(
            isinstance(each, dict) and isinstance(each.get("name"), str) for each in entries
        ):
            raise _no_kubeconfig(file, "its clusters and contexts are no lists of named entries", stack)
        found[name] = entries
    return found


def _no_kubeconfig(file: Path, why: str, stack: str) -> ConfigError:
    advice = "`kubectl config view` shows what kubectl reads"
    return ConfigError(stack, [f"cluster.kubeconfig: {file} is not a kubeconfig: {why}; {advice}"])


def _offer(cluster: Mapping[str, Any]) -> Offer:
    for extension in cluster.get("extensions") or []:
        if extension.get("name") == "trainyard":
            return Offer(**extension["extension"])
    return Offer()


def kubeconfig_files(kubeconfig: str | None) -> list[Path]:
    """The kubeconfig files that kubectl would read, in its order."""
    if kubeconfig:
        return [Path(kubeconfig)]
    if value := os.environ.get("KUBECONFIG"):
        return [Path(part).expanduser() for part in value.split(os.pathsep) if part]
    return [Path.home() / ".kube" / "config"]
