"""Export a run's model in the cluster: to this machine, to the volume, or to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli import CommandError
from cli.cluster import TrainingJob
from cli.evaluate import hub_token
from cli.fetch import claim, how_to_load
from cli.model_pod import model_pod
from cli.rsync import bring
from cli.runs import RunName
from cli.sample import Step
from cli.target import Kubeconfig, RunningStack, TrainingName, target_of
from cli.volume import removable
from trainer.plain import counted, plain
from workloads.layout import DATA

HOME = Path("models")
Dtype = Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="Type of the weights.")]
Merge = Annotated[bool, typer.Option("--merge", help="Add an adapter (LoRA) to its model: a whole model.")]


def export(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    run: RunName = None,
    step: Step = None,
    merge: Merge = False,
    dtype: Dtype = "fp32",
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help=f"Default: {HOME}/NAME.")] = None,
    on_volume: Annotated[
        str | None, typer.Option(metavar="FOLDER", help=f"Leave it there, under {DATA}, for other trainings.")
    ] = None,
) -> None:
    """A folder that transformers (an adapter: peft) loads: weights, tokenizer, and a model card with the run's figures.
    `trainyard fetch` brings the run itself.
    """
    if to and on_volume:
        raise CommandError("--to and --on-volume: give one of them", code=2)
    kept = f"{DATA}/{removable(on_volume)}" if on_volume else ""
    target = target_of(stack, training, run, kubeconfig)
    with model_pod(target) as model:
        given = {"step": step, "merge": merge, "dtype": dtype}
        if kept:
            model.call("trainer.export", output=kept, **given)
            print(f"To train it on: pulumi config set --stack {stack} --path training.model.name {plain(kept)}")
            return
        chosen, folder = model.run.checkpoint if step is None else step, to or HOME / model.run.name
        claim(folder, target, f"{model.folder}, step {chosen}, {dtype}{', merged' if merge else ''}")
        with model.pod.scratch() as output:
            model.call("trainer.export", say=False, output=output, **given)
            files = bring(model.pod, output, folder, model.bar).files
    print(f"{counted(files, 'file')} in {folder}  ({plain(how_to_load(folder))})")


def push(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    run: RunName = None,
    step: Step = None,
    repository: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Default: the run's name, of the token's owner.")
    ] = None,
    merge: Merge = False,
    dtype: Dtype = "fp32",
    public: Annotated[bool, typer.Option("--public", help="A new repository is for everybody, not private.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the files of one that has some.")] = False,
) -> None:
    """The cluster uploads it with the stack's token, secrets.huggingFaceToken, which must be allowed to write."""
    target = target_of(stack, training, run, kubeconfig)
    token = hub_token(TrainingJob.of(target))
    if not token:
        key = f"pulumi config set --stack {stack} --secret --path secrets.huggingFaceToken"
        raise CommandError(f"stack {stack} has no token of the hub; give one that may write, then `pulumi up`: {key}")
    with model_pod(target, [*token, {"name": "HF_HUB_OFFLINE", "value": "0"}]) as model:
        given = {"step": step, "repository": repository, "merge": merge, "public": public, "replace": replace}
        model.call("trainer.push", dtype=dtype, **given)
