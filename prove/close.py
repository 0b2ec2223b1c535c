"""The closing steps: no drift, destroy, no leftovers, and the cost."""

from __future__ import annotations

import time

from kubernetes import client

from cli.cluster import as_json, asking, connect
from cli.pods import UNCHANGED, command_pod
from faults.cluster import proof_of
from faults.fault import Cannot, expect
from infra.cost import dollars, estimate
from prove.subject import Subject
from prove.volume import OWN
from trainer.plain import counted
from workloads.layout import DATA, dataset_folder, run_folder


def no_changes(subject: Subject) -> str:
    subject.stack.preview(expect_no_changes=True)
    return f"pulumi preview --expect-no-changes: {counted(len(subject.stack.resources()), 'resource')} as declared"


def destroy(subject: Subject) -> str:
    stack, state = subject.stack, subject.state
    if not stack.exists():
        state.billed_to = state.billed_from and time.time()
        raise Cannot("there is no stack, nothing was made")
    stack.unlock()
    stack.refuse_if_protected()  # before the volume is emptied
    doubt = _tidy(subject)
    clock = time.monotonic()
    count = len(stack.resources())
    # Of a second try, too: the first may have left what is no longer in the state.
    state.notes["objects"] = sorted({*state.notes.get("objects", []), *stack.objects()})
    state.save()
    stack.destroy()
    state.billed_to = time.time()
    stack.remove()
    minutes = (time.monotonic() - clock) / 60
    return f"{counted(count, 'resource')} in {minutes:.1f} min{doubt}"


def _tidy(subject: Subject) -> str:
    """Leave no cordoned node and no files on a cluster that outlives the stack; return what failed."""
    if subject.config.nodes is not None:
        return ""
    try:
        if closed := subject.state.notes.get("cordoned"):
            subject.cordon(closed, closed=False)
        _empty_volume(subject)
    except Exception as error:  # the stack never came up, or the cluster is gone: destroy all the same
        return f"; the volume was not emptied ({error})"
    return ""


def _empty_volume(subject: Subject) -> None:
    runs = [subject.state.notes["run"], f"{subject.state.notes['run']}-own"]
    folders = [f"{DATA}/{OWN}", *map(run_folder, runs), *map(dataset_folder, runs)]
    with command_pod(subject.target(), subject.stack.say, UNCHANGED) as pod:
        pod.run("rm", "-rf", *folders)


def leftovers(subject: Subject) -> str:
    if subject.state.is_up:
        raise AssertionError("the stack was not destroyed")
    cloud = proof_of(subject.config)
    if cloud is not None:
        looked, left = cloud.leftovers(subject.config, subject.stack.name)
    else:
        with asking("the objects of the cluster"):
            looked, left = _objects(subject)
    expect(not left, f"left: {', '.join(left)}")
    return f"nothing: looked at {looked}"


def _objects(subject: Subject) -> tuple[str, list[str]]:
    """Objects of the stack that an existing cluster still has, by their names."""
    api = connect(str(subject.config.cluster.context), subject.config.cluster.kubeconfig)
    core, rbac, other = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api), client.SchedulingV1Api(api)
    lists = {
        "Namespace": core.list_namespace,
        "PersistentVolume": core.list_persistent_volume,
        "ClusterRole": rbac.list_cluster_role,
        "ClusterRoleBinding": rbac.list_cluster_role_binding,
        "PriorityClass": other.list_priority_class,
    }
    found = [f"{kind} {item['metadata']['name']}" for kind, ask in lists.items() for item in as_json(ask)["items"]]
    had = subject.state.notes.get("objects", [])
    return f"{', '.join(lists)} of the cluster", [each for each in found if each in had]


def cost(subject: Subject) -> str:
    state, bill = subject.state, estimate(subject.config)
    if bill is None:
        raise Cannot("the stack uses an existing cluster: its owner pays")
    if state.billed_from is None:
        raise Cannot("nothing was made, so nothing is billed")
    hours = ((state.billed_to or time.time()) - state.billed_from) / 3600
    until = "" if state.billed_to else " so far, and rising"
    return (
        f"at most {state.spent():.2f} USD{until}: {hours:.2f} h at full size ({state.usd_per_hour:.2f} USD an hour; "
        f"{dollars(bill.at_rest)} without workers), list prices of {bill.date}, {bill.source}"
    )
