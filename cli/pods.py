"""The pods in which a stack's commands run, from its image and with its volume.

One pod of a stack stays warm: the first command makes it, the next find it, and it ends by itself when nothing has run
in it for some minutes (trainer/volume.py). A command that needs another place, more memory or a secret has a pod of its
own for as long as it runs. Everything goes through the API server with the rights of the user's kubeconfig, as `kubectl
exec`: nothing listens outside the cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE
from typing import Any

import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from cli import CommandError, last_line
from cli.cluster import GoneError, TrainingJob, as_json, asking, ends, why_waiting
from cli.programs import find
from cli.progress import Bar
from cli.target import Target
from trainer.plain import plain
from workloads.layout import VOLUME_ACCESS

#: Label of our pods, by which the next command removes those that ended.
LABEL = "trainyard/volume-access"
START_SECONDS = 300
"""A node's first pull of the image is several gigabytes."""
COMMAND_SECONDS = 300
LOOK_SECONDS = 4 * 3600
"""Of a look at the volume, or a removal: a network's file system takes a millisecond or more for each of its files."""
STOP_SECONDS = 15
ENDED = "command terminated with exit code"
"""Begins what kubectl adds to the words of a command that failed."""
Change = Callable[[dict[str, Any]], None]
"""What changes the specification of a pod."""
UNCHANGED: Change = lambda spec: None  # noqa: E731
"""For a pod of the command's own that is as the template says."""


@dataclass(frozen=True)
class Pod:
    """A pod in which commands run."""

    kubectl: tuple[str, ...]
    """kubectl with the context and namespace."""
    name: str

    def command(self, *words: str, tty: bool = False) -> list[str]:
        """The command of this machine that runs one in the pod, with its streams and exit code."""
        return [*self.kubectl, "exec", "-it" if tty else "-i", self.name, "--", *words]

    @contextmanager
    def stoppable(self, *words: str, tty: bool = False) -> Iterator[list[str]]:
        """The same, of a command that Ctrl-C or a time limit ends in the pod, too.

        A process of `kubectl exec` outlives kubectl: it would go on, and keep the pod.
        """
        note = f"/tmp/{uuid.uuid4().hex}"
        try:
            yield self.command("sh", "-c", f'echo $$ >{note}; exec "$@"', "sh", *words, tty=tty)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            stop = self.command("sh", "-c", f"kill -s INT -- -$(cat {note})")
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(stop, stdin=subprocess.DEVNULL, capture_output=True, timeout=STOP_SECONDS, check=False)
            raise

    def run(self, *words: str, seconds: float = COMMAND_SECONDS) -> tuple[int, str]:
        """Run a command to its end; return its exit code, and its output or, where it failed, what it says of it."""
        try:
            with self.stoppable(*words) as command:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
                )
        except subprocess.TimeoutExpired:
            return 1, f"{' '.join(words)}: not done after {seconds} s"
        output, said = (each.decode("utf-8", "replace") for each in (done.stdout, done.stderr))
        return done.returncode, output if done.returncode == 0 else "\n".join([output, *error_lines(said)])

    def tell(self, *words: str, seconds: float = COMMAND_SECONDS) -> str:
        """What a command tells. Raises CommandError where it fails."""
        code, text = self.run(*words, seconds=seconds)
        if code:
            raise CommandError(plain(last_line(text)))
        return text

    def ask(self, *arguments: str) -> list[dict[str, Any]]:
        """What `python -m trainer.volume` tells. Raises CommandError."""
        try:
            return json.loads(self.tell("python", "-m", "trainer.volume", *arguments, seconds=LOOK_SECONDS))
        except ValueError:
            raise CommandError("the connection to the cluster broke; run the same command again") from None

    @contextmanager
    def process(self, *words: str) -> Iterator[Any]:
        """A command with pipes to it, which has ended well when the block has. Raises CommandError with its reason."""
        with tempfile.TemporaryFile() as said:
            broken = False
            with (
                self.stoppable(*words) as command,
                # Ctrl-C is for this program alone: a chat ends by it, and kubectl would have failed.
                started(command, stdin=PIPE, stdout=PIPE, stderr=said, process_group=0) as process,
            ):
                try:
                    yield process
                except BrokenPipeError:  # it says why
                    broken = True
                code = process.wait()
            said.seek(0)
            lines = error_lines(said.read().decode("utf-8", "replace"))
        if code or broken:
            killed = "was killed, as for a lack of memory, or its pod was; run it again"
            raise CommandError(lines[-1] if lines else f"{words[2]} {killed if code == 137 else f'ended with {code}'}")
        for line in lines:
            if line.startswith("note: "):
                print(line, file=sys.stderr)

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """A new folder of the pod, outside the volume, which then goes: other commands use the pod too."""
        folder = f"/tmp/{uuid.uuid4().hex}"
        try:
            yield folder
        finally:
            self.run("rm", "-rf", folder)


def error_lines(said: str) -> list[str]:
    """The lines of an error output that say something, made plain."""
    return [plain(line) for line in said.splitlines() if line.strip() and not line.startswith(ENDED)]


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    process: Any = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        process.wait()


def kubectl_of(target: Target) -> tuple[str, ...]:
    """The beginning of a kubectl command in the namespace of a training. Raises CommandError without kubectl."""
    file = target.kubeconfig
    place = (f"--context={target.context}", f"--namespace={target.namespace}")
    # The variable takes a list of files, as everybody's does; the option takes one.
    return (*(("env", f"KUBECONFIG={file}") if file else ()), find("kubectl"), *place)


@contextmanager
def volume_pod(target: Target, change: Change | None = None) -> Iterator[tuple[Pod, Bar]]:
    """The pod of a command, as `command_pod` gives it, and a progress bar. Raises CommandError also for Ctrl-C."""
    kubectl_of(target)  # told before anything is shown
    try:
        with Bar() as bar, command_pod(target, bar.waiting, change) as pod:
            yield pod, bar
    except KeyboardInterrupt:
        raise CommandError("interrupted; run the same command again", code=130) from None


@contextmanager
def command_pod(target: Target, waiting: Callable[[str], None], change: Change | None = None) -> Iterator[Pod]:
    """The pod that the stack's commands share, made where none runs, or with a `change` one of the command's own.

    The shared one has the digest of the template in its name, so that one of an older image is left to end by itself.
    `change` gives the pod other resources, another place or more environment than the stack's template; that pod goes
    with the block. Raises CommandError: the stack has no PodTemplate, or the pod does not start.
    """
    kubectl, core = kubectl_of(target), TrainingJob.of(target).core
    template, name = template_of(core, target.namespace), uuid.uuid4().hex[:12]
    if change:
        change(template["spec"])
    else:
        name = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
    pod = Pod(kubectl, f"{VOLUME_ACCESS}-{name}")
    try:
        _start(core, target.namespace, pod.name, template, waiting)
        yield pod
    finally:
        if change:
            with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
                core.delete_namespaced_pod(pod.name, target.namespace, grace_period_seconds=1)


def template_of(core: client.CoreV1Api, namespace: str) -> dict[str, Any]:
    name = f"{namespace}/{VOLUME_ACCESS}"
    with asking(f"PodTemplate {name}", missing=f"the stack has no PodTemplate {name}; `pulumi up` brings it"):
        return as_json(core.read_namespaced_pod_template, VOLUME_ACCESS, namespace)["template"]


def _start(
    core: client.CoreV1Api, namespace: str, name: str, template: dict[str, Any], waiting: Callable[[str], None]
) -> None:
    """Wait until the pod of that name runs, and make it where there is none. Raises CommandError.

    One that does not start is removed: its own deadline counts from its start, and nodes would come for it.
    """
    what, found, own = f"pod {namespace}/{name}", dict[str, Any](), False
    labels = {**template["metadata"]["labels"], LABEL: "true"}
    made: Any = {"metadata": {"name": name, "labels": labels}, "spec": template["spec"]}
    end = time.monotonic() + START_SECONDS
    try:
        while True:
            try:
                with asking(what, missing=what):
                    found = as_json(core.read_namespaced_pod, name, namespace)
            except GoneError:
                found = {}
                with asking(what, verb="make"):
                    try:
                        core.create_namespaced_pod(namespace, made)
                        own = True
                    except ApiException as error:
                        if error.status != 409:  # another command has made it
                            raise
                continue
            phase = found["status"].get("phase")
            if phase in ("Succeeded", "Failed") or "deletionTimestamp" in found["metadata"]:
                if own:
                    raise CommandError(f"{what} ended at once: {last_words(found)}")
                _remove_ended(core, namespace)
            elif phase == "Running":
                return
            waiting(why_waiting([found]))
            if time.monotonic() > end:
                raise CommandError(f"{what} does not start: {why_waiting([found])}; it was removed")
            time.sleep(0.2)
    except BaseException:  # Ctrl-C as well
        if found.get("status", {}).get("phase") == "Pending":
            as_seen: Any = {"preconditions": {"resourceVersion": found["metadata"]["resourceVersion"]}}
            with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
                core.delete_namespaced_pod(name, namespace, body=as_seen)
        raise


def last_words(pod: dict[str, Any]) -> str:
    """Why a pod has ended, in its own words, else in those of the node."""
    for end in ends(pod):
        return (end.get("message") or "").strip() or end["reason"] or f"exit code {end['exitCode']}"
    return str(pod["status"].get("message") or pod["status"].get("reason") or "no reason given")


def _remove_ended(core: client.CoreV1Api, namespace: str) -> None:
    ended = "status.phase!=Pending,status.phase!=Running"
    with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
        core.delete_collection_namespaced_pod(namespace, label_selector=f"{LABEL}=true", field_selector=ended)
