"""The Job of a training: pods come and go, and their exit codes decide whether they are replaced.

0: the training is done; 42: it can never succeed (configuration, data, NaN); 143: the pod was asked to leave; 75: the
pod asks to be started again. The first pod that exits with 0 ends the Job: no late joiner trains on.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pulumi
import pulumi_kubernetes as k8s

from infra.config import StackConfig
from infra.stackfiles import object_name
from trainer.contract import EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED, STACK
from workloads.elastic import job_size, node_range
from workloads.layout import CONFIGURED
from workloads.objects import ignore_disruptions, on_exit, pod_template, select
from workloads.pod import STAYS, from_field, node_environment, resources, trainer_mounts
from workloads.rendezvous import Rendezvous
from workloads.workspace import Workspace

#: The headless Service, and the subdomain of the pods.
SERVICE = "trainer"
#: Seconds of a pod's grace period that the launcher needs after the workers have saved.
LAUNCHER_SECONDS = 5
#: Seconds until pods of a silent node are deleted (Kubernetes' default is 300). The Job replaces a deleted pod only
#: when it is Failed, as its kubelet reports. If the machine is off, the pod garbage collector marks it: 40 s after the
#: Node object is gone, or within 20 s of the Node's taint node.kubernetes.io/out-of-service (Kubernetes 1.36.3:
#: job_controller.go, onlyReplaceFailedPods; podgc/gc_controller.go). A cloud's node controller deletes the Node; where
#: there is none, a person must, and `trainyard status` and `follow` say so.
UNREACHABLE_SECONDS = 30
#: Where a worker finds the training's configuration.
CONFIGURATION = PurePosixPath("/etc/trainyard/training.yaml")
#: Restarts of one pod for its own failures; evictions and coordinated restarts do not count.
RESTARTS_PER_WORKER = 20


def service_name(config: StackConfig) -> str:
    """Of the headless Service of a training."""
    return f"{SERVICE}-{object_name(config.training_name)}" if config.training_name else SERVICE


def job_spec(
    config: StackConfig, container: str, pod: k8s.core.v1.PodSpecArgs, queue: dict[str, str]
) -> k8s.batch.v1.JobSpecArgs:
    batch, workers = k8s.batch.v1, config.workers
    annotations = {**STAYS, "karpenter.sh/do-not-disrupt": "true", **queue}
    return batch.JobSpecArgs(
        completion_mode="Indexed",
        **job_size(workers),
        # Per index: a Job-wide limit would add up the back-off of all workers and never reset it.
        backoff_limit_per_index=RESTARTS_PER_WORKER,
        success_policy=batch.SuccessPolicyArgs(rules=[batch.SuccessPolicyRuleArgs(succeeded_count=1)]),
        pod_replacement_policy="Failed",  # the only one beside a failure policy
        pod_failure_policy=batch.PodFailurePolicyArgs(
            rules=[
                on_exit("FailJob", EXIT_FATAL, container=container),
                ignore_disruptions(),
                on_exit("Ignore", EXIT_RESTART, EXIT_TERMINATED, container=container),
            ]
        ),
        active_deadline_seconds=round(config.job.max_hours * 3600),
        # No ttlSecondsAfterFinished: a refresh would miss the Job, and the next `pulumi up` would train again.
        # Autoscalers must not interrupt a training to consolidate nodes.
        template=pod_template("trainer", pod, annotations, config.training_name),
    )


def trainer_pod_spec(
    container_name: str,
    configuration: str,
    config: StackConfig,
    elastic: bool,
    workspace: Workspace,
    rendezvous: Rendezvous,
    *,
    tokens: list[k8s.core.v1.EnvVarArgs],
    priority: pulumi.Input[str],
) -> k8s.core.v1.PodSpecArgs:
    """The pod of a worker; `configuration` is the name of the training's ConfigMap."""
    core, client, pool, workers = k8s.core.v1, rendezvous.client, workspace.cluster.workers, config.workers
    command: list[pulumi.Input[str]] = [
        *("python", "-m", "trainer.launch"),
        *("--nnodes", node_range(workers, elastic)),
        *("--nproc-per-node", str(workers.processes)),
        *("--shutdown-timeout", str(pool.grace_seconds - LAUNCHER_SECONDS)),
        *("--rdzv-endpoint", rendezvous.endpoint),
        # One id per Job: a finished or failed rendezvous stays closed for ever.
        *("--rdzv-id", "$(RDZV_ID)"),
        *("--", "--config", str(CONFIGURATION)),
    ]
    volume = core.VolumeArgs(name=CONFIGURED, config_map=core.ConfigMapVolumeSourceArgs(name=configuration))
    mount = core.VolumeMountArgs(name=CONFIGURED, mount_path=str(CONFIGURATION.parent), read_only=True)
    container = workspace.container(
        container_name,
        command,
        resources(workers.cpu, workers.memory_gib, workers.gpus, pool.whole_cores, pool.devices),
        {STACK: pulumi.get_stack()} | node_environment(workers, pool) | (client.environment if client else {}),
        [
            from_field("POD_IP", "status.podIP"),
            from_field("RDZV_ID", "metadata.labels['batch.kubernetes.io/controller-uid']"),
            *tokens,
        ],
        volume_mounts=[*trainer_mounts(), mount, *([client.mount] if client else [])],
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
    # Spread the workers, so that a lost node takes few with it; a single node may have them all.
    spread = core.TopologySpreadConstraintArgs(
        max_skew=1,
        topology_key="kubernetes.io/hostname",
        when_unsatisfiable="ScheduleAnyway",
        label_selector=select("trainer", config.training_name),
    )
    return workspace.pod(
        container,
        volumes=[volume, *([client.volume] if client else [])],
        subdomain=service_name(config),
        restart_policy="Never",
        termination_grace_period_seconds=pool.grace_seconds,
        priority_class_name=priority,
        topology_spread_constraints=[spread],
        runtime_class_name=workers.runtime_class,
        node_selector=pool.node_selector or None,
        tolerations=[*pool.tolerations, *silent],
    )
