"""`trainyard ls`, `du` and `rm`: what is on a stack's shared volume, what takes its space, and its removal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated

import typer
from rich.filesize import decimal

from cli import CommandError, last_line
from cli.cluster import TrainingJob, as_json, asking, end_of
from cli.pods import LOOK_SECONDS, Pod, volume_pod
from cli.target import Kubeconfig, RunningStack, targets_of
from trainer.plain import plain
from workloads.layout import CONFIGURED, DATA

Place = Annotated[str, typer.Argument(metavar="PATH", help=f"Under {DATA}. Default: {DATA} itself.")]
ROOTS = (".", "runs", "datasets", "models")
"""Folders of the volume that hold what is listed, and are never removed themselves."""


def ls(path: Place = "", stack: RunningStack = "", kubeconfig: Kubeconfig = None) -> None:
    """Hidden names, which are incomplete files and notes, are left out; `trainyard du` has them."""
    place = below(path)
    with volume_pod(targets_of(stack, kubeconfig)[0]) as (pod, _):
        told = pod.tell("ls", "-gohpb", "--time-style=long-iso", "--", place)
    print(plain(told), end="")


def du(path: Place = "", stack: RunningStack = "", kubeconfig: Kubeconfig = None) -> None:
    """The largest first, with all that is below it on the disk, then the space that is left."""
    place = below(path)
    with volume_pod(targets_of(stack, kubeconfig)[0]) as (pod, _):
        found = _sizes(pod, place, depth=1)
        free, size = pod.tell("df", "--block-size=1", "--output=avail,size", "--", place).split()[-2:]
    print("\n".join(found))
    print(f"{decimal(int(free))} of the volume's {decimal(int(size))} are free")


def rm(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help=f"Under {DATA}, such as runs/NAME.")],
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """A run that trains, and what a training or its data set's Job uses, are refused. It asks first."""
    names = list(dict.fromkeys(removable(path) for path in paths))
    places = [f"{DATA}/{name}" for name in names]
    targets = targets_of(stack, kubeconfig)
    job = TrainingJob.of(targets[0])
    refuse_used(names, users(job))
    for each in targets:
        if each.run_directory and any(PurePosixPath(place).is_relative_to(each.run_directory) for place in places):
            own = f"of training {each.training} of stack {stack}" if each.training else f"of stack {stack}"
            print(f"{each.run_directory} is the run {own}: `compare`, `fetch` and `sample` will miss it")
    with volume_pod(targets[0]) as (pod, _):
        print("\n".join(_sizes(pod, *places)))
    if not (yes or _agreed("Remove this for good?")):
        raise CommandError("nothing was removed")
    refuse_used(names, users(job))  # the question may have waited for hours, and the pod may be another
    with volume_pod(targets[0]) as (pod, _):
        pod.ask("remove", DATA, *names)
    print(f"removed {plain(', '.join(places))}")


def _sizes(pod: Pod, *places: str, depth: int = 0) -> list[str]:
    """Size on the disk, last change and path of each place and of what is below it, the largest first.

    What may not be listed is named on stderr. Raises CommandError for what is not there.
    """
    options = ("-0", "--all", f"--max-depth={depth}", "--block-size=1", "--time", "--time-style=long-iso", "--")
    code, text = pod.run("du", *options, *places, seconds=LOOK_SECONDS)
    *rows, said = text.split("\0")
    if not rows:
        raise CommandError(plain(last_line(said)))
    if code:
        print(plain(said.strip()), file=sys.stderr)
    found = sorted((row.split("\t", 2) for row in rows), key=lambda row: -int(row[0]))
    return [f"{decimal(int(size)):>9}  {changed}  {plain(path)}" for size, changed, path in found]


def below(path: str) -> str:
    """A path of the volume as pods see it, of one that is given with or without /data. Raises CommandError."""
    inside = PurePosixPath(DATA, path)
    if ".." in inside.parts or not inside.is_relative_to(DATA) or "\0" in path:
        raise CommandError(f"{path}: leads out of {DATA}; give a path such as runs/NAME", code=2)
    return str(inside)


def removable(path: str) -> str:
    """The path below /data. Raises CommandError for one that must not be removed whatever it holds."""
    name = str(PurePosixPath(below(path)).relative_to(DATA))
    if name in ROOTS:
        raise CommandError(
            f"{path or repr(path)}: holds everybody's files; name what is to go, as in runs/NAME", code=2
        )
    return name


def users(job: TrainingJob) -> dict[str, str]:
    """Path on the volume -> the Job that still needs it: all that its pods and its configuration name.

    Pulumi takes what a data set's Job has prepared as there, so that stays when the Job has ended.
    """
    with asking(f"the Jobs of {job.namespace}"):
        jobs = as_json(job.batch.list_namespaced_job, job.namespace)["items"]
        maps = as_json(job.core.list_namespaced_config_map, job.namespace)["items"]
    configured = {each["metadata"]["name"]: list((each.get("data") or {}).values()) for each in maps}
    found: dict[str, str] = {}
    for each in jobs:
        template, name, how = each["spec"]["template"], each["metadata"]["name"], end_of(each).get("type")
        pod = template["spec"]
        containers = [*(pod.get("initContainers") or []), *pod["containers"]]
        words = [word for container in containers for word in container.get("args") or []]
        if how in ("Complete", "Failed"):
            prepares = (template["metadata"].get("labels") or {}).get("app.kubernetes.io/component") == "dataset"
            words = [word for before, word in pairwise(words) if before == "--output" and prepares and how != "Failed"]
        else:
            named = [volume["configMap"]["name"] for volume in pod.get("volumes") or [] if volume["name"] == CONFIGURED]
            words += [text for each_map in named for text in configured.get(each_map, [])]
        for path in re.findall(rf"{DATA}/[^'\"\n\\]+", json.dumps(words, ensure_ascii=False)):
            found.setdefault(path.rstrip("/"), f"Job {name}" + (", stopped," if how == "Stopped" else ""))
    return found


def refuse_used(names: Iterable[str], used: dict[str, str]) -> None:
    """Raise CommandError for a path that somebody uses, that is in one, or that holds one."""
    for name in names:
        path = PurePosixPath(DATA, name)
        for place, who in used.items():
            if path.is_relative_to(place) or PurePosixPath(place).is_relative_to(path):
                raise CommandError(f"{name}: {who} uses {place}; nothing was removed")


def _agreed(question: str) -> bool:
    """Ask a person. Raises CommandError where there is none."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask; nothing was removed. To do it: --yes", code=2)
    return typer.confirm(question)
