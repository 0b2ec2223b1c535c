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
from infra.existing import find_context
from trainer.config.schema import arguments, changed
from workloads.custom_resources import CONTAINER as TRAINJOB_CONTAINER
from workloads.custom_resources import job_of, make_train_job, request_annotations, request_nodes
from workloads.dataset import Dataset
from workloads.elastic import FIELDS, identity, is_elastic, resize
from workloads.layout import dataset_folder, run_folder, weights_folder
from workloads.objects import GONE_AT_ONCE, TRAINING_PRIORITY, make_priority_class, make_service, metadata, select
from workloads.rendezvous import Rendezvous
from workloads.scheduling import warn_of_waiting
from workloads.secrets import WANDB, Tokens, environment_of, fingerprint, make_compile_key, uses_wandb
from workloads.training_job import SERVICE, job_spec, trainer_pod_spec
from workloads.workspace import Namespace, Workspace

#: Name of the pods' container, by job.runtime.
CONTAINERS = {"job": "train", "trainjob": TRAINJOB_CONTAINER}
#: What a stack says when it leaves a folder.
LEFT = {
    "run": "the run starts anew in {new}; to continue the one in {former}, set job.name: {name}",
    "dataset": "the dataset is prepared anew in {new}; to keep the one in {former}, with the same inputs and "
    "tokenizer, set dataset.name: {name}",
}


class Training(pulumi.ComponentResource):
    """A training run of one or more elastic workers."""

    job_name: str
    run_name: str
    run_directory: str
    """Folder of the run in the pods: metrics, status, checkpoints, DONE."""
    told_name: pulumi.Input[str]
    """The Job's name, for the outputs of the stack."""
    made: pulumi.Resource
    """What is made last: the Job at the size that is configured now."""

    def __init__(
        self,
        name: str,
        config: StackConfig,
        workspace: Workspace,
        dataset: Dataset,
        rendezvous: Rendezvous,
        tokens: Tokens,
        after: Sequence[pulumi.Resource] = (),
        built: Mapping[str, Any] | None = None,
    ):
        super().__init__("trainyard:workloads:Training", name, None, workspace.component())
        workers, job = config.workers, config.job
        cluster, namespace = workspace.cluster, workspace.namespace
        elastic = is_elastic(workers, cluster.workers, job.runtime)
        self.run_name = chosen_run(config)
        self.run_directory = run_folder(self.run_name)
        training = placed(config.training, dataset.directory, self.run_directory, cluster.workers.capability)
        settings = arguments(training)
        # The name tells trainings apart, so that Pulumi replaces the Job instead of changing one that has run.
        # The hash covers everything in the pod template: a changed Job must not reuse the name of one being deleted.
        what = [
            workspace.image.version,
            settings,
            identity(workers, cluster.workers, elastic),
            job.max_hours,
            fingerprint(config),
            rendezvous.client is not None,
        ]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
        name_of_job = f"train-{self.run_name[:40]}-{digest}"
        if job.runtime == "trainjob":
            # Shorter: the controllers append to it to name Jobs and pods.
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
            tokens=tokens.environment(WANDB) if uses_wandb(config.training) else [],
            secrets=environment_of(make_compile_key(namespace, opts) if workers.gpus else None),
            priority=make_priority_class("training", TRAINING_PRIORITY, cluster, namespace.name, self),
        )
        pods = workers.count + workers.spares
        # Each Job has its own request: a granted one is used up. It waits for the dataset Job: nodes that come earlier
        # would be billed while idle, and then removed.
        ready = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[dataset.job, rendezvous]))
        requested = request_nodes(name_of_job, cluster.workers, pods, pod, namespace.name, ready)
        queue = request_annotations(name_of_job, cluster.workers)
        spec = job_spec(workers, container, pod, job.max_hours, queue)
        # Delete the old Job first: two trainings must not share a run folder. Start after the dataset Job.
        opts = pulumi.ResourceOptions(
            parent=self,
            # Not with its namespace: Kubernetes deletes a namespace's pods first (since 1.33). A Job with a backoff
            # limit per index keeps a pod's finalizer until it has made the next pod, which a terminating namespace
            # forbids: neither would ever go.
            deleted_with=cluster.resource,
            delete_before_replace=True,
            depends_on=[dataset.job, rendezvous, *requested, *after],
            ignore_changes=[f"spec.{field}" for field in FIELDS] if elastic else None,
        )
        if job.runtime == "trainjob":
            made = self.made = make_train_job(name, name_of_job, pods, spec, namespace.name, opts)
        else:
            made, self.made = self._job(name, spec, workers, namespace, elastic, opts)
        if workers.min < workers.count:
            self._budget(namespace, workers.min)

        def told(text: str) -> pulumi.Input[str]:
            """Hold an output of a living stack back until the Job is made.

            If `up` fails before, the former Job trains on and its outputs stay. A first `up` has no former Job, and
            uploads need the outputs.
            """
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
    ) -> tuple[pulumi.Resource, pulumi.Resource]:
        """The Job, and what gives it its size."""
        job = k8s.batch.v1.Job(
            name,
            metadata=metadata(
                "trainer",
                namespace.name,
                self.job_name,
                # Pulumi would wait ten minutes at most for the end of the training. No pulumi.com/replaceUnready: a
                # running Job is not ready either, so each `pulumi up` would restart the training.
                GONE_AT_ONCE,
            ),
            spec=spec,
            opts=opts,
        )
        return job, resize(f"{name}-size", job, workers, namespace) if elastic else job

    def warn_of_waiting(self, config: StackConfig, stack: str) -> None:
        """End an `up` with what waits for a node, on a cluster whose nodes are given."""
        if context := config.cluster.context:
            file, _ = find_context(context, config.cluster.kubeconfig, stack)
            warn_of_waiting(str(file), context, config.cluster.namespace, self.job_name, self.made.urn)

    def _budget(self, namespace: Namespace, least: int) -> None:
        """Keep as many workers as a round needs when several nodes are drained at once.

        Only where some can be spared: a budget that allows no eviction would block node upgrades.
        """
        k8s.policy.v1.PodDisruptionBudget(
            SERVICE,
            metadata=metadata("trainer", namespace.name, SERVICE),
            # A number, not a percentage: a Job has no scale to take a percentage of.
            spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(min_available=least, selector=select("trainer")),
            opts=pulumi.ResourceOptions(parent=self, deleted_with=namespace.lifetime),
        )


#: Settings that change speed or output, not the mathematics: a run that ran out of memory continues in its folder with
#: a smaller micro-batch. A DeepSpeed file is not among them: it may hold the optimizer and its schedule.
NO_MATHEMATICS = (
    *("evaluation.", "checkpoint.", "metrics.", "data.", "engine.name", "engine.zero_stage"),
    *("micro_batch", "compile", "require_capability", "run.collective_timeout_seconds"),
)


def run_name(training: TrainingConfig, dataset: DatasetConfig) -> str:
    """The model's name and a hash of all that changes the mathematics.

    The same training, started again or on other machines, resumes in its folder; a different one gets a new folder.
    """
    mathematics = [text for text in arguments(training) if not text.startswith(NO_MATHEMATICS)]
    text = dataset.model_dump(include={"name", "input", "tokenizer", "validation_fraction"}) | dataset.reading
    model = training.model
    what = model.size or re.sub("[^a-z0-9]+", "-", Path(model.name or model.config).name.lower()).strip("-")[:30]
    spelled = json.dumps([mathematics, text], sort_keys=True)
    return f"{what}-{hashlib.sha256(spelled.encode()).hexdigest()[:8]}"


def chosen_run(config: StackConfig) -> str:
    """Name of a stack's run."""
    return config.job.name or run_name(config.training, config.dataset)


def new_folders(config: StackConfig, built: Mapping[str, Any]) -> Iterator[str]:
    """One line for each folder of a living stack that this configuration, or a newer program, would leave."""
    folders = {"run": run_folder(chosen_run(config)), "dataset": dataset_folder(config.dataset.name)}
    for what, folder in folders.items():
        former = built.get(f"folder of the {what}")
        if former and former != folder:
            yield LEFT[what].format(new=folder, former=former, name=PurePosixPath(former).name)


def tell_new_folders(config: StackConfig, built: Mapping[str, Any]) -> None:
    """Warn of new folders: nothing is lost, but hours of work are repeated."""
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
