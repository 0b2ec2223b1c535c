"""The training: an Indexed Job whose pods find each other through etcd, and the headless Service that names them.

Exit codes carry meaning: 0 the training is done, 42 it can never succeed (configuration, data, NaN), 143 the pod was
asked to leave, 75 the pod asks to be started again. The first pod that exits with 0 ends the Job: no late joiner trains
on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster, WorkerPool
from infra.config import DatasetConfig, StackConfig, TrainingConfig, WorkersConfig
from infra.image import ContainerImage
from workloads.dataset import Dataset
from workloads.elastic import FIELDS, identity, is_elastic, node_range, resize, size
from workloads.layout import run_folder, weights_folder
from workloads.namespace import Namespace
from workloads.pod import (
    TRAINER_ENVIRONMENT,
    component,
    container_security,
    environment,
    from_field,
    labels,
    node_environment,
    resources,
    trainer_mounts,
    trainer_pod,
)
from workloads.priority import TRAINING, priority_class
from workloads.provisioning import pod_annotations, request_nodes
from workloads.rendezvous import Rendezvous
from workloads.secrets import fingerprint, from_tokens

SERVICE = "trainer"
CONTAINER = "train"
FATAL, TERMINATED, RESTART = 42, 143, 75
#: Of a pod's time to leave, what the launcher needs for itself after the workers have saved, seconds.
LAUNCHER_SECONDS = 5
#: Seconds until pods of a node that went silent are replaced (Kubernetes' default is 300).
UNREACHABLE_SECONDS = 30
#: Restarts of one pod that is at fault itself; evictions and coordinated restarts do not count.
RESTARTS_PER_WORKER = 20


class Training(pulumi.ComponentResource):
    """A training run of one or more elastic workers."""

    job_name: str
    run_name: str
    run_directory: str
    """Folder of the run in the pods: metrics, status, checkpoints, DONE."""

    def __init__(
        self,
        name: str,
        config: StackConfig,
        cluster: Cluster,
        namespace: Namespace,
        image: ContainerImage,
        dataset: Dataset,
        rendezvous: Rendezvous,
        claim: k8s.core.v1.PersistentVolumeClaim,
        tokens: k8s.core.v1.Secret | None = None,
        after: Sequence[pulumi.Resource] = (),
    ):
        super().__init__("trainyard:workloads:Training", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        workers, training = config.workers, config.training
        self.run_name = run_name(training, config.dataset)
        self.run_directory = run_folder(self.run_name)
        arguments = training_arguments(training, dataset.directory, self.run_directory, cluster.workers.capability)
        # The name tells trainings apart, so that Pulumi replaces the Job instead of changing one that has run.
        # Whatever is in the pods' template has to be in it: a new Job of the same name would meet the old one going.
        what = [
            image.version,
            arguments,
            identity(workers, cluster.workers),
            training.max_hours,
            fingerprint(config.secrets),
        ]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
        self.job_name = f"train-{self.run_name[:40]}-{digest}"
        self._service(namespace)
        priority = priority_class("training", TRAINING, False, cluster, namespace, self)
        pod = _pod(
            workers, cluster.workers, arguments, rendezvous, image.reference, claim.metadata.name, tokens, priority
        )
        opts = pulumi.ResourceOptions(parent=self, deleted_with=namespace.lifetime)
        # A request that was granted is used up: each Job has its own.
        requested = request_nodes(
            self.job_name, cluster.workers, workers.count + workers.spares, pod, namespace.name, labels("trainer"), opts
        )
        job = k8s.batch.v1.Job(
            name,
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=self.job_name,
                namespace=namespace.name,
                labels=labels("trainer"),
                # Pulumi would wait for the end of the training, ten minutes at most. A failed Job is made again by the
                # next up.
                annotations={"pulumi.com/skipAwait": "true", "pulumi.com/replaceUnready": "true"},
            ),
            spec=_job(workers, pod, training.max_hours, pod_annotations(self.job_name, cluster.workers)),
            # Never two that train in the same folder; and the text has to be there.
            opts=pulumi.ResourceOptions(
                parent=self,
                # Not with its namespace: Kubernetes deletes a namespace's pods first (since 1.33), and a Job with a
                # limit per index keeps the finalizer of a pod until it has made the next one, which a namespace that
                # ends forbids. Neither would ever go.
                deleted_with=cluster.resource,
                delete_before_replace=True,
                depends_on=[dataset.job, rendezvous, *requested, *after],
                ignore_changes=[f"spec.{field}" for field in FIELDS] if is_elastic(workers, cluster.workers) else None,
            ),
        )
        if is_elastic(workers, cluster.workers):
            resize(f"{name}-size", job, self.job_name, workers, namespace)
        if workers.min < workers.count:
            self._budget(namespace, workers.min)
        self.register_outputs({"jobName": self.job_name, "runDirectory": self.run_directory})

    def _budget(self, namespace: Namespace, least: int) -> None:
        """Whoever drains several nodes at once leaves as many workers as a round needs.

        Only where some can be spared: a budget that allows no eviction would hold up the upgrade of nodes.
        """
        k8s.policy.v1.PodDisruptionBudget(
            SERVICE,
            metadata=k8s.meta.v1.ObjectMetaArgs(name=SERVICE, namespace=namespace.name, labels=labels("trainer")),
            # A number, not a share: a Job has no scale that a share could be taken of.
            spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(
                min_available=least, selector=k8s.meta.v1.LabelSelectorArgs(match_labels=component("trainer"))
            ),
            opts=pulumi.ResourceOptions(parent=self, deleted_with=namespace.lifetime),
        )

    def _service(self, namespace: Namespace) -> k8s.core.v1.Service:
        """Names for the pods: <job>-<index>.trainer.<namespace>.svc."""
        return k8s.core.v1.Service(
            SERVICE,
            metadata=k8s.meta.v1.ObjectMetaArgs(name=SERVICE, namespace=namespace.name, labels=labels("trainer")),
            spec=k8s.core.v1.ServiceSpecArgs(
                cluster_ip="None",
                # Workers look each other up before any of them is ready.
                publish_not_ready_addresses=True,
                selector=component("trainer"),
            ),
            opts=pulumi.ResourceOptions(parent=self, deleted_with=namespace.lifetime),
        )


def run_name(config: TrainingConfig, dataset: DatasetConfig) -> str:
    """The configured name, else the model and a hash of all that changes the mathematics.

    The same training, started again or on other machines, resumes in its folder; a different one gets a new folder.
    """
    if config.name:
        return config.name
    without = {"name", "metrics_every", "evaluation", "checkpoint", "engine", "zero_stage", "max_hours"}
    text = dataset.model_dump(exclude={"timeout_minutes", "cpu", "memory_gib"})
    identity = [config.model_dump(exclude=without), text]
    what = config.model if config.task == "language_model" else "answering"
    return f"{what}-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]}"


def training_arguments(
    config: TrainingConfig, dataset_directory: str, run_directory: str, capability: str | None = None
) -> list[str]:
    """Arguments of `python -m trainer.train`; `capability` is a processor flag that every node must have."""
    settings: dict[str, Any] = {
        "model.preset": config.model,
        "data.directory": dataset_directory,
        "run.directory": run_directory,
        "run.seed": config.seed,
        "train.steps": config.steps,
        "train.tokens_per_step": config.tokens_per_step,
        "train.sequence_length": config.sequence_length,
        "train.micro_batch": config.micro_batch,
        "train.precision": config.precision,
        "optimizer.learning_rate": config.optimizer.learning_rate,
        "optimizer.warmup_steps": config.optimizer.warmup_steps,
        "optimizer.schedule": config.optimizer.schedule,
        "optimizer.weight_decay": config.optimizer.weight_decay,
        "optimizer.clip": config.optimizer.clip,
        "evaluation.every": config.evaluation.every,
        "evaluation.batches": config.evaluation.batches,
        "checkpoint.every_steps": config.checkpoint.every_steps,
        "checkpoint.every_minutes": config.checkpoint.every_minutes,
        "checkpoint.keep": config.checkpoint.keep,
        "metrics.every": config.metrics_every,
    }
    if config.task == "question_answering":
        settings |= {
            "task.name": config.task,
            # The encoder's own shape.
            "model.preset": "weights",
            "question_answering.train": f"{dataset_directory}/train.json",
            "question_answering.validation": f"{dataset_directory}/validation.json",
        }
        del settings["data.directory"]
    if config.weights:
        fetched = not config.weights.startswith("/")
        settings["model.weights"] = weights_folder(config.weights) if fetched else config.weights
    if config.engine == "deepspeed":
        settings |= {"engine.name": "deepspeed", "engine.zero_stage": config.zero_stage}
    if capability:
        settings["train.require_capability"] = capability
    settings |= {
        key: str(value).lower() if isinstance(value, bool) else value for key, value in config.settings.items()
    }
    return [f"{key}={value}" for key, value in settings.items()]


def _job(
    workers: WorkersConfig, pod: k8s.core.v1.PodSpecArgs, max_hours: float | None, queue: dict[str, str]
) -> k8s.batch.v1.JobSpecArgs:
    batch = k8s.batch.v1
    return batch.JobSpecArgs(
        completion_mode="Indexed",
        **size(workers),
        # Per index: a Job-wide limit would add up the back-off of all workers, and never forget it.
        backoff_limit_per_index=RESTARTS_PER_WORKER,
        success_policy=batch.SuccessPolicyArgs(rules=[batch.SuccessPolicyRuleArgs(succeeded_count=1)]),
        pod_replacement_policy="Failed",
        pod_failure_policy=batch.PodFailurePolicyArgs(
            rules=[
                _on_exit("FailJob", [FATAL]),
                batch.PodFailurePolicyRuleArgs(
                    action="Ignore",
                    on_pod_conditions=[
                        batch.PodFailurePolicyOnPodConditionsPatternArgs(type="DisruptionTarget", status="True")
                    ],
                ),
                _on_exit("Ignore", [RESTART, TERMINATED]),
            ]
        ),
        active_deadline_seconds=round(max_hours * 3600) if max_hours else None,
        # No ttlSecondsAfterFinished: a refresh would miss the Job, and the next `pulumi up` would train again.
        template=k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(
                labels=labels("trainer"),
                annotations={
                    # The autoscalers' consolidation is not a reason to interrupt a training.
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    "karpenter.sh/do-not-disrupt": "true",
                    **queue,
                },
            ),
            spec=pod,
        ),
    )


def _on_exit(action: str, codes: list[int]) -> k8s.batch.v1.PodFailurePolicyRuleArgs:
    requirement = k8s.batch.v1.PodFailurePolicyOnExitCodesRequirementArgs(
        container_name=CONTAINER, operator="In", values=codes
    )
    return k8s.batch.v1.PodFailurePolicyRuleArgs(action=action, on_exit_codes=requirement)


def _pod(
    workers: WorkersConfig,
    pool: WorkerPool,
    arguments: list[str],
    rendezvous: Rendezvous,
    image: pulumi.Output[str],
    claim: pulumi.Input[str],
    tokens: k8s.core.v1.Secret | None,
    priority: pulumi.Output[str],
) -> k8s.core.v1.PodSpecArgs:
    core, client = k8s.core.v1, rendezvous.client
    launch: list[pulumi.Input[str]] = [
        *("--nnodes", node_range(workers, pool)),
        *("--nproc-per-node", str(workers.processes)),
        *("--shutdown-timeout", str(pool.grace_seconds - LAUNCHER_SECONDS)),
        *("--rdzv-backend", rendezvous.backend),
        *("--rdzv-endpoint", rendezvous.endpoint),
        # One id per Job: a finished or failed rendezvous stays closed for ever.
        *("--rdzv-id", "$(RDZV_ID)"),
        "--",
    ]
    container = core.ContainerArgs(
        name=CONTAINER,
        image=image,
        # Arguments only: the image's entry point is an init, which hands SIGTERM on as PID 1.
        args=["python", "-m", "trainer.launch", *launch, *arguments],
        env=[
            *environment(
                TRAINER_ENVIRONMENT | node_environment(workers, pool) | (client.environment if client else {})
            ),
            from_field("POD_IP", "status.podIP"),
            from_field("RDZV_ID", "metadata.labels['batch.kubernetes.io/controller-uid']"),
        ],
        env_from=from_tokens(tokens),
        resources=resources(workers.cpu, workers.memory_gib, workers.gpus, pool.whole_cores),
        security_context=container_security(),
        volume_mounts=[*trainer_mounts(), *([client.mount] if client else [])],
    )
    silent = [
        core.TolerationArgs(
            key=f"node.kubernetes.io/{taint}",
            operator="Exists",
            effect="NoExecute",
            toleration_seconds=UNREACHABLE_SECONDS,
        )
        for taint in ("unreachable", "not-ready")
    ]
    # A node that is lost takes as few workers with it as can be; where there is one node, all are on it.
    spread = core.TopologySpreadConstraintArgs(
        max_skew=1,
        topology_key="kubernetes.io/hostname",
        when_unsatisfiable="ScheduleAnyway",
        label_selector=k8s.meta.v1.LabelSelectorArgs(match_labels=component("trainer")),
    )
    return trainer_pod(
        container,
        claim,
        volumes=[client.volume] if client else [],
        subdomain=SERVICE,
        restart_policy="Never",
        termination_grace_period_seconds=pool.grace_seconds,
        priority_class_name=priority,
        topology_spread_constraints=[spread],
        node_selector=pool.node_selector or None,
        tolerations=[*pool.tolerations, *silent],
    )
