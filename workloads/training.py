"""The training: an elastic Indexed Job, and the headless Service that names its pods."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.config import DatasetConfig, StackConfig, TrainingConfig, WorkersConfig
from trainer.config.schema import arguments, changed
from workloads.custom_resources import CONTAINER as TRAINJOB_CONTAINER
from workloads.custom_resources import job_of, make_train_job, request_annotations, request_nodes
from workloads.dataset import Dataset
from workloads.elastic import FIELDS, identity, is_elastic, resize
from workloads.layout import dataset_folder, run_folder, weights_folder
from workloads.objects import TRAINING_PRIORITY, make_priority_class, make_service, metadata, select
from workloads.rendezvous import Rendezvous
from workloads.secrets import environment_of, fingerprint, make_compile_key
from workloads.training_job import SERVICE, job_spec, trainer_pod_spec
from workloads.workspace import Namespace, Workspace

#: Name of the pods' container, by job.runtime.
CONTAINERS = {"job": "train", "trainjob": TRAINJOB_CONTAINER}


class Training(pulumi.ComponentResource):
    """A training run of one or more elastic workers."""

    job_name: str
    run_name: str
    run_directory: str
    """Folder of the run in the pods: metrics, status, checkpoints, DONE."""
    told_name: pulumi.Input[str]
    """The Job's name, for the outputs of the stack."""

    def __init__(
        self,
        name: str,
        config: StackConfig,
        workspace: Workspace,
        dataset: Dataset,
        rendezvous: Rendezvous,
        tokens: k8s.core.v1.Secret | None = None,
        after: Sequence[pulumi.Resource] = (),
        built: Mapping[str, Any] | None = None,
    ):
        super().__init__("trainyard:workloads:Training", name, None, workspace.component())
        workers, job = config.workers, config.job
        cluster, namespace = workspace.cluster, workspace.namespace
        elastic = is_elastic(workers, cluster.workers, job.runtime)
        self.run_name = chosen_run(config, built or {})
        self.run_directory = run_folder(self.run_name)
        training = placed(config.training, dataset.directory, self.run_directory, cluster.workers.capability)
        settings = arguments(training)
        # The name tells trainings apart, so that Pulumi replaces the Job instead of changing one that has run.
        # Whatever is in the pods' template has to be in it: a new Job of the same name would meet the old one going.
        what = [
            workspace.image.version,
            settings,
            identity(workers, cluster.workers, elastic),
            job.max_hours,
            fingerprint(config.secrets),
            rendezvous.backend,
            rendezvous.client is not None,
        ]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
        name_of_job = f"train-{self.run_name[:40]}-{digest}"
        if job.runtime == "trainjob":
            # Its controller appends to the name what tells Jobs and pods apart.
            name_of_job = f"train-{self.run_name[:26]}-{digest}"
        self.job_name = job_of(name_of_job) if job.runtime == "trainjob" else name_of_job
        # Names for the pods: <job>-<index>.trainer.<namespace>.svc.
        make_service(SERVICE, "trainer", metadata("trainer", namespace.name, SERVICE), None, workspace.owned(self))
        container, opts = CONTAINERS[job.runtime], workspace.owned(self)
        pod = trainer_pod_spec(
            container,
            settings,
            workers,
            elastic,
            workspace,
            rendezvous,
            secrets=environment_of(tokens, make_compile_key(namespace, opts) if workers.gpus else None),
            priority=make_priority_class("training", TRAINING_PRIORITY, cluster, namespace.name, self),
        )
        pods = workers.count + workers.spares
        # A request that was granted is used up: each Job has its own. It is made when the text is there, or nodes that
        # come earlier are paid for idle, and go.
        ready = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[dataset.job, rendezvous]))
        requested = request_nodes(name_of_job, cluster.workers, pods, pod, namespace.name, ready)
        queue = request_annotations(name_of_job, cluster.workers)
        spec = job_spec(workers, container, pod, job.max_hours, queue)
        # Never two that train in the same folder; and the text has to be there.
        opts = pulumi.ResourceOptions(
            parent=self,
            # Not with its namespace: Kubernetes deletes a namespace's pods first (since 1.33), and a Job with a limit
            # per index keeps the finalizer of a pod until it has made the next one, which a namespace that ends
            # forbids. Neither would ever go.
            deleted_with=cluster.resource,
            delete_before_replace=True,
            depends_on=[dataset.job, rendezvous, *requested, *after],
            ignore_changes=[f"spec.{field}" for field in FIELDS] if elastic else None,
        )
        if job.runtime == "trainjob":
            made = make_train_job(name, name_of_job, pods, spec, namespace.name, opts)
        else:
            made = self._job(name, spec, workers, namespace, elastic, opts)
        if workers.min < workers.count:
            self._budget(namespace, workers.min)

        def told(text: str) -> pulumi.Input[str]:
            """Where an `up` ends before, the former Job trains on, and the outputs that tell of it stay; a first `up`
            has none that could, and uploads need them."""
            return made.urn.apply(lambda _: text) if built else text

        self.told_name = told(self.job_name)
        self.register_outputs({"jobName": self.told_name, "runDirectory": told(self.run_directory)})

    def _job(
        self,
        name: str,
        spec: k8s.batch.v1.JobSpecArgs,
        workers: WorkersConfig,
        namespace: Namespace,
        elastic: bool,
        opts: pulumi.ResourceOptions,
    ) -> pulumi.Resource:
        job = k8s.batch.v1.Job(
            name,
            metadata=metadata(
                "trainer",
                namespace.name,
                self.job_name,
                # Pulumi would wait for the end of the training, ten minutes at most. No pulumi.com/replaceUnready: a
                # Job that runs is not ready either, and each `pulumi up` would begin the training anew. The end of its
                # deletion is not waited for either, so it has to be gone at once: its next one has the same name.
                {"pulumi.com/skipAwait": "true", "pulumi.com/deletionPropagationPolicy": "background"},
            ),
            spec=spec,
            opts=opts,
        )
        if elastic:
            resize(f"{name}-size", job, workers, namespace)
        return job

    def _budget(self, namespace: Namespace, least: int) -> None:
        """Whoever drains several nodes at once leaves as many workers as a round needs.

        Only where some can be spared: a budget that allows no eviction would hold up the upgrade of nodes.
        """
        k8s.policy.v1.PodDisruptionBudget(
            SERVICE,
            metadata=metadata("trainer", namespace.name, SERVICE),
            # A number, not a share: a Job has no scale that a share could be taken of.
            spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(min_available=least, selector=select("trainer")),
            opts=pulumi.ResourceOptions(parent=self, deleted_with=namespace.lifetime),
        )


#: Settings that change speed or output, not the mathematics: what does not fit the memory goes on in its folder with a
#: smaller micro-batch. A DeepSpeed file is none of them: it may hold the optimizer and its schedule.
NO_MATHEMATICS = (
    *("evaluation.", "checkpoint.", "metrics.", "data.", "engine.name", "engine.zero_stage"),
    *("micro_batch", "compile", "require_capability", "run.collective_timeout_seconds"),
)


def run_name(training: TrainingConfig, dataset: DatasetConfig, former: str = "") -> str:
    """The model and a hash of all that changes the mathematics.

    The same training, started again or on other machines, resumes in its folder; a different one gets a new folder.
    `former`, the name that a living stack has, stays where an earlier program gave it to this very training.
    """
    mathematics = [text for text in arguments(training) if not text.startswith(NO_MATHEMATICS)]
    text = dataset.model_dump(exclude={"timeout_minutes", "cpu", "memory_gib"})
    # Keys that came later count where they are set, or each new one would begin all runs again. For a day, from
    # 2026-11-23 (2e3d549), the first two of them counted at their defaults, too.
    first = dataset.model_dump(include={"name", "input", "tokenizer", "validation_fraction"})
    given = {key: value for key, value in text.items() if value != DatasetConfig.model_fields[key].default}
    model = training.model
    what = model.size or re.sub("[^a-z0-9]+", "-", Path(model.name or model.config).name.lower()).strip("-")[:30]
    spelled = [json.dumps([mathematics, each], sort_keys=True) for each in (first | given, text)]
    names = [f"{what}-{hashlib.sha256(each.encode()).hexdigest()[:8]}" for each in spelled]
    return former if former in names else names[0]


def chosen_run(config: StackConfig, built: Mapping[str, Any]) -> str:
    """The run of a stack that lives as `built` says."""
    former = PurePosixPath(built.get("folder of the run") or "").name
    return config.job.name or run_name(config.training, config.dataset, former)


def new_folders(config: StackConfig, built: Mapping[str, Any]) -> Iterator[str]:
    """One line for each folder of a living stack that this configuration, or a newer program, leaves for another."""
    keys = (
        ("run", "job.name", run_folder(chosen_run(config, built))),
        ("dataset", "dataset.name", dataset_folder(config.dataset.name)),
    )
    for what, key, folder in keys:
        former = built.get(f"folder of the {what}")
        if former and former != folder:
            name = PurePosixPath(former).name
            then = "continues it" if what == "run" else "keeps it, if inputs and tokenizer are the same"
            yield f"a new {what} begins in {folder}; the former one stays in {former}, and {key}: {name} {then}"


def tell_new_folders(config: StackConfig, built: Mapping[str, Any]) -> None:
    """Nothing is lost with another folder, but hours of work are done again."""
    for line in new_folders(config, built):
        pulumi.warn(line)


def placed(
    training: TrainingConfig, dataset_directory: str, run_directory: str, capability: str | None
) -> TrainingConfig:
    """The training with its folders on the shared volume; `capability` is a processor flag of every node."""
    changes: dict[str, str] = {"run.directory": run_directory}
    if training.task == "question_answering":
        for split in ("train", "validation"):
            changes[f"question_answering.{split}"] = f"{dataset_directory}/{split}.json"
    else:
        changes["data.directory"] = dataset_directory
    named = {"model.name": training.model.name, "distillation.teacher": training.distillation.teacher}
    changes |= {key: weights_folder(name) for key, name in named.items() if name}
    if capability and not training.require_capability:
        changes["require_capability"] = capability
    return changed(training, changes)
