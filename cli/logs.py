"""The log of rank 0, or of one pod: `python -m cli.logs --stack local [--pod N] [--follow]`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from cli.follow import stack_options, target_of
from cli.state import INDEX, first_pod
from cli.status import job_and_pods, log, with_logs
from cli.watch import UnreachableError, connect


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.logs", description="The log of rank 0, or of one pod.")
    stack_options(parser, "training")
    parser.add_argument("--pod", type=int, metavar="N", help="index of the pod (default: where rank 0 is, or was)")
    parser.add_argument("--follow", action="store_true", help="go on with new lines until the pod ends")
    options = parser.parse_args(arguments)
    try:
        target = target_of(options.stack)
        api = connect(target.context, options.kubeconfig)
        core, batch = client.CoreV1Api(api), client.BatchV1Api(api)
        _, pods = job_and_pods(core, batch, target)
        started = [pod for pod in pods if pod["metadata"]["name"] in with_logs(pods)]
        name = choose(started, options.pod, lambda pod: log(core, target, pod))
        answer: Any = core.read_namespaced_pod_log(
            name, target.namespace, follow=options.follow, _preload_content=False
        )
        for chunk in answer.stream(decode_content=True):
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
    except (LookupError, UnreachableError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (ApiException, urllib3.exceptions.HTTPError) as error:
        print(f"error: the log cannot be read: {getattr(error, 'reason', error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def choose(pods: list[dict[str, Any]], index: int | None, read: Any) -> str:
    """The newest pod of an index, else the one of rank 0, else the newest of all. Raises LookupError."""
    pods = sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
    if index is not None:
        there = {int(pod["metadata"]["labels"][INDEX]): pod["metadata"]["name"] for pod in pods}
        if index not in there:
            known = ", ".join(map(str, sorted(there))) or "none yet"
            raise LookupError(f"no pod {index} has started; there are: {known}")
        return there[index]
    if not pods:
        raise LookupError("no pod has started yet; `python -m cli.status` says what they wait for")
    return (
        first_pod(pods, {pod["metadata"]["name"]: read(pod["metadata"]["name"]) for pod in pods})
        or (pods[-1]["metadata"]["name"])
    )


if __name__ == "__main__":
    sys.exit(main())
