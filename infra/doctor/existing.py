"""Checks that an existing cluster has what a stack needs: version, rights, nodes, and a StorageClass."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from infra.cluster import NVIDIA_GPU
from infra.config import ConfigError, StackConfig
from infra.doctor import images, prerequisites
from infra.existing import find_context, in_folder
from infra.facts import load
from infra.finding import Finding, NoAnswer, ok, problem, unchecked, warning
from infra.sections import ExistingStorage

#: successPolicy of the training Job is on by default from 1.31.
OLDEST_KUBERNETES = (1, 31)
#: Platform that the image is built for (infra/image.py).
PLATFORM = "linux/amd64"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"

#: Asks the cluster with kubectl; None: no answer, or no right to one.
Ask = Callable[..., str | None]


def checks(config: StackConfig, stack: str) -> Iterator[Finding]:
    yield from cluster(config, stack)
    yield from images.of_existing(config, stack)


def cluster(config: StackConfig, stack: str) -> Iterator[Finding]:
    """Check the context, and the cluster behind it."""
    name = config.cluster.context or ""
    if not shutil.which("kubectl"):
        install = "trainyard local up   # or: https://kubernetes.io/docs/tasks/tools/#kubectl"
        yield unchecked("cluster", f"context {name}: kubectl is not on PATH", install)
        return
    arguments = ["--kubeconfig", config.cluster.kubeconfig] if config.cluster.kubeconfig else []
    try:
        _, offer = find_context(name, config.cluster.kubeconfig, stack)
    except ConfigError as error:
        yield from error.problems
        return
    kubectl = ("kubectl", *arguments, "--context", name, "--request-timeout", "10s")
    try:
        version = prerequisites.ask(*kubectl, "get", "--raw", "/version")
    except NoAnswer as reason:
        silent = f"the API server behind {name} does not answer ({reason})"
        yield problem("cluster", silent, f"kubectl --context {name} cluster-info")
        return
    ask = partial(prerequisites.run, *kubectl)
    folder = in_folder(config.storage, offer)
    yield _version(name, version)
    yield _rights(name, ask, folder)
    if not (config.rendezvous.tls or offer.storagePath):  # the node of this machine has its owner's pods alone
        yield from _policies(ask, version)
    yield from _nodes(config, ask)
    if not folder:
        yield _storage_class(config.section(ExistingStorage).class_name, ask)


def _version(name: str, answer: str) -> Finding:
    found = re.search(r'"gitVersion":\s*"(v(\d+)\.(\d+)[^"]*)"', answer)
    if not found:
        return unchecked("cluster", f"{name} answers, but does not say its version")
    if (int(found[2]), int(found[3])) < OLDEST_KUBERNETES:
        needed = ".".join(map(str, OLDEST_KUBERNETES))
        return problem("cluster", f"{name} has Kubernetes {found[1]}; needs {needed} or newer", "upgrade the cluster")
    return ok("cluster", f"{name} answers, Kubernetes {found[1]}")


def _rights(name: str, ask: Ask, folder: bool) -> Finding:
    """Check the rights to objects outside of namespaces; a cluster that grants these grants the rest."""
    needed = ["namespaces", "priorityclasses.scheduling.k8s.io", *(["persistentvolumes"] if folder else [])]
    missing = [kind for kind in needed if ask("auth", "can-i", "create", kind) != "yes"]
    if missing:
        return problem(
            "rights",
            f"you may not create {', '.join(missing)} in {name}; its administrator can grant it",
            f"kubectl --context {name} auth can-i create {missing[0]}",
        )
    return ok("rights", f"you may create {', '.join(needed)}")


def _policies(ask: Ask, version: str) -> Iterator[Finding]:
    """Warn where any pod of the cluster may reach the rendezvous, and end the training."""
    facts = load(Path(__file__).with_name("policies.yaml"))
    listed = ask("get", "daemonsets", "--all-namespaces", "--output", "name")
    names = [line.rpartition("/")[2] for line in (listed or "").split()]
    known = any(name.startswith(tuple(facts["enforcers"])) for name in names)
    if listed is not None and not known and not any(mark in version for mark in facts["inside"]):
        yield warning(
            "rendezvous",
            "rendezvous.tls is off, and no network plug-in is seen here that enforces NetworkPolicies: any pod of the "
            "cluster may reach the rendezvous and end the training",
            "pulumi config set --path rendezvous.tls true",
        )


def _nodes(config: StackConfig, ask: Ask) -> Iterator[Finding]:
    gpus = config.workers.gpus
    listed = ask("get", "nodes", "--output", "json")
    if listed is None:
        yield unchecked("nodes", "you may not list them; they must include amd64 Linux")
        return
    all_status = [node["status"] for node in json.loads(listed)["items"]]
    platforms = ["{operatingSystem}/{architecture}".format_map(status["nodeInfo"]) for status in all_status]
    able = [status for status, platform in zip(all_status, platforms, strict=True) if platform == PLATFORM]
    there = ", ".join(f"{count} {platform}" for platform, count in Counter(platforms).items())
    if not there:
        yield warning("nodes", f"there are none; the pods wait until an autoscaler adds some of {PLATFORM}")
    elif not able:
        yield problem(
            "nodes", f"the image is built for {PLATFORM}; there are: {there}", f"add nodes of {PLATFORM} to the cluster"
        )
    else:
        yield ok("nodes", there)
    most = max((int(status["allocatable"].get(NVIDIA_GPU, 0)) for status in able), default=0)
    if most < gpus:
        yield warning(
            "accelerators",
            f"workers.gpus is {gpus}, and no node offers more than {most} {NVIDIA_GPU}; the workers wait until "
            "an autoscaler adds a node with more, or NVIDIA's device plugin announces them",
            "kubectl describe nodes   # Allocatable",
        )


def _storage_class(wanted: str | None, ask: Ask) -> Finding:
    """Check the class that makes the shared volume: a claim without one stays Pending."""
    listed = ask("get", "storageclasses", "--output", "json")
    if listed is None:
        return unchecked("storage", "you may not list StorageClasses")
    classes = {entry["metadata"]["name"]: entry for entry in json.loads(listed)["items"]}
    notes = {name: entry["metadata"].get("annotations") or {} for name, entry in classes.items()}
    default = [name for name in classes if notes[name].get(DEFAULT_CLASS) == "true"]
    chosen = [name for name in classes if name == wanted] if wanted else default
    if not chosen:
        return problem(
            "storage",
            f"{f'no StorageClass {wanted}' if wanted else 'no StorageClass is the default'}; "
            f"there are: {', '.join(classes) or 'none'}",
            "pulumi config set --path storage.kind storageClass && pulumi config set --path storage.className NAME",
        )
    # Of several defaults Kubernetes takes the newest.
    name = max(chosen, key=lambda each: classes[each]["metadata"].get("creationTimestamp", ""))
    kept = classes[name].get("reclaimPolicy", "Delete") == "Retain"
    return ok("storage", f"StorageClass {name}; `pulumi destroy` {'keeps' if kept else 'erases'} the data")
