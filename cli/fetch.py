"""Download a run: model, metrics, report.

Fetches the model of the newest complete checkpoint, in the form that transformers loads, the metrics, TensorBoard's
files, and the report page, which is made in the cluster. Files that are here in the same version are skipped.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from cli import CommandError
from cli.compare import best as best_of
from cli.programs import find_rsync
from cli.progress import Bar
from cli.reach import REPORT, SCRATCH, make_report, transfer
from cli.runs import RunName
from cli.target import Kubeconfig, RunningStack, TrainingName, target_of, targets_of
from cli.transfer import Volume, get
from trainer.contract import MANIFEST, checkpoint_step
from trainer.plain import counted, plain
from workloads.layout import is_on_hub, run_folder

HOME = Path("runs")
MODEL = "model"
OWN = (MODEL, "config.yaml", MANIFEST)
"""What comes from the newest checkpoint. The manifest makes the folder open as a run (trainer/checkpoint/format.py)."""
NOTE = ".fetched.json"
"""In a fetched folder: which run it is. Nothing hidden is fetched, so no volume writes it."""
NEW = ".newer"
"""In a fetched folder: the model that takes the place of an older one when all of it has come."""


def fetch(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    run: RunName = None,
    best: Annotated[bool, typer.Option("--best", help="The training that `trainyard compare` ranks first.")] = False,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help=f"Default: {HOME}/NAME.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every checkpoint, with optimizer state.")] = False,
) -> None:
    find_rsync()  # before a pod is made
    if best:
        if run or training:
            raise CommandError("--best chooses the run; leave out --run and --training", code=2)
        targets = targets_of(stack)
        with transfer(targets[0], kubeconfig) as (volume, _, _):
            first, left_out = best_of(volume, targets)
            run = first.name
        for line in left_out:
            print(f"--best: {plain(line)}")
    target = target_of(stack, training, run)
    remote = run_folder(run) if run else str(target.run_directory)
    folder = (to or HOME / PurePosixPath(remote).name).expanduser()
    note = {"context": target.context, "namespace": target.namespace, "run": remote}
    refuse_another(folder, note)
    given = {"--stack": stack, "--training": training, "--run": run, "--to": to, "--kubeconfig": kubeconfig}
    words = [word for key, value in given.items() if value for word in (key, str(value))]
    again = shlex.join(["trainyard", "fetch", *words, *(["--all"] if everything else [])])
    with transfer(target, kubeconfig) as (volume, pod, bar):
        found = volume.find(remote)
        chosen, step = select(found.files, remote, everything)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NOTE).write_text(json.dumps(note), "utf-8")
        bar.waiting("making the report")
        problem = make_report(pod, remote)
        chosen[REPORT] = volume.find(f"{SCRATCH}/{REPORT}").files
        bar.total(sum(map(len, chosen.values())), sum(sum(files.values()) for files in chosen.values()))
        bring(volume, remote, chosen, folder, bar)
    print(f"{counted(sum(map(len, chosen.values())), 'file')} of {plain(remote)} in {folder}")
    for name, kind in sorted(found.odd.items()):
        print(f"  left out: '{plain(name)}' ({kind})")
    if problem:
        print(f"  no report: {plain(problem)}")
    else:
        print(f"  report: {folder / REPORT / 'index.html'}")
    if step is None:
        print(
            f"  no model yet: {remote} has no complete checkpoint; once `trainyard status --stack {stack}` shows one, "
            f"fetch it with the same command: {again}"
        )
    elif everything:
        print(
            f"  model:  the newest of {len(complete_checkpoints(found.files))} checkpoints is {folder / step / MODEL}"
        )
    elif (folder / MODEL).is_dir():
        print(f"  model:  {folder / MODEL}  ({plain(how_to_load(folder / MODEL))})")


def refuse_another(folder: Path, note: dict[str, Any]) -> None:
    """Raise CommandError for a target that holds anything but this run, before anything is changed."""
    to = f"--to {folder}"
    for above in (folder, *folder.parents):
        if above.exists() and not above.is_dir():
            raise CommandError(f"{to}: {above} is a file; give a folder that is new, empty or of this run", code=2)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        known = json.loads((folder / NOTE).read_text("utf-8"))
        there = f"holds the run {known['run']} of {known['namespace']} in {known['context']}"
    except (OSError, ValueError, KeyError, TypeError):
        known, there = None, "holds other files"
    if known != note:
        raise CommandError(f"{to}: {there}; give a folder that is new, empty or of {note['run']}", code=2)


def how_to_load(model: Path) -> str:
    """The function that loads the folder: of transformers, or of peft for an adapter."""
    try:
        base = str(json.loads((model / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"])
    except FileNotFoundError:
        return "transformers.AutoModelForCausalLM.from_pretrained"
    if is_on_hub(base):
        return f"an adapter of {base}: peft.AutoPeftModelForCausalLM.from_pretrained"
    return f"an adapter of {base} on the volume: peft.PeftModel.from_pretrained, with that model and this folder"


def select(found: dict[str, int], run: str, everything: bool) -> tuple[dict[str, dict[str, int]], str | None]:
    """The files to fetch by the folder of the run in which they are, and that of the newest complete checkpoint.

    Raises CommandError when there is no run.
    """
    if not found:
        raise CommandError(f"{run}: the run has no files yet; see `trainyard status`, or name another run with --run")
    complete = complete_checkpoints(found)
    newest = complete[max(complete)] if complete else None
    if everything:
        return {"": found}, newest
    # A file of the run's folder must not take the place of the checkpoint's, or of the report's.
    taken = ("checkpoints", REPORT, *OWN)
    others = {name: size for name, size in found.items() if PurePosixPath(name).parts[0] not in taken}
    if newest is None:
        return {"": others}, None
    inside = {name.removeprefix(f"{newest}/"): size for name, size in found.items() if name.startswith(f"{newest}/")}
    return {"": others, newest: {n: s for n, s in inside.items() if PurePosixPath(n).parts[0] in OWN}}, newest


def bring(volume: Volume, run: str, chosen: dict[str, dict[str, int]], folder: Path, bar: Bar) -> None:
    """Fetch each group of files to its place. Raises TransferError."""
    for place, files in chosen.items():
        if place == REPORT:
            get(volume, f"{SCRATCH}/{REPORT}", files, folder / REPORT, bar)
        elif not place or _step(folder) == place:
            get(volume, f"{run}/{place}".rstrip("/"), files, folder, bar)
        else:  # whole, then renamed: an interrupted fetch must not leave parts of two steps side by side
            for older in folder.glob(f"{NEW}-*"):
                if older.name != f"{NEW}-{PurePosixPath(place).name}":
                    shutil.rmtree(older)
            newer = folder / f"{NEW}-{PurePosixPath(place).name}"
            get(volume, f"{run}/{place}", files, newer, bar)
            for name in OWN:
                shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
                if (newer / name).exists():
                    (newer / name).rename(folder / name)
            shutil.rmtree(newer)


def _step(folder: Path) -> str | None:
    """The folder of the checkpoint that was fetched before."""
    try:
        return f"checkpoints/step-{int(json.loads((folder / MANIFEST).read_text('utf-8'))['step']):08d}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def complete_checkpoints(found: Iterable[str]) -> dict[int, str]:
    """Step -> folder of each complete checkpoint among the files of a run."""
    folders = {PurePosixPath(name).parent for name in found if PurePosixPath(name).name == MANIFEST}
    steps = {folder: checkpoint_step(folder.name) for folder in folders if folder.parts[:-1] == ("checkpoints",)}
    return {step: str(folder) for folder, step in steps.items() if step is not None}
