"""Labels, selectors and await annotations of our objects; priority classes, Services and roles in one call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.trainings import MOST
from workloads.layout import TRAINING as TRAINING

RBAC = "rbac.authorization.k8s.io"
#: Values of priority classes. On a shared cluster (Cluster.shared) they order the queue and preempt nothing: preemption
#: takes the pods of the lowest priority, whoever owns them. Storage is highest: every pod of a training, the rendezvous
#: too, waits for the pod that serves their volume.
STORAGE_PRIORITY = 10_000
#: All rounds of a training go through one small pod: it may preempt a worker, and a kubelet that runs out of memory
#: evicts workers first.
RENDEZVOUS_PRIORITY = 1000
#: The node check takes seconds and may preempt a training, which resumes after it; otherwise it would wait in vain for
#: the nodes of that training.
CHECK_PRIORITY = 500
#: Other pods of the cluster have 0: a training is ahead of them in the queue but preempts none.
TRAINING_PRIORITY = 100


def component(name: str, training: str = "") -> dict[str, str]:
    """The labels that select one kind of pod; `training`: those of one of several trainings alone."""
    one = {TRAINING: training} if training else {}
    return {"app.kubernetes.io/name": "trainyard", "app.kubernetes.io/component": name, **one}


def labels(name: str, training: str = "") -> dict[str, str]:
    return {**component(name, training), "app.kubernetes.io/managed-by": "pulumi"}


def select(name: str, training: str = "") -> k8s.meta.v1.LabelSelectorArgs:
    """Selects one kind of pod."""
    return k8s.meta.v1.LabelSelectorArgs(match_labels=component(name, training))


def metadata(
    what: str,
    namespace: pulumi.Input[str] | None = None,
    name: pulumi.Input[str] | None = None,
    annotations: Mapping[str, pulumi.Input[str]] | None = None,
    training: str = "",
) -> k8s.meta.v1.ObjectMetaArgs:
    """Metadata of an object that belongs to the component `what`; without a `name`, Pulumi makes one up."""
    noted = dict(annotations) if annotations else None
    return k8s.meta.v1.ObjectMetaArgs(name=name, namespace=namespace, labels=labels(what, training), annotations=noted)


def make_namespace(
    name: str, called: str, what: str, security: Mapping[str, str], opts: pulumi.ResourceOptions
) -> k8s.core.v1.Namespace:
    """A new namespace; `security` maps modes of Pod Security to levels."""
    levels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in security.items()}
    described = k8s.meta.v1.ObjectMetaArgs(name=called, labels={**labels(what), **levels})
    return k8s.core.v1.Namespace(name, metadata=described, opts=opts)


def pod_template(
    what: str, spec: k8s.core.v1.PodSpecArgs, annotations: Mapping[str, str] | None = None, training: str = ""
) -> k8s.core.v1.PodTemplateSpecArgs:
    described = metadata(what, annotations=annotations, training=training)
    return k8s.core.v1.PodTemplateSpecArgs(metadata=described, spec=spec)


def ignore_disruptions() -> k8s.batch.v1.PodFailurePolicyRuleArgs:
    """A Job's rule: evictions, preemptions and lost nodes do not count as failures of its pods."""
    batch = k8s.batch.v1
    disrupted = batch.PodFailurePolicyOnPodConditionsPatternArgs(type="DisruptionTarget", status="True")
    return batch.PodFailurePolicyRuleArgs(action="Ignore", on_pod_conditions=[disrupted])


def on_exit(action: str, *codes: int, container: str | None = None) -> k8s.batch.v1.PodFailurePolicyRuleArgs:
    """A Job's rule for these exit codes of a container; None: of any."""
    batch = k8s.batch.v1
    given = batch.PodFailurePolicyOnExitCodesRequirementArgs(container_name=container, operator="In", values=[*codes])
    return batch.PodFailurePolicyRuleArgs(action=action, on_exit_codes=given)


#: Annotations of an object that `pulumi up` does not wait for. Pulumi does not wait for the end of such a Deployment,
#: StatefulSet, DaemonSet or Job either (pulumi-kubernetes 4.34.2, DeletedCondition in provider/pkg/metadata/
#: overrides.go), so the old one must be gone at once: its successor has its name. By default it outlives its pods.
GONE_AT_ONCE = {"pulumi.com/skipAwait": "true", "pulumi.com/deletionPropagationPolicy": "background"}


def await_annotations(minutes: float) -> dict[str, str]:
    """Annotations: `pulumi up` waits for a Job with this deadline, and replaces a failed one.

    A minute longer than the deadline, so that it hears the Job's own reason, DeadlineExceeded.
    """
    return {"pulumi.com/timeoutSeconds": str((minutes + 1) * 60), "pulumi.com/replaceUnready": "true"}


def make_priority_class(
    name: str, value: int, cluster: Cluster, namespace: pulumi.Input[str], parent: pulumi.Resource
) -> pulumi.Output[str]:
    """Make a priority class and return its name, which tells the owner: the class belongs to no namespace."""
    waits = cluster.shared and value != TRAINING_PRIORITY
    made = k8s.scheduling.v1.PriorityClass(
        f"{name}-priority",
        # The preemption policy is immutable: a class that preempted before 2026-11-23 gets a successor of another name.
        metadata=metadata("priority", name=pulumi.Output.concat(namespace, "-", name, "-waits" if waits else "")),
        value=value,
        global_default=False,
        preemption_policy="Never" if waits or value == TRAINING_PRIORITY else "PreemptLowerPriority",
        description=f"trainyard: the pods of {name}",
        opts=pulumi.ResourceOptions(parent=parent, deleted_with=cluster.resource),
    )
    return made.metadata.name.apply(str)


#: The cluster autoscaler adds no node for pods below this priority, and removes nodes under them (its flag
#: --expendable-pods-priority-cutoff, default; kubernetes/autoscaler cluster-autoscaler/FAQ.md, read 2026-11-25).
EXPENDABLE = -10


def training_class(namespace: str, training: str) -> str:
    """Name of the priority class of one of several trainings; it belongs to no namespace."""
    return f"{namespace}-training-{training}"


def make_training_priority(
    training: str, below: int, own_nodes: bool, cluster: Cluster, namespace: str, parent: pulumi.Resource
) -> k8s.scheduling.v1.PriorityClass:
    """The class of one of several trainings, which preempts the `below` less urgent ones.

    Counted from the last: pods keep the value that they began with, and a training that comes before others must have
    a higher one than their pods. Where the nodes are not the stack's, none is above 0, the priority of other people's
    pods: they are not preempted. The name is the training's, so that its Job stays as it is when its value changes.
    """
    least = EXPENDABLE if cluster.shared else -MOST
    value = TRAINING_PRIORITY - MOST + below if own_nodes else min(0, least + below)
    return k8s.scheduling.v1.PriorityClass(
        f"training-{training}-priority",
        metadata=metadata("priority", name=training_class(namespace, training), training=training),
        value=value,
        global_default=False,
        preemption_policy="PreemptLowerPriority",
        description=f"trainyard: the pods of training {training}",
        # A new value is a new object under the same name: pods that are made in between are tried again.
        opts=pulumi.ResourceOptions(
            parent=parent,
            deleted_with=cluster.resource,
            delete_before_replace=True,
            # The API server lets nobody change it, which Pulumi's provider does not know (4.34.2).
            replace_on_changes=["value"],
        ),
    )


def make_deployment(
    name: str,
    described: k8s.meta.v1.ObjectMetaArgs,
    pod: k8s.core.v1.PodSpecArgs,
    opts: pulumi.ResourceOptions,
    annotations: Mapping[str, str] | None = None,
    strategy: str | None = None,
) -> k8s.apps.v1.Deployment:
    """A Deployment of one pod of the component `name`; `annotations` are the pod's."""
    apps = k8s.apps.v1
    spec = apps.DeploymentSpecArgs(
        replicas=1,
        strategy=apps.DeploymentStrategyArgs(type=strategy) if strategy else None,
        selector=select(name),
        template=pod_template(name, pod, annotations),
    )
    return apps.Deployment(name, metadata=described, spec=spec, opts=opts)


def make_claim(
    name: str,
    described: k8s.meta.v1.ObjectMetaArgs,
    access_mode: str,
    size_gib: int,
    opts: pulumi.ResourceOptions,
    volume: k8s.core.v1.PersistentVolume | None,
    class_name: str | None = None,
) -> k8s.core.v1.PersistentVolumeClaim:
    """A claim on an existing `volume`, or on a new one of a class (None: the cluster's default class)."""
    core = k8s.core.v1
    spec = core.PersistentVolumeClaimSpecArgs(
        access_modes=[access_mode],
        # "" asks for a volume without a class: ours.
        storage_class_name="" if volume else class_name,
        volume_name=volume.metadata.name if volume else None,
        resources=core.VolumeResourceRequirementsArgs(requests={"storage": f"{size_gib}Gi"}),
    )
    return core.PersistentVolumeClaim(name, metadata=described, spec=spec, opts=opts)


#: (the pods of the namespace that may connect, or others, or None for anybody; the ports, or None for all)
Peers = tuple[
    "k8s.meta.v1.LabelSelectorArgs | list[k8s.networking.v1.NetworkPolicyPeerArgs] | None",
    "list[k8s.networking.v1.NetworkPolicyPortArgs] | None",
]


#: The API server's ports: of clouds, and of the local node.
API_PORTS = (443, 6443)


def ports(*numbers: int, protocols: Sequence[str] = ("TCP",)) -> list[k8s.networking.v1.NetworkPolicyPortArgs]:
    port = k8s.networking.v1.NetworkPolicyPortArgs
    return [port(port=number, protocol=protocol) for number in numbers for protocol in protocols]


def make_policy(
    name: str,
    namespace: pulumi.Input[str],
    pods: k8s.meta.v1.LabelSelectorArgs,
    opts: pulumi.ResourceOptions,
    *,
    ingress: Sequence[Peers] | None = None,
    egress: Sequence[Peers] | None = None,
) -> k8s.networking.v1.NetworkPolicy:
    """Deny the pods every connection of a direction but those listed; None leaves the direction to other policies."""
    net = k8s.networking.v1

    def peers(
        who: k8s.meta.v1.LabelSelectorArgs | list[net.NetworkPolicyPeerArgs] | None,
    ) -> list[net.NetworkPolicyPeerArgs] | None:
        return who if isinstance(who, list) or who is None else [net.NetworkPolicyPeerArgs(pod_selector=who)]

    inward = [net.NetworkPolicyIngressRuleArgs(from_=peers(who), ports=where) for who, where in ingress or ()]
    outward = [net.NetworkPolicyEgressRuleArgs(to=peers(who), ports=where) for who, where in egress or ()]
    spec = net.NetworkPolicySpecArgs(
        pod_selector=pods,
        policy_types=[name for name, rules in (("Ingress", ingress), ("Egress", egress)) if rules is not None],
        ingress=inward or None,
        egress=outward or None,
    )
    return net.NetworkPolicy(name, metadata=metadata("network-policy", namespace, name), spec=spec, opts=opts)


def make_service(
    name: str,
    what: str,
    described: k8s.meta.v1.ObjectMetaArgs,
    port: tuple[str, int] | None,
    opts: pulumi.ResourceOptions,
    training: str = "",
) -> k8s.core.v1.Service:
    """An address inside the cluster for the pods of the component `what`; `port` is its name and number.

    Without a port the Service is headless: it names pods that look each other up before any of them is ready.
    """
    core = k8s.core.v1
    selector = component(what, training)
    if port is None:
        spec = core.ServiceSpecArgs(cluster_ip="None", publish_not_ready_addresses=True, selector=selector)
    else:
        ports = [core.ServicePortArgs(name=port[0], port=port[1], target_port=port[1])]
        spec = core.ServiceSpecArgs(selector=selector, ports=ports)
    return core.Service(name, metadata=described, spec=spec, opts=opts)


def allow(
    group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] | None = None
) -> k8s.rbac.v1.PolicyRuleArgs:
    """A rule of a role. `names` cannot limit `create`: the API server does not know the name yet when it decides."""
    return k8s.rbac.v1.PolicyRuleArgs(
        api_groups=[group],
        resources=list(resources),
        verbs=list(verbs),
        resource_names=list(names) if names else None,
    )


def bind_role(
    name: str,
    described: k8s.meta.v1.ObjectMetaArgs,
    rules: list[k8s.rbac.v1.PolicyRuleArgs],
    account: k8s.core.v1.ServiceAccount,
    namespace: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> k8s.rbac.v1.RoleBinding:
    """Grant an account rights in one namespace."""
    rbac = k8s.rbac.v1
    role = rbac.Role(name, metadata=described, rules=rules, opts=opts)
    return rbac.RoleBinding(
        name,
        metadata=described,
        role_ref=rbac.RoleRefArgs(api_group=RBAC, kind="Role", name=role.metadata.name),
        subjects=[rbac.SubjectArgs(kind="ServiceAccount", name=account.metadata.name, namespace=namespace)],
        opts=opts,
    )
