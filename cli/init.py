"""Write a new stack's file: a model, data, and machines like another stack's.

It asks on a terminal for what is missing, overwrites no file, and writes none that the checks refuse. Steps, their size
and the time limit follow from the size of the data; what the training should take is printed.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli import CommandError
from cli.target import PROOF, known
from infra.config import StackConfig
from infra.cost import dollars, estimate
from infra.draft import Draft
from infra.parse import cluster_kind
from infra.speed import tokens_of
from infra.stackfiles import NODE_CONTEXT, ROOT, stack_file_values, stacks
from trainer.config.addresses import kind_of, passed_over

SCRATCH = "none"
"""Answer to the question for a model."""
SAMPLE = ROOT / "trainer" / "sample" / "opticks.txt"
SMALL = 1e9
"""Tokens up to which a model from scratch learns from each four times, which is about as good as new text (arXiv
2305.16264)."""


def init(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The stack's: Pulumi.NAME.yaml.")] = None,
    like: Annotated[
        str | None, typer.Option(metavar="STACK", help="Whose machines and volume it gets, such as gcp-c3.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The weights to begin with: a name on the Hugging Face hub, a folder of this machine, or one on the "
            "volume (/data/models/NAME). Default: none, a GPT-2 from scratch.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="A file or folder of this machine, or one on the volume (/data/NAME); hf:NAME; a gs://, s3:// or "
            "https:// address; sample.",
        ),
    ] = None,
    task: Annotated[
        Literal["language_model", "finetune"] | None,
        typer.Option(metavar="TASK", help="Default: finetune for a file of conversations, else language_model."),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(min=0.001, help="Passes over the data. Default: 3 for a model; from scratch 4, of much text 1."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="How many the data has, where no file of this machine tells.")
    ] = None,
    project: Annotated[str | None, typer.Option(metavar="ID", help="On Google Cloud: the project.")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="CIDR", help="On AWS: who may reach the cluster's API, as 198.51.100.7/32.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="CONTEXT", help="Of your kubeconfig, instead of this machine's node.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="REGISTRY", help="What that cluster pulls from, such as ghcr.io/you.")
    ] = None,
) -> None:
    ask = Questions()
    name = _free(ask(name, "NAME", "Name of the stack"))
    like = ask(like, "--like", f"Machines like those of which stack ({', '.join(stacks())})")
    kind = cluster_kind(stack_file_values(known(like))) if like else ""
    model = ask(model, "", "Model: a name on the Hugging Face hub, a folder, or none for a GPT-2 from scratch", SCRATCH)
    data = ask(data, "--data", "Data: a file or folder of this machine, hf:NAME, an address, or sample")
    own: dict[str, Any] = {"image": {"registry": registry}} if registry else {}
    if kind == "gke":
        own["gke"] = {"project": ask(project, "--project", "Google Cloud project (`gcloud projects list`)")}
    elif kind == "eks":
        question = "Who may reach the cluster: this machine's address (`curl https://checkip.amazonaws.com`) with /32"
        own["eks"] = {"apiAllowedCidrs": [ask(address, "--address", question)]}
    else:  # two stacks on one cluster need two namespaces
        own["cluster"] = {"namespace": name, **({"context": context} if context else {})}
    ask.refuse()
    found = read_data(data, tokens)
    model = "" if model == SCRATCH else model
    folder = Path(model) if model and not model.startswith("/data/") and Path(model).is_dir() else None
    draft = Draft(
        name=name,
        like=like,
        own=own,
        model=f"/data/models/{folder.resolve().name}" if folder else model,
        task=task or ("finetune" if found.talks else "language_model"),
        input=found.input,
        tokens=found.tokens,
        epochs=epochs or (3.0 if model else 4.0 if (found.tokens or SMALL) < SMALL else 1.0),
    )
    text, config = draft.fitting()
    with (ROOT / f"Pulumi.{name}.yaml").open("x", encoding="utf-8") as file:
        file.write(text)
    tell(draft, config, found, folder)


class Questions:
    """Asks for what is not given; where nobody can be asked, refuses all that is missing together."""

    def __init__(self) -> None:
        self._missing: list[str] = []

    def __call__(self, given: str | None, flag: str, question: str, default: str | None = None) -> str:
        """`flag`: what to give in a pipe; empty: then it is the default."""
        if given is not None:
            return given
        if sys.stdin.isatty():
            return str(typer.prompt(question, default=default, err=True)).strip()
        if flag:
            self._missing.append(flag)
        return "" if flag else default or ""

    def refuse(self) -> None:
        if self._missing:
            raise CommandError(f"missing: {', '.join(self._missing)}; give it, or answer on a terminal", code=2)


def _free(name: str) -> str:
    """The name of a stack that is not there; empty: none is given yet. Raises CommandError."""
    if name and (not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or name.startswith((PROOF, "e2e"))):
        allowed = f"lower-case letters, digits, '-' inside, but not {PROOF} or e2e at the beginning"
        raise CommandError(f"'{name}' is no name for a stack; allowed: {allowed}", code=2)
    if name and (ROOT / f"Pulumi.{name}.yaml").exists():
        raise CommandError(f"Pulumi.{name}.yaml is there, and is not overwritten; take another name", code=2)
    return name


@dataclass(frozen=True)
class Data:
    """What is learnt."""

    input: str
    """As `dataset.input` names it."""
    tokens: int | None
    """About; None: unknown."""
    told: str
    here: Path | None = None
    """On this machine, to be uploaded."""
    talks: bool = False
    """Whether it begins with a conversation."""


def read_data(given: str, tokens: int | None) -> Data:
    """Raises CommandError for a file that is not there."""
    path = SAMPLE if given == "sample" else Path(given)
    if "://" in given or given.startswith(("hf:", "/data/")):
        told = f"{rounded(tokens)} tokens" if tokens else "of unknown size until it is prepared (--tokens N)"
        return Data(given, tokens, told)
    if not path.exists():
        raise CommandError(f"--data {given}: is not here; give /data/{given} for what is on the volume already", code=2)
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    if path.is_dir():
        files = [each for each in files if not passed_over(str(each), str(path), each.stat().st_size)]
    if not files:
        raise CommandError(f"--data {given}: holds no text; allowed: text, JSON lines, Parquet", code=2)
    size = sum(each.stat().st_size for each in files)
    tokens = tokens or sum(tokens_of(each.stat().st_size, bool(kind_of(each.name)[1])) for each in files)
    told = f"{size / 1e6:,.1f} MB, about {rounded(tokens)} tokens"
    if given == "sample":
        return Data(given, tokens, told)
    return Data(path.resolve().name, tokens, told, path, _talks(files[0]))


def _talks(path: Path) -> bool:
    """Whether a file's first record is a conversation in one of the forms that the trainer reads."""
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        return False
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    try:
        record = json.loads(first)
    except ValueError:
        return False
    keys = set(record) if isinstance(record, dict) else set()
    return bool(keys & {"messages", "conversations"}) or {"prompt", "completion"} <= keys


def tell(draft: Draft, config: StackConfig, data: Data, folder: Path | None) -> None:
    """Say what the training should take, and what to type next; `folder`: the model's, on this machine."""
    size, learnt, hours, bill = (
        config.training.tokens_per_step,
        draft.learnt(config),
        draft.hours(config),
        estimate(config),
    )
    steps = f"about {rounded(math.ceil(learnt / size))} steps" if learnt else "steps"
    unknown = f"unknown, as the size of {draft.model if data.tokens else 'the data'} is"
    print(f"Pulumi.{draft.name}.yaml passes every check.")
    print(f"  data    {data.told}")
    print(f"  epochs  {draft.epochs:g}: {steps} of {size:,} tokens")
    print(f"  time    {f'{span(*hours)} by arithmetic (infra/speed.yaml), once it trains' if hours else unknown}")
    if bill is None:
        print("  cost    the cluster's owner pays")
    else:
        whole = ""
        if hours and bill.at_full is not None:
            costs = [hour * bill.at_full for hour in hours]
            low, high = (f"{each:,.0f}" if each >= 10 else dollars(each) for each in costs)
            whole = f"about {low} to {high} USD: "
        prices = f"{dollars(bill.at_full)} USD an hour at full size, {dollars(bill.at_rest)} at rest, by list prices"
        print(f"  cost    {whole}{prices}")
    print(f"  limit   the Job ends after {config.job.max_hours:g} hours (job.maxHours)")
    print("Next:")
    if config.cluster.context != NODE_CONTEXT:
        print(f"  trainyard doctor --stack {draft.name}")
    print(f"  trainyard up --stack {draft.name}")
    uploads = [str(data.here)] if data.here else []
    uploads += [f"{folder} --to models/{folder.resolve().name}"] if folder else []
    if uploads:
        print("The first `up` makes the volume and stops, because this is missing there:")
        for each in uploads:
            print(f"  trainyard upload {each} --stack {draft.name}")
        print(f"  trainyard up --stack {draft.name}")


def span(low: float, high: float) -> str:
    """A range of hours in words."""
    unit, low, high = ("minutes", 60 * low, 60 * high) if high < 2 else ("hours", low, high)
    if round(high) <= 1:
        return "about a minute"
    digits = 1 if unit == "hours" and high < 10 else 0
    first, last = (f"{max(each, 1 - digits):,.{digits}f}" for each in (low, high))
    return f"about {last} {unit}" if first == last else f"about {first} to {last} {unit}"


def rounded(count: float) -> str:
    """A count with the two digits that an estimate has."""
    for size, word in ((1e9, " billion"), (1e6, " million")):
        if count >= size:
            return f"{float(f'{count / size:.2g}'):,g}{word}"
    return f"{float(f'{count:.2g}'):,.0f}"
