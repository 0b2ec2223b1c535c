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

from infra.changes import ASKED, digest_of
from infra.config import DatasetConfig, StackConfig, TrainingConfig
from infra.existing import find_context
from infra.stackfiles import object_name
from trainer.config.schema import changed, mathematics, resolved
from workloads.custom_resources import CONTAINER as TRAINJOB_CONTAINER
from workloads.custom_resources import job_of, make_train_job, request_annotations, request_nodes
from workloads.dataset import Dataset
from workloads.elastic import FIELDS, identity, is_elastic, resize
from workloads.layout import dataset_folder, run_folder, weights_folder
from workloads.objects import (
    GONE_AT_ONCE,
    TRAINING_PRIORITY,
    labels,
    make_priority_class,
    make_service,
    make_training_priority,
    metadata,
    select,
    training_class,
)
from workloads.rendezvous import Rendezvous
from workloads.scheduling import warn_of_waiting
from workloads.secrets import WANDB, Tokens, fingerprint, uses_wandb
from workloads.training_job import CONFIGURATION, job_spec, service_name, trainer_pod_spec
from workloads.workspace import Workspace

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
    config: StackConfig
    """The stack with this training alone."""

    def __init__(
        self,
        config: StackConfig,
        workspace: Workspace,
        dataset: Dataset,
        rendezvous: Rendezvous,
        tokens: Tokens,
        after: Sequence[pulumi.Resource] = (),
        built: Mapping[str, Any] | None = None,
    ):
        of = f"-{object_name(config.training_name)}" if config.training_name else ""
        super().__init__("trainyard:workloads:Training", f"training{of}", None, workspace.component())
        self.config, workers, job = config, config.workers, config.job
        self.workspace, cluster, namespace = workspace, workspace.cluster, workspace.namespace
        elastic = is_elastic(workers, cluster.workers, job.runtime)
        self.run_name = chosen_run(config)
        self.run_directory = run_folder(self.run_name)
        training = placed(config.training, dataset.directory, self.run_directory, cluster.workers.capability)
        text = resolved(training)
        # The name tells trainings apart, so that Pulumi replaces the Job instead of changing one that has run.
        # The hash covers everything in the pod template: a changed Job must not reuse the name of one being deleted.
        what = [
            workspace.image.version,
            text,
            identity(workers, cluster.workers, elastic),
            job.max_hours,
            fingerprint(config),
            rendezvous.client is not None,
        ]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
        # Shorter for a TrainJob: the controllers append to it to name Jobs and pods.
        readable = object_name(self.run_name)[: 26 if job.runtime == "trainjob" else 40]
        name_of_job = f"train-{readable}-{digest}"
        self.job_name = job_of(name_of_job) if job.runtime == "trainjob" else name_of_job
        container, opts = CONTAINERS[job.runtime], workspace.owned(self)
        # Names for the pods: <job>-<index>.<service>.<namespace>.svc.
        service = service_name(config)
        make_service(service, "trainer", self._described(service), None, opts, config.training_name)
        priority, urgency = self._priority()
        configuration = make_configuration(
            f"training{of}-config", name_of_job, text, namespace.name, config.training_name, opts
        )
        pod = trainer_pod_spec(
            container,
            name_of_job,
            config,
            elastic,
            workspace,
            rendezvous,
            tokens=tokens.environment(WANDB) if uses_wandb(config.training) else [],
            priority=priority,
        )
        pods = workers.count + workers.spares
        # Each Job has its own request: a granted one is used up. It waits for the dataset Job: nodes that come earlier
        # would be billed while idle, and then removed.
        ready = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[dataset.job, rendezvous]))
        requested = request_nodes(f"nodes-wanted{of}", name_of_job, cluster.workers, pods, pod, namespace.name, ready)
        queue = request_annotations(name_of_job, cluster.workers)
        spec = job_spec(config, container, pod, queue)
        # Delete the old Job first: two trainings must not share a run folder. Start after the dataset Job.
        opts = pulumi.ResourceOptions(
            parent=self,
            # Not with its namespace: Kubernetes deletes a namespace's pods first (since 1.33). A Job with a backoff
            # limit per index keeps a pod's finalizer until it has made the next pod, which a terminating namespace
            # forbids: neither would ever go.
            deleted_with=cluster.resource,
            delete_before_replace=True,
            depends_on=[configuration, dataset.job, rendezvous, *requested, *urgency, *after],
            ignore_changes=[f"spec.{field}" for field in FIELDS] if elastic else None,
        )
        if job.runtime == "trainjob":
            made = self.made = make_train_job(f"training{of}", name_of_job, pods, spec, namespace.name, opts)
        else:
            made, self.made = self._job(f"training{of}", spec, elastic, opts)
        if workers.min < workers.count:
            self._budget(service, workers.min)

        def told(text: str) -> pulumi.Input[str]:
            """Hold an output of a living stack back until the Job is made.

            If `up` fails before, the former Job trains on and its outputs stay. A first `up` has no former Job, and
            uploads need the outputs.
            """
            return made.urn.apply(lambda _: text) if built else text

        self.told_name = told(self.job_name)
        self.register_outputs({"jobName": self.told_name, "runDirectory": told(self.run_directory)})

    def _described(self, name: str, annotations: Mapping[str, str] | None = None) -> k8s.meta.v1.ObjectMetaArgs:
        """Metadata of an object of this training."""
        return metadata("trainer", self.workspace.namespace.name, name, annotations, self.config.training_name)

    def _priority(self) -> tuple[pulumi.Input[str], list[pulumi.Resource]]:
        """The name of the pods' priority class, and what must be there before them."""
        config, cluster, namespace = self.config, self.workspace.cluster, self.workspace.namespace
        if not config.training_name:
            return make_priority_class("training", TRAINING_PRIORITY, cluster, namespace.name, self), []
        name, where = object_name(config.training_name), config.cluster.namespace
        made = make_training_priority(name, config.less_urgent, config.nodes is not None, cluster, where, self)
        # Text, not the output: a class that is made again with another value would take the Job with it.
        return training_class(where, name), [made]

    def _job(
        self, name: str, spec: k8s.batch.v1.JobSpecArgs, elastic: bool, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Resource]:
        """The Job, and what gives it its size."""
        # Pulumi would wait ten minutes at most for the end of the training. No pulumi.com/replaceUnready: a running Job
        # is not ready either, so each `pulumi up` would restart the training.
        job = k8s.batch.v1.Job(name, metadata=self._described(self.job_name, GONE_AT_ONCE), spec=spec, opts=opts)
        if not elastic:
            return job, job
        config = self.config
        return job, resize(f"{name}-size", job, config.workers, self.workspace.namespace, config.training_name)

    def warn_of_waiting(self, stack: str) -> None:
        """End an `up` with what waits for a node, on a cluster whose nodes are given."""
        config = self.config
        if context := config.cluster.context:
            file, _ = find_context(context, config.cluster.kubeconfig, stack)
            warn_of_waiting(str(file), context, config.cluster.namespace, self.job_name, self.made.urn)

    def _budget(self, name: str, least: int) -> None:
        """Keep as many workers as a round needs when several nodes are drained at once.

        Only where some can be spared: a budget that allows no eviction would block node upgrades.
        """
        # A number, not a percentage: a Job has no scale to take a percentage of.
        selected = select("trainer", self.config.training_name)
        k8s.policy.v1.PodDisruptionBudget(
            name,
            metadata=self._described(name),
            spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(min_available=least, selector=selected),
            opts=self.workspace.owned(self),
        )


def make_configuration(
    name: str, job: str, text: str, namespace: pulumi.Input[str], training: str, opts: pulumi.ResourceOptions
) -> k8s.core.v1.ConfigMapPatch:
    """A Job's configuration, under the Job's name: another configuration is another object beside it.

    It stays until its namespace goes. A Job that an `up` failed to replace starts its pods with it, also after the next
    `up` went back to what the Job has: that `up` would have deleted what it has just made again, as of the failed one.
    So it is a patch, which makes what is not there: since pulumi-kubernetes 4.29 only a patch takes what is.
    """
    return k8s.core.v1.ConfigMapPatch(
        name,
        metadata=k8s.meta.v1.ObjectMetaPatchArgs(
            name=job,
            namespace=namespace,
            labels=labels("trainer", training),
            # Of an older program it may have other labels.
            annotations={"pulumi.com/patchForce": "true"},
        ),
        immutable=True,
        data={CONFIGURATION.name: text},
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(retain_on_delete=True)),
    )


def run_name(training: TrainingConfig, dataset: DatasetConfig) -> str:
    """The model's name and a hash of all that changes the mathematics, defaults included.

    The same training, started again or on other machines, resumes in its folder; a different one gets a new folder.
    """
    model = training.model
    what = model.size or re.sub("[^a-z0-9]+", "-", Path(model.name or model.config).name.lower()).strip("-")[:30]
    spelled = json.dumps([mathematics(training), mathematics(dataset)], sort_keys=True)
    return f"{what}-{hashlib.sha256(spelled.encode()).hexdigest()[:8]}"


def chosen_run(config: StackConfig) -> str:
    """Name of a training's run; of one of several, the training's name takes the place of the model's."""
    name = run_name(config.training, config.dataset)
    if config.training_name:
        return f"{config.training_name}-{name.rpartition('-')[2]}"
    return config.job.name or name


def new_folders(config: StackConfig, built: Mapping[str, Any]) -> Iterator[str]:
    """One line for each folder of a living stack that this configuration, or a newer program, would leave."""
    if config.trainings:
        return  # each has its own, which names it; none can be told to continue another's
    folders = {"run": run_folder(chosen_run(config)), "dataset": dataset_folder(config.dataset.name)}
    for what, folder in folders.items():
        former = built.get(f"folder of the {what}")
        if former and former != folder:
            yield LEFT[what].format(new=folder, former=former, name=PurePosixPath(former).name)


def tell_new_folders(config: StackConfig, written: Mapping[str, Any], built: Mapping[str, Any]) -> None:
    """Warn of new folders that the stack file, `written`, did not ask for: a newer program repeats hours of work."""
    if built.get(ASKED) == digest_of(written):
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
