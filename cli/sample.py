"""Let a run's model write or answer, in the cluster: this machine needs no torch.

A model that is too large for a system node's memory gets a pod on a worker's node for as long as the command runs.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from cli.model_pod import model_pod
from cli.runs import RunName
from cli.target import Kubeconfig, RunningStack, TrainingName, target_of
from trainer.plain import plain

Step = Annotated[int | None, typer.Option(metavar="N", min=0, help="Default: the newest checkpoint.")]
Temperature = Annotated[float | None, typer.Option(min=0, help="0 takes the likeliest token each time. Default: 0.8.")]
TopK = Annotated[int | None, typer.Option(min=0, help="Draw from the K likeliest tokens. Default: 50; 0: from all.")]
TopP = Annotated[float | None, typer.Option(min=0, max=1, help="Draw from the likeliest of this probability.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text. Default: 0.")]


def sample(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    run: RunName = None,
    step: Step = None,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="How the text begins; - reads stdin.")] = "The",
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a message: print the answer.")] = False,
    tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens to add. Default: 120.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Texts to draw. Default: 1.")] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
) -> None:
    text = sys.stdin.read() if prompt == "-" else prompt
    drawn = {"tokens": tokens, "count": count, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    with model_pod(target_of(stack, training, run, kubeconfig)) as model:
        model.call("trainer.sample", text, step=step, prompt="-", chat=chat, **drawn)


def chat(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    run: RunName = None,
    step: Step = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="What the model is told before you.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer. Default: 400.")] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
) -> None:
    """For a model that was fine-tuned on conversations. An empty line, Ctrl-D or Ctrl-C ends it."""
    drawn = {"tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    with (
        model_pod(target_of(stack, training, run, kubeconfig)) as model,
        model.process("trainer.chat", step=step, **drawn) as pod,
    ):
        _listen(pod)
        model.bar.pause()
        print(f"{plain(model.folder)}, step {model.run.checkpoint if step is None else step}; an empty line ends it")
        while said := _ask():
            messages.append({"role": "user", "content": said})
            pod.stdin.write((json.dumps(messages) + "\n").encode())
            pod.stdin.flush()
            messages.append({"role": "assistant", "content": _listen(pod)})
        pod.stdin.close()


def _ask() -> str:
    """What the person says; empty: nothing more."""
    try:
        return input("\n> ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


def _listen(pod: Any) -> str:
    """Print an answer as it comes, and return it."""
    answer = ""
    for line in pod.stdout:
        try:
            told = json.loads(line)
        except ValueError:
            continue  # a library's word
        if told.get("end"):
            print(flush=True) if answer else None
            return answer
        piece = plain(told.get("text", ""))
        answer += piece
        print(piece, end="", flush=True)
    raise BrokenPipeError
