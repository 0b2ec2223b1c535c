"""The training: an Indexed Job whose pods find each other through etcd, and the headless Service that names them.

Exit codes carry meaning: 0 the training is done, 42 it can never succeed (configuration, data, NaN), 143 the pod was
asked to leave, 75 the pod asks to be started again. The first pod that exits with 0 ends the Job: no late joiner trains
on.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster, WorkerPool
from infra.config import DatasetConfig, TrainingConfig, WorkersConfig
from infra.image import TrainerImage
from workloads.dataset import Dataset
from workloads.layout import run_folder
from workloads.namespace import Namespace
from workloads.pod import (
    TRAINER_ENVIRONMENT,
    component,
    container_security,
    environment,
    from_field,
    labels,
    resources,
    trainer_mounts,
    trainer_pod,
)
from workloads.rendezvous import Rendezvous

SERVICE = "trainer"
CONTAINER = "train"
FATAL, TERMINATED, RESTART = 42, 143, 75
#: Seconds a pod has to save after SIGTERM.
GRACE_SECONDS = 30
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
        config: TrainingConfig,
        workers: WorkersConfig,
        dataset_config: DatasetConfig,
        cluster: Cluster,
        namespace: Namespace,
        image: TrainerImage,
        dataset: Dataset,
        rendezvous: Rendezvous,
        claim: k8s.core.v1.PersistentVolumeClaim,
    ):
        super().__init__("trainyard:workloads:Training", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        self.run_name = run_name(config, dataset_config)
        self.run_directory = run_folder(self.run_name)
        arguments = training_arguments(config, dataset.directory, self.run_directory)
        # The name tells trainings apart, so that Pulumi replaces the Job instead of changing one that has run.
        identity = hashlib.sha256(
            json.dumps([image.version, arguments, workers.model_dump()], sort_keys=True).encode()
        ).hexdigest()[:8]
        self.job_name = f"train-{self.run_name[:40]}-{identity}"
        self._service(namespace)
        pod = _pod(workers, cluster.workers, arguments, rendezvous.endpoint, image.reference, claim.metadata.name)
        k8s.batch.v1.Job(
            name,
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=self.job_name,
                namespace=namespace.name,
                labels=labels("trainer"),
                # Pulumi would wait for the end of the training, ten minutes at most. A failed Job is made again by the
                # next up.
                annotations={"pulumi.com/skipAwait": "true", "pulumi.com/replaceUnready": "true"},
            ),
            spec=_job(workers, pod),
            # Never two that train in the same folder; and the text has to be there.
            opts=pulumi.ResourceOptions(
                parent=self,
                deleted_with=namespace.lifetime,
                delete_before_replace=True,
                depends_on=[dataset.job, rendezvous],
            ),
        )
        self.register_outputs({"jobName": self.job_name, "runDirectory": self.run_directory})

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
    without = {"name", "metrics_every", "evaluation", "checkpoint"}
    identity = [config.model_dump(exclude=without), dataset.model_dump(exclude={"timeout_minutes"})]
    return f"{config.model}-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]}"


def training_arguments(config: TrainingConfig, dataset_directory: str, run_directory: str) -> list[str]:
    """Arguments of `python -m trainer.train`."""
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
    return [f"{key}={value}" for key, value in settings.items()]


def _job(workers: WorkersConfig, pod: k8s.core.v1.PodSpecArgs) -> k8s.batch.v1.JobSpecArgs:
    batch = k8s.batch.v1
    return batch.JobSpecArgs(
        completion_mode="Indexed",
        completions=workers.count,
        parallelism=workers.count,
        # Per index: a Job-wide limit would add up the back-off of all workers, and never forget it.
        backoff_limit_per_index=RESTARTS_PER_WORKER,
        max_failed_indexes=workers.count - workers.min,
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
        # No ttlSecondsAfterFinished: a refresh would miss the Job, and the next `pulumi up` would train again.
        template=k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(
                labels=labels("trainer"),
                annotations={
                    # The autoscalers' consolidation is not a reason to interrupt a training.
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    "karpenter.sh/do-not-disrupt": "true",
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
    endpoint: pulumi.Output[str],
    image: pulumi.Output[str],
    claim: pulumi.Input[str],
) -> k8s.core.v1.PodSpecArgs:
    core = k8s.core.v1
    threads = max(1, int(workers.cpu / workers.processes))
    launch: list[pulumi.Input[str]] = [
        *("--nnodes", f"{workers.min}:{workers.count}"),
        *("--nproc-per-node", str(workers.processes)),
        *("--rdzv-backend", "etcd-v3"),
        *("--rdzv-endpoint", endpoint),
        # One id per Job: a finished or failed rendezvous stays closed for ever.
        *("--rdzv-id", "$(RDZV_ID)"),
        "--",
    ]
    network = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": str(threads)}
    container = core.ContainerArgs(
        name=CONTAINER,
        image=image,
        # Arguments only: the image's entry point is an init, which hands SIGTERM on as PID 1.
        args=["python", "-m", "trainer.launch", *launch, *arguments],
        env=[
            *environment(TRAINER_ENVIRONMENT | network),
            from_field("POD_IP", "status.podIP"),
            from_field("RDZV_ID", "metadata.labels['batch.kubernetes.io/controller-uid']"),
        ],
        resources=resources(workers.cpu, workers.memory_gib, workers.gpus),
        security_context=container_security(),
        volume_mounts=trainer_mounts(),
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
    return trainer_pod(
        container,
        claim,
        subdomain=SERVICE,
        restart_policy="Never",
        termination_grace_period_seconds=GRACE_SECONDS,
        node_selector=pool.node_selector or None,
        tolerations=[*pool.tolerations, *silent],
    )
