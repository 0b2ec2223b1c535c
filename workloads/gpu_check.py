"""The node check: measures accelerators, the exchange between nodes and the shared volume before the training.

The first pod writes its result to a ConfigMap, which the program reads once the Job is done: so a measurement becomes a
stack output. The pods' service account may create ConfigMaps and patch that one, nothing else.
"""

from __future__ import annotations

import hashlib
import json

import pulumi
import pulumi_kubernetes as k8s

from infra.config import StackConfig
from workloads.layout import DATA
from workloads.objects import (
    API_PORTS,
    CHECK_PRIORITY,
    allow,
    await_annotations,
    bind_role,
    make_policy,
    make_priority_class,
    make_service,
    metadata,
    pod_template,
    ports,
    select,
)
from workloads.pod import STAYS, from_field, node_environment, resources
from workloads.workspace import Workspace

NAME = "gpu-check"
#: Where the first pod listens for the others.
PORT = 29500
#: Fields of the Job that follow workers.count.
SIZED = ("completions", "parallelism", "backoffLimit")


class GpuCheck(pulumi.ComponentResource):
    """The Job, and its result as a JSON text."""

    job: k8s.batch.v1.Job
    result: pulumi.Output[str]

    def __init__(self, config: StackConfig, workspace: Workspace, after: list[pulumi.Resource]):
        super().__init__("trainyard:workloads:GpuCheck", NAME, None, workspace.component())
        opts, namespace, workers = workspace.owned(self), workspace.namespace, config.workers
        job_name = _job_name(config, workspace)
        described = metadata(NAME, namespace.name, NAME)
        account = k8s.core.v1.ServiceAccount(NAME, metadata=described, automount_service_account_token=False, opts=opts)
        rules = [allow("", ["configmaps"], ["create"]), allow("", ["configmaps"], ["patch"], [job_name])]
        bind_role(NAME, described, rules, account, namespace.name, opts)
        service = make_service(NAME, NAME, described, None, opts)
        # The pods may reach each other and the API server, whose address no policy can name.
        own = select(NAME)
        make_policy(
            NAME, namespace.name, own, opts, ingress=[(own, None)], egress=[(own, None), (None, ports(*API_PORTS))]
        )
        pool = workspace.cluster.workers
        pod = workspace.pod(
            _container(job_name, config, workspace),
            service_account_name=account.metadata.name,
            token=True,
            subdomain=NAME,
            restart_policy="Never",
            priority_class_name=make_priority_class(NAME, CHECK_PRIORITY, workspace.cluster, namespace.name, self),
            runtime_class_name=config.workers.runtime_class,
            node_selector=pool.node_selector or None,
            tolerations=list(pool.tolerations) or None,
        )
        batch = k8s.batch.v1
        self.job = batch.Job(
            # A new measurement is a new resource, whose result the program finds by the Job's name.
            job_name,
            metadata=metadata(NAME, namespace.name, job_name, await_annotations(config.check.timeout_minutes)),
            spec=batch.JobSpecArgs(
                completion_mode="Indexed",
                completions=workers.count,
                parallelism=workers.count,
                backoff_limit=workers.count,
                active_deadline_seconds=config.check.timeout_minutes * 60,
                template=pod_template(NAME, pod, STAYS),
            ),
            opts=pulumi.ResourceOptions.merge(
                opts,
                pulumi.ResourceOptions(
                    delete_before_replace=True,
                    # Of a Job that is there; one that is made again, as with its cluster, has the size of now.
                    ignore_changes=[*(f"spec.{field}" for field in SIZED), "spec.template.spec.containers[0].args"],
                    depends_on=[*after, service],
                ),
            ),
        )
        # Reads once the Job is done: only then is its id known.
        found = k8s.core.v1.ConfigMap.get(
            f"{NAME}-result",
            pulumi.Output.all(self.job.id, namespace.name).apply(lambda parts: f"{parts[1]}/{job_name}"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.result = found.data.apply(lambda data: (data or {}).get("result", ""))
        self.register_outputs({"result": self.result})


def _job_name(config: StackConfig, workspace: Workspace) -> str:
    """Name the Job by what it measures, without the number of workers: resizing must not interrupt a training."""
    same = config.workers.model_dump(exclude={"count"}, exclude_defaults=True)
    check = config.check.model_dump(exclude={"timeout_minutes"}, exclude_defaults=True)
    what = [workspace.image.version, check, same, workspace.cluster.workers.network_gbit]
    return f"{NAME}-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]}"


def _container(job_name: str, config: StackConfig, workspace: Workspace) -> k8s.core.v1.ContainerArgs:
    workers, check, pool = config.workers, config.check, workspace.cluster.workers
    return workspace.container(
        NAME,
        [
            *("python", "-m", "trainer.gpu_check"),
            *("--nodes", str(workers.count)),
            *("--processes", str(workers.processes)),
            *("--megabytes", str(check.megabytes)),
            *(("--network-gbit", f"{pool.network_gbit:g}") if pool.network_gbit else ()),
            *("--storage", f"{DATA}/checks"),
            *("--storage-megabytes", str(check.storage_megabytes)),
            *("--master", f"{job_name}-0.{NAME}:{PORT}"),
            *("--config-map", job_name),
        ],
        resources(workers.cpu, workers.memory_gib, workers.gpus, pool.whole_cores, pool.devices),
        node_environment(workers, pool),
        [
            from_field("NODE_RANK", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
            from_field("NAMESPACE", "metadata.namespace"),
            from_field("NODE_NAME", "spec.nodeName"),
        ],
        termination_message_policy="FallbackToLogsOnError",
    )
