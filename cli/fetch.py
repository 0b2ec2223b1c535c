"""Download a run: model, metrics, report.

Fetches the model of the newest complete checkpoint, in the form that transformers loads, the metrics, TensorBoard's
files, and the report page, which is made in the cluster. Files that are here in the same version are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cli import CommandError
from cli.compare import best as best_of
from cli.compare import bring_report
from cli.pods import Pod, volume_pod
from cli.programs import find_rsync
from cli.progress import Bar
from cli.rsync import bring
from cli.runs import Run, RunName, read
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, target_of, targets_of
from trainer.contract import MANIFEST, checkpoint_name
from trainer.plain import counted, plain
from workloads.layout import is_on_hub

HOME = Path("runs")
MODEL, REPORT = "model", "report"
OWN = (MODEL, "config.yaml", MANIFEST)
"""What comes from the newest checkpoint. The manifest makes the folder open as a run (trainer/checkpoint/format.py)."""
NOTE = ".fetched"
"""In a fetched folder: what it is. Nothing hidden is fetched, so no volume writes it."""


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
        targets = targets_of(stack, kubeconfig)
        with volume_pod(targets[0]) as (pod, _):
            first, left_out = best_of(pod, targets)
            run = first.name
        for line in left_out:
            print(f"--best: {plain(line)}")
    target = target_of(stack, training, run, kubeconfig)
    remote, folder = str(target.run_directory), to or HOME / target.run
    claim(folder, target, remote)
    with volume_pod(target) as (pod, bar):
        found = read(pod, {}, target.run)
        if not found:
            raise CommandError(
                f"{remote}: the run has no files yet; see `trainyard status`, or name another run with --run"
            )
        files, left_out = bring_run(pod, remote, found[0], folder, bar, everything)
        problem = bring_report(pod, bar, folder / REPORT, remote)
    print(f"{remote} is in {folder} ({counted(files, 'file')} new or changed)")
    for name in left_out:
        print(f"  left out: '{name}' (a link, or no file)")
    print(f"  no report: {plain(problem)}" if problem else f"  report: {folder / REPORT / 'index.html'}")
    newest = found[0].checkpoint
    model = folder / MODEL
    if everything and newest is not None:
        model = folder / "checkpoints" / checkpoint_name(newest) / MODEL
    print(
        f"  model:  {model}  ({plain(how_to_load(model))})"
        if newest is not None
        else "  no model yet: the run has no complete checkpoint; the same command again fetches it, once `trainyard "
        f"status --stack {stack}` shows one"
    )


def claim(folder: Path, target: Target, what: str) -> None:
    """Make a folder of this machine and note what it is for. Raises CommandError for one that holds anything else."""
    note, file = f"{what} of {target.namespace} in {target.context}", folder / NOTE
    folder.mkdir(parents=True, exist_ok=True)
    there = file.read_text("utf-8", "replace") if file.is_file() else "other files"
    if there != note and any(each != file for each in folder.iterdir()):
        raise CommandError(
            f"--to {folder}: holds {plain(there)}; give a folder that is new, empty or of {what}", code=2
        )
    file.write_text(note, "utf-8")


def how_to_load(model: Path) -> str:
    """The function that loads the folder: of transformers, or of peft for an adapter."""
    adapter = model / "adapter_config.json"
    if not adapter.exists():
        return "transformers.AutoModelForCausalLM.from_pretrained"
    base = str(json.loads(adapter.read_text("utf-8"))["base_model_name_or_path"])
    if is_on_hub(base):
        return f"an adapter of {base}: peft.AutoPeftModelForCausalLM.from_pretrained"
    return f"an adapter of {base} on the volume: peft.PeftModel.from_pretrained, with that model and this folder"


def bring_run(pod: Pod, remote: str, run: Run, folder: Path, bar: Bar, everything: bool) -> tuple[int, tuple[str, ...]]:
    """Fetch all of a run, or what no checkpoint has and the newest one's model; return the number of files, and what
    was left out. Raises CommandError.
    """
    # A file of the run's folder must not take the place of the checkpoint's, or of the report's.
    others = [] if everything else [f"--exclude=/{name}" for name in ("checkpoints", REPORT, *OWN)]
    copied = bring(pod, remote, folder, bar, *others)
    if everything or run.checkpoint is None:
        return copied.files, copied.left_out
    # All at once when all is here: an interrupted fetch must not leave parts of two steps side by side.
    own = ["--delay-updates", "--delete-delay", *(f"--include=/{name}" for name in OWN), "--exclude=/*"]
    model = bring(pod, f"{remote}/checkpoints/{checkpoint_name(run.checkpoint)}", folder, bar, *own)
    return copied.files + model.files, (*copied.left_out, *model.left_out)
