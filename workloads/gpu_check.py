"""A measurement of the nodes before the training: accelerators, the exchange between nodes, the shared volume.

The first pod leaves its result in a ConfigMap, which is read back once the Job is done: that is how a number that a pod
measured becomes an output of the stack. The pods' own account may write that one ConfigMap and nothing else.
"""

from __future__ import annotations

import hashlib
import json

import pulumi
import pulumi_kubernetes as k8s

from infra.config import StackConfig
from workloads.layout import DATA
from workloads.objects import (
    CHECK_PRIORITY,
    allow,
    await_annotations,
    bind_role,
    make_priority_class,
    make_service,
    metadata,
    pod_template,
    select,
)
from workloads.pod import (
    STAYS,
    TRAINER_ENVIRONMENT,
    container_security,
    environment,
    from_field,
    node_environment,
    resources,
    trainer_mounts,
    trainer_pod,
)
from workloads.workspace import Namespace, Workspace

NAME = "gpu-check"
#: Where the first pod listens for the others.
PORT = 29500
#: The API server's ports: of clouds, and of the local node.
API_PORTS = (443, 6443)
#: Fields of the Job that follow workers.count.
SIZED = ("completions", "parallelism", "backoffLimit")


class GpuCheck(pulumi.ComponentResource):
    """The Job, and its result as a JSON text."""

    job: k8s.batch.v1.Job
    result: pulumi.Output[str]

    def __init__(self, name: str, config: StackConfig, workspace: Workspace, after: list[pulumi.Resource]):
        super().__init__("trainyard:workloads:GpuCheck", name, None, workspace.component())
        opts, namespace = workspace.owned(self), workspace.namespace
        workers, check, gbit = config.workers, config.check, workspace.cluster.workers.network_gbit
        arguments = [
            *("--nodes", str(workers.count)),
            *("--processes", str(workers.processes)),
            *("--megabytes", str(check.megabytes)),
            *(("--network-gbit", f"{gbit:g}") if gbit else ()),
            *("--storage", f"{DATA}/checks"),
            *("--storage-megabytes", str(check.storage_megabytes)),
        ]
        # Another number of workers alone is no reason to interrupt a training for another measurement.
        same = workers.model_dump(exclude={"count"})
        what = [workspace.image.version, check.model_dump(exclude={"timeout_minutes"}), same, gbit]
        identity = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
        job_name = f"{NAME}-{identity}"
        account = self._account(namespace, job_name, opts)
        core = k8s.core.v1
        service = make_service(name, NAME, metadata(NAME, namespace.name, NAME), None, opts)
        self._policy(namespace, opts)
        pool = workspace.cluster.workers
        container = core.ContainerArgs(
            name=NAME,
            image=workspace.image.reference,
            args=[
                *("python", "-m", "trainer.gpu_check"),
                *arguments,
                *("--master", f"{job_name}-0.{NAME}:{PORT}"),
                *("--config-map", job_name),
            ],
            env=[
                *environment(TRAINER_ENVIRONMENT | node_environment(workers, pool)),
                from_field("NODE_RANK", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
                from_field("NAMESPACE", "metadata.namespace"),
                from_field("NODE_NAME", "spec.nodeName"),
            ],
            resources=resources(workers.cpu, workers.memory_gib, workers.gpus, pool.whole_cores, pool.devices),
            security_context=container_security(),
            volume_mounts=trainer_mounts(),
            termination_message_policy="FallbackToLogsOnError",
        )
        pod = trainer_pod(
            container,
            workspace.volume,
            service_account_name=account.metadata.name,
            token=True,
            subdomain=NAME,
            restart_policy="Never",
            priority_class_name=make_priority_class(NAME, CHECK_PRIORITY, workspace.cluster, namespace.name, self),
            node_selector=pool.node_selector or None,
            tolerations=list(pool.tolerations) or None,
        )
        batch = k8s.batch.v1
        self.job = batch.Job(
            # Another measurement is another resource: a replaced one would keep the size that is ignored below.
            job_name,
            metadata=metadata(NAME, namespace.name, job_name, await_annotations(check.timeout_minutes)),
            spec=batch.JobSpecArgs(
                completion_mode="Indexed",
                completions=workers.count,
                parallelism=workers.count,
                backoff_limit=workers.count,
                template=pod_template(NAME, pod, STAYS),
            ),
            opts=pulumi.ResourceOptions.merge(
                opts,
                pulumi.ResourceOptions(
                    delete_before_replace=True,
                    ignore_changes=[*(f"spec.{field}" for field in SIZED), "spec.template.spec.containers[0].args"],
                    depends_on=[*after, service],
                ),
            ),
        )
        # Read once the Job is done: the id is known then, and not before.
        found = core.ConfigMap.get(
            f"{name}-result",
            pulumi.Output.all(self.job.id, namespace.name).apply(lambda parts: f"{parts[1]}/{job_name}"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.result = found.data.apply(lambda data: (data or {}).get("result", ""))
        self.register_outputs({"result": self.result})

    def _account(
        self, namespace: Namespace, config_map: str, opts: pulumi.ResourceOptions
    ) -> k8s.core.v1.ServiceAccount:
        """An account that may make ConfigMaps, and change the one of this name."""
        described = metadata(NAME, namespace.name, NAME)
        account = k8s.core.v1.ServiceAccount(NAME, metadata=described, automount_service_account_token=False, opts=opts)
        rules = [allow("", ["configmaps"], ["create"]), allow("", ["configmaps"], ["patch"], [config_map])]
        bind_role(NAME, described, rules, account, namespace.name, opts)
        return account

    def _policy(self, namespace: Namespace, opts: pulumi.ResourceOptions) -> None:
        """Among themselves, and to the API server, whose address no policy can name."""
        net = k8s.networking.v1
        own = select(NAME)
        peers = [net.NetworkPolicyPeerArgs(pod_selector=own)]
        api = [net.NetworkPolicyPortArgs(port=port, protocol="TCP") for port in API_PORTS]
        net.NetworkPolicy(
            NAME,
            metadata=metadata("network-policy", namespace.name, NAME),
            spec=net.NetworkPolicySpecArgs(
                pod_selector=own,
                policy_types=["Ingress", "Egress"],
                ingress=[net.NetworkPolicyIngressRuleArgs(from_=peers)],
                egress=[net.NetworkPolicyEgressRuleArgs(to=peers), net.NetworkPolicyEgressRuleArgs(ports=api)],
            ),
            opts=opts,
        )


def check_nodes(config: StackConfig, workspace: Workspace, after: list[pulumi.Resource]) -> GpuCheck | None:
    """The check, when the configuration asks for it."""
    if not config.check.enabled:
        return None
    return GpuCheck(NAME, config, workspace, after)
