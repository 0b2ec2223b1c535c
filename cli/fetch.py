"""Download a run: model, metrics, report.

Fetches the model of the newest complete checkpoint, in the form that transformers loads, the metrics, TensorBoard's
files, and the report page, which is made in the cluster. Files that are here in the same version are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from cli import CommandError, last_line
from cli.progress import counted
from cli.reach import SCRATCH, Pod, transfer
from cli.target import Kubeconfig, RunningStack, target_of
from cli.transfer import Pair, get
from trainer.contract import MANIFEST, checkpoint_step
from trainer.plain import plain
from workloads.layout import is_on_hub, run_folder

HOME = Path("runs")
MODEL = "model"
REPORT = "report"


def fetch(
    stack: RunningStack = "local",
    kubeconfig: Kubeconfig = None,
    run: Annotated[str | None, typer.Option(metavar="NAME", help="Another run on the volume.")] = None,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help=f"Default: {HOME}/NAME.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every checkpoint, with optimizer state.")] = False,
) -> None:
    target = target_of(stack)
    remote = run_folder(run) if run else str(target.run_directory)
    folder = to or HOME / PurePosixPath(remote).name
    with transfer(target, kubeconfig) as (volume, pod, bar):
        pairs = wanted(volume.files(remote), remote, folder, everything)
        bar.waiting("making the report")
        problem = make_report(pod, remote)
        made = volume.files(f"{SCRATCH}/{REPORT}")
        pairs += [Pair(folder / REPORT / name, f"{SCRATCH}/{REPORT}/{name}", size) for name, size in made.items()]
        get(volume, pairs, bar)
    print(f"{counted(len(pairs), 'file')} of {plain(remote)} in {folder}")
    if problem:
        print(f"  no report: {plain(problem)}")
    else:
        print(f"  report: {folder / REPORT / 'index.html'}")
    if (folder / MODEL).is_dir():
        print(f"  model:  {folder / MODEL}  ({plain(how_to_load(folder / MODEL))})")


def how_to_load(model: Path) -> str:
    """The function that loads the folder: of transformers, or of peft for an adapter."""
    try:
        base = str(json.loads((model / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"])
    except FileNotFoundError:
        return "transformers.AutoModelForCausalLM.from_pretrained"
    if is_on_hub(base):
        return f"an adapter of {base}: peft.AutoPeftModelForCausalLM.from_pretrained"
    return f"an adapter of {base} on the volume: peft.PeftModel.from_pretrained, with that model and this folder"


def wanted(found: dict[str, int], run: str, folder: Path, everything: bool) -> list[Pair]:
    """The files of a run to fetch, and where each goes. Raises CommandError when there is no run."""
    if not found:
        raise CommandError(f"{run}: the run has no files yet; see `trainyard status`, or name another run with --run")
    if everything:
        return [Pair(folder / name, f"{run}/{name}", size) for name, size in found.items()]
    complete = complete_checkpoints(found)
    newest = complete[max(complete)] if complete else None
    pairs = []
    for name, size in found.items():
        if newest and name.startswith(f"{newest}/{MODEL}/"):
            pairs.append(Pair(folder / name.removeprefix(f"{newest}/"), f"{run}/{name}", size))
        elif newest and name == f"{newest}/config.yaml":
            pairs.append(Pair(folder / "config.yaml", f"{run}/{name}", size))
        elif not name.startswith("checkpoints/"):
            pairs.append(Pair(folder / name, f"{run}/{name}", size))
    return pairs


def complete_checkpoints(found: Iterable[str]) -> dict[int, str]:
    """Step -> folder of each complete checkpoint among the files of a run."""
    folders = {PurePosixPath(name).parent for name in found if PurePosixPath(name).name == MANIFEST}
    steps = {folder: checkpoint_step(folder.name) for folder in folders if folder.parts[:-1] == ("checkpoints",)}
    return {step: str(folder) for folder, step in steps.items() if step is not None}


def make_report(pod: Pod, run: str) -> str | None:
    """Make the report page in the pod; return the problem in one line, or None."""
    code, text = pod.run(["python3", "-m", "trainer.report", run, "--output", f"{SCRATCH}/{REPORT}"])
    return None if code == 0 else last_line(text)
