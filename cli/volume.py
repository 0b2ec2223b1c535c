"""`trainyard ls`, `du` and `rm`: what is on a stack's shared volume, what takes its space, and its removal."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from cli import CommandError
from cli.cluster import TrainingJob, as_json, asking, end_of
from cli.pods import volume_pod
from cli.progress import age
from cli.target import Kubeconfig, RunningStack, targets_of
from trainer.plain import plain
from workloads.layout import CONFIGURED, DATA

Place = Annotated[str, typer.Argument(metavar="PATH", help=f"Under {DATA}. Default: {DATA} itself.")]
ROOTS = (".", "runs", "datasets", "models")
"""Folders of the volume that hold what is listed, and are never removed themselves."""
WIDE = 200
"""Characters of a line where no terminal shows it: another program reads it."""


def ls(path: Place = "", stack: RunningStack = "", kubeconfig: Kubeconfig = None) -> None:
    """Hidden names, which are incomplete files and notes, are left out; `trainyard du` has them."""
    found, _ = entries(path, stack, kubeconfig)
    shown = [item for item in found if not item["name"].startswith(".")]
    show(_table(shown))
    if not shown:
        print(f"{below(path)} is empty")


def du(path: Place = "", stack: RunningStack = "", kubeconfig: Kubeconfig = None) -> None:
    """The largest first, with all that is below it on the disk, then the space that is left."""
    found, space = entries(path, stack, kubeconfig)
    show(_table(sorted(found, key=lambda item: -item["bytes"])))
    total = f"{decimal(sum(item['bytes'] for item in found))} in {below(path)}"
    left = f"; {decimal(space['free'])} of the volume's {decimal(space['size'])} are free" if space else ""
    print(f"{total}{left}")


def rm(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help=f"Under {DATA}, such as runs/NAME.")],
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """A run that trains, and what a training or its data set's Job uses, are refused. It asks first."""
    names = list(dict.fromkeys(removable(path) for path in paths))
    targets = targets_of(stack, kubeconfig)
    target = targets[0]
    job = TrainingJob.of(target)
    refuse_used(names, users(job))
    for each in targets:
        if each.run_directory and any(PurePosixPath(DATA, name).is_relative_to(each.run_directory) for name in names):
            own = f"of training {each.training} of stack {stack}" if each.training else f"of stack {stack}"
            print(f"{each.run_directory} is the run {own}: `compare`, `fetch` and `sample` will miss it")
    with volume_pod(target) as (pod, _):
        found = [_entry(item) for item in pod.ask("removable", DATA, *names)]
    show(_table(found))
    if not (yes or _agreed(f"Remove {decimal(sum(item['bytes'] for item in found))} for good?")):
        raise CommandError("nothing was removed")
    refuse_used(names, users(job))  # the question may have waited for hours, and the pod may be another
    with volume_pod(target) as (pod, _):
        for item in map(_entry, pod.ask("remove", DATA, *names)):
            print(f"removed {DATA}/{item['name']}: {decimal(item['bytes'])}")


def entries(path: str, stack: str, kubeconfig: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The entries of a folder of the volume, and the space of its file system; none for a file."""
    place = below(path)
    with volume_pod(targets_of(stack, kubeconfig)[0]) as (pod, _):
        found = pod.ask("entries", place)
    return [_entry(item) for item in found if "name" in item], next((item for item in found if "free" in item), {})


def _entry(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "name": plain(told["name"]), "kind": plain(told["kind"])}


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
    configured = {each["metadata"]["name"]: each.get("data") or {} for each in maps}
    found: dict[str, str] = {}
    for each in jobs:
        template, name, how = each["spec"]["template"], each["metadata"]["name"], end_of(each).get("type")
        pod = template["spec"]
        words = [
            word for one in [*(pod.get("initContainers") or []), *pod["containers"]] for word in one.get("args") or []
        ]
        if how in ("Complete", "Failed"):
            prepares = (template["metadata"].get("labels") or {}).get("app.kubernetes.io/component") == "dataset"
            kept = prepares and how == "Complete"
            words = [word for before, word in itertools.pairwise(words) if kept and before == "--output"]
        else:
            named = [volume["configMap"]["name"] for volume in pod.get("volumes") or [] if volume["name"] == CONFIGURED]
            words += [text for each_map in named for text in configured.get(each_map, {}).values()]
        for path in (path for word in words for path in re.findall(rf"{DATA}/[^'\"\n]+", word)):
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


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("name", overflow="fold")
    for column in ("size", "files", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    for item in found:
        name = item["name"] + {"folder": "/", "file": ""}.get(item["kind"], f"  ({item['kind']})")
        table.add_row(Text(name), decimal(item["bytes"]), f"{item['files']:,}", age(item["age"]))
    return table


def show(table: Table) -> None:
    """Print a table, as wide as the terminal, or so that each row is a line."""
    if table.row_count:
        Console(width=None if sys.stdout.isatty() else WIDE, highlight=False).print(table)
