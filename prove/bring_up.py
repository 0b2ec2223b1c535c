"""The steps up to a running training: the doctor, `pulumi up`, and checks of the machines."""

from __future__ import annotations

import json
import shlex
import time
from datetime import datetime
from typing import Any

from kubernetes import client

from cli.doctor import diagnose, summary
from faults.fault import Cannot, expect
from prove.subject import Subject
from trainer.plain import counted

FALL = 1.5
"""Nats that the loss must fall below a uniform guess among all tokens. Token frequencies alone bring 3 with GPT-2's
tokens, and 1.1 with 1,024 that are learnt from the sample."""
GPU = "nvidia.com/gpu"


def doctor(subject: Subject) -> str:
    found = list(diagnose(subject.stack.name, subject.stack.values))
    problems = [f"{each} ({each.fix})" for each in found if each.level == "problem"]
    # Advice names the user's stack, whose settings also hold for its proof.
    expect(not problems, "; ".join(problems).replace(f"--stack {subject.stack.name}", f"--stack {subject.name}"))
    doubts = [f"{each}" for each in found if each.level != "ok"]
    return "; ".join([f"{counted(len(found), 'check')}, {summary(found)}", *doubts])


def up(subject: Subject) -> str:
    stack, state = subject.stack, subject.state
    state.billed_from = state.billed_from or time.time()
    clock = time.monotonic()
    stack.init()
    stack.up()
    minutes = (time.monotonic() - clock) / 60
    outputs = stack.outputs()
    if command := outputs.get("credentialsCommand"):
        stack.change(shlex.split(command))
    state.notes["gpuCheck"] = json.loads(outputs.get("gpuCheck") or "{}")
    version: Any = client.VersionApi(subject.api()).get_code()
    state.notes["kubernetes"] = version.git_version
    state.notes["pulumi"] = stack.run(["pulumi", "version"]).stdout.strip()
    return f"{counted(len(stack.resources()), 'resource')} in {minutes:.1f} min"


def nodes_from_zero(subject: Subject) -> str:
    """Every worker's node was made after the first pod that asked for one."""
    if subject.config.nodes is None:
        raise Cannot("an existing cluster gets no new nodes")
    asked = [pod for name in ("gpu-check", "trainer") for pod in subject.pods(f"app.kubernetes.io/component={name}")]
    first = min(_time(pod["metadata"]["creationTimestamp"]) for pod in asked)
    nodes = [subject.node(name) for name in sorted({pod["spec"]["nodeName"] for pod in subject.worker_pods()})]
    late = [
        f"{node['metadata']['name']} {_time(node['metadata']['creationTimestamp']) - first:.0f} s" for node in nodes
    ]
    early = [node["metadata"]["name"] for node in nodes if _time(node["metadata"]["creationTimestamp"]) < first]
    expect(not early, f"{', '.join(early)} existed before the first pod asked for a node")
    return f"{counted(len(nodes), 'node')} came after the first pod that asked: {', '.join(late)}"


def accelerators(subject: Subject) -> str:
    wanted = subject.config.workers.gpus
    if not wanted:
        raise Cannot("the stack asks for no accelerators")
    names = sorted({pod["spec"]["nodeName"] for pod in subject.worker_pods()})
    offered = {name: int(subject.node(name)["status"]["allocatable"].get(GPU, 0)) for name in names}
    expect(min(offered.values()) >= wanted, f"{GPU} on the nodes: {offered}, wanted {wanted}")
    seen = subject.state.notes["gpuCheck"].get("nodes") or []
    found = [f"{node['node']}: driver {node.get('driver')}, {', '.join(node['accelerators'])}" for node in seen]
    short = [node["node"] for node in seen if len(node["accelerators"]) < wanted]
    expect(bool(seen) and not short, f"in the check's pods nvidia-smi shows too few: {'; '.join(found) or 'no result'}")
    return f"{GPU} {offered}; {'; '.join(found)}"


def exchange(subject: Subject) -> str:
    """The bandwidth of the node check's all-reduce reaches what the machine type should give."""
    found = subject.state.notes["gpuCheck"]
    expect(bool(found), "the node check left no result")
    expect(found["correct"], "the all-reduce gave a wrong sum")
    nodes = len({node["node"] for node in found["nodes"]})
    measured, should = found["bus_gigabytes_per_second"], found.get("expected_bus_gigabytes_per_second")
    told = (
        f"{measured:g} GB/s on the bus ({found['backend']}, {counted(found['processes'], 'process', 'processes')}, "
        f"{found['megabytes']} MB, right sum); shared volume {found['storage_megabytes_per_second']:g} MB/s"
    )
    if nodes < 2:
        raise Cannot(f"the pods are on one node, so nothing crossed between nodes; in it: {told}")
    if not should:
        raise Cannot(f"no figure is known for these machines; measured over {nodes} nodes: {told}")
    expect(measured >= should, f"below the {should:g} GB/s that the machine type should give: {told}")
    return f"{told}; at least {should:g} expected"


def training(subject: Subject) -> str:
    """The loss falls well below that of the untrained model, which guesses among all its tokens."""
    first = subject.steps_on(subject.count, 1800)
    guess = first.figures["initial_validation_loss"]

    def fallen() -> Any:
        found = subject.training()
        subject.stack.say(f"step {found.figures.get('step', '-')}, loss {found.figures.get('loss', '-')}")
        return found if found.figures.get("loss", guess) < guess - FALL else None

    last = subject.until(fallen, 1200, f"a loss below {guess - FALL:.1f}")
    expect(last.figures["step"] > first.figures["step"], "no step was made")
    speed = last.figures.get("tokens_per_second")
    return (
        f"loss {first.figures.get('loss', guess):.2f} at step {first.figures['step']}, {last.figures['loss']:.2f} at "
        f"step {last.figures['step']} (untrained: {guess:.2f}), {counted(subject.count, 'worker')}"
        + (f", {speed:,.0f} tokens/s" if speed else "")
    )


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
