"""Run benchmarks of lm-evaluation-harness on a run's checkpoint, in the cluster.

A Job on a worker node, with the resources of one worker, evaluates the model. It is removed minutes after its end, and
the autoscaler takes the node back. The results stay in the run's folder: `trainyard fetch` downloads them with the
report. The same command again returns to a running evaluation.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any

import typer

from cli import CommandError, last_line
from cli.cluster import SilentError, TrainingJob, as_json, asking, end_of, started, why_waiting
from cli.follow import OUTAGE_SECONDS, POLL_SECONDS
from cli.logs import print_after
from cli.model_pod import words
from cli.pods import last_words, template_of, volume_pod
from cli.runs import RunName, trained
from cli.target import Kubeconfig, RunningStack, TrainingName, target_of
from cli.worker_node import move, worker_pod
from trainer.contract import EVALUATIONS
from trainer.plain import plain
from workloads.layout import DATA

#: Selects the dataset Job.
DATASET = "app.kubernetes.io/component=dataset,app.kubernetes.io/managed-by=pulumi"
#: Label of the Job: a hash of its pod.
EVALUATION = "trainyard/evaluation"
#: Seconds from the Job's end until it and its log are removed.
KEPT_SECONDS = 600
LONGEST_SECONDS = 24 * 3600
#: Seconds between two lines of progress: a log shows whole lines only.
PROGRESS_SECONDS = 10


def evaluate(
    tasks: Annotated[str, typer.Option(metavar="NAME,...", help="Such as hellaswag,lambada_openai.")],
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    step: Annotated[int | None, typer.Option(metavar="N", help="Default: the newest checkpoint.")] = None,
    run: RunName = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N examples of each.")] = None,
    shots: Annotated[int | None, typer.Option(metavar="N", min=0, help="Examples before a question.")] = None,
    include: Annotated[
        str | None, typer.Option(metavar="FOLDER", help=f"Tasks of your own under {DATA}: YAML without Python.")
    ] = None,
) -> int:
    names = ",".join(filter(None, (name.strip() for name in tasks.split(","))))
    if not names:
        raise CommandError("--tasks: empty; give names such as hellaswag,lambada_openai", code=2)
    target = target_of(stack, training, run, kubeconfig)
    training_job = TrainingJob.of(target)
    job, _ = training_job.read()
    elsewhere = "evaluate the model elsewhere: `trainyard fetch`, then python -m trainer.evaluate"
    worker = worker_pod(job, "an evaluation needs a node", elsewhere)
    folder = str(target.run_directory)
    with volume_pod(target) as (pod, _):
        complete = trained(pod, folder).checkpoints
    if step is not None and step not in complete:
        raise CommandError(f"--step {step}: no such checkpoint; there are: {', '.join(map(str, complete))}", code=2)
    chosen = complete[-1] if step is None else step
    own_tasks = str(PurePosixPath(DATA, include)) if include else None
    options = words(run=folder, step=chosen, tasks=names, limit=limit, shots=shots, include=own_tasks)
    template = template_of(training_job.core, training_job.namespace)
    made = manifest(template, worker, options, hub_token(training_job))
    if job["status"].get("active"):
        print("The training runs: the evaluation waits until a node has room for it, or the training has ended.")
    own = replace(training_job, target=replace(target, job=start(training_job, made)))
    try:
        end, pods = _print_log(own)
    except KeyboardInterrupt:
        print("\nThe evaluation continues; the same command returns to it while it runs.")
        return 130
    if end["type"] != "Complete":
        said = [last_line(last_words(pod)) for pod in pods if pod["status"].get("phase") == "Failed"]
        raise CommandError(f"the evaluation failed: {said[-1] if said else end.get('message')}")
    fetch = f"trainyard fetch --stack {stack}" + (f" --run {run}" if run else target.option)
    print(f"In {folder}/{EVALUATIONS}; `{fetch}` downloads it with the report.")
    return 0


def _print_log(job: TrainingJob) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Print what the Job waits for, then its log, until it has ended; return its end and its pods."""
    told = newest = ""
    heard = time.monotonic()
    while True:
        with contextlib.suppress(SilentError):
            found, pods = job.read()
            heard = time.monotonic()
            if there := started(pods):
                newest = print_after(newest, job, there[-1]["metadata"]["name"])
            elif (text := why_waiting(pods, "" if pods else job.refusal())) != told:
                print(plain(told := text), flush=True)
            if (end := end_of(found)).get("type") in ("Complete", "Failed"):
                return end, pods
        if time.monotonic() - heard > OUTAGE_SECONDS:
            job.read()  # raises
        time.sleep(POLL_SECONDS)


def hub_token(training: TrainingJob) -> list[dict[str, Any]]:
    """Where the dataset Job has the hub's token from, as `env` of a container; empty without one."""
    with asking("the dataset Job"):
        jobs = as_json(training.batch.list_namespaced_job, training.namespace, label_selector=DATASET)["items"]
    containers = [each for job in jobs for each in job["spec"]["template"]["spec"]["containers"]]
    return [item for each in containers for item in each.get("env") or [] if item["name"] == "HF_TOKEN"][:1]


def manifest(
    template: dict[str, Any], worker: dict[str, Any], options: list[str], token: list[dict[str, Any]]
) -> dict[str, Any]:
    """The evaluation Job: a pod of the stack's template (workloads/storage.py), with the node and resources of a
    worker's pod. A Job waits for room and goes on without this machine; a pod with a command in it would not.

    `options` are those of trainer.evaluate; `token` is that of the hub. The name has a hash of the pod, so a different
    evaluation is another Job, and a label of that hash.
    """
    spec = copy.deepcopy(template["spec"])
    move(spec, worker)
    own = worker["containers"][0]
    environment = [item for item in own.get("env") or [] if "value" in item and not item["name"].startswith("ETCD")]
    environment += [
        *token,
        {"name": "HF_HUB_OFFLINE", "value": "0"},
        {"name": "TQDM_MININTERVAL", "value": str(PROGRESS_SECONDS)},
    ]
    arguments = [*interpreter(own.get("args") or []), "trainer.evaluate", *options]
    spec["containers"][0] |= {"name": "evaluate", "args": arguments, "env": environment}
    # Counts from the pod's start; the Job's own deadline would count while it waits for a node.
    spec["activeDeadlineSeconds"] = LONGEST_SECONDS
    labels = template["metadata"]["labels"] | {"app.kubernetes.io/managed-by": "trainyard"}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "metadata": {"generateName": f"evaluate-{digest}-", "labels": {**labels, EVALUATION: digest}},
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
                },
                "spec": spec,
            },
        },
    }


def interpreter(arguments: list[str]) -> list[str]:
    """The command before the module: a worker's processes, each with its own device, share the examples."""
    processes = dict(pairwise(arguments)).get("--nproc-per-node", "1")
    if processes == "1":
        return ["python", "-m"]
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    return [*torchrun, "--nproc-per-node", processes, "-m", "--"]


def start(training: TrainingJob, made: dict[str, Any]) -> str:
    """The name of the Job that runs this evaluation, which is made unless there is one. Raises CommandError."""
    batch: Any = training.batch
    digest, namespace = made["metadata"]["labels"][EVALUATION], training.namespace
    with asking(f"the evaluations of {namespace}"):
        jobs = as_json(batch.list_namespaced_job, namespace, label_selector=f"{EVALUATION}={digest}")["items"]
    if running := [job for job in jobs if not end_of(job)]:
        return running[0]["metadata"]["name"]
    with asking("an evaluation's Job", verb="make"):
        return as_json(batch.create_namespaced_job, namespace, made)["metadata"]["name"]
