"""Write a new stack's file: a model, data, and machines like another stack's.

It asks on a terminal for what is missing, and again after a wrong answer; overwrites no file unless told to, and writes
none that the checks refuse. Window, steps and time limit follow from the data; what it should take is printed.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli import CommandError
from cli.target import PROOF, known
from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig
from infra.cost import dollars, estimate
from infra.draft import Draft, lent
from infra.parse import cluster_kind, parse
from infra.speed import facts, tokens_of
from infra.stackfiles import NODE_CONTEXT, ROOT, stack_file_values, stacks
from trainer.config.addresses import address as spelled
from trainer.config.addresses import kind_of, passed_over
from trainer.plain import plain

SCRATCH = "none"
"""Answer to the question for a model."""
SAMPLE = ROOT / "trainer" / "sample" / "opticks.txt"
OPENED: dict[str, Callable[..., Any]] = {"": open, "gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}
CONVERSATION = ({"messages"}, {"conversations"}, {"prompt", "completion"}, {"instruction", "output"})
"""Keys of a record that holds one."""


def _option(metavar: str, text: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, **more)


def init(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The stack's: Pulumi.NAME.yaml.")] = None,
    like: Annotated[str | None, _option("STACK", "Whose machines and volume it gets, such as gcp-c3.")] = None,
    model: Annotated[
        str | None,
        _option(
            "MODEL",
            "The weights to begin with: a name on the Hugging Face hub, a folder of this machine, or one on the volume "
            "(/data/models/NAME). Default: none, a GPT-2 from scratch.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        _option(
            "DATA",
            "A file or folder of this machine, or one on the volume (/data/NAME); hf:NAME; a gs://, s3:// or https:// "
            "address; sample.",
        ),
    ] = None,
    task: Annotated[
        Literal["language_model", "finetune"] | None,
        _option("TASK", "Default: finetune for a file of conversations, else language_model."),
    ] = None,
    epochs: Annotated[
        float | None,
        _option("N", "Passes over the data. Default: 3 to 10 for a model; from scratch 4, of much text 1.", min=0.001),
    ] = None,
    tokens: Annotated[
        int | None, _option("N", "How many the data has, where no file of this machine tells.", min=1)
    ] = None,
    project: Annotated[str | None, _option("ID", "On Google Cloud: the project.")] = None,
    address: Annotated[str | None, _option("CIDR", "On AWS: who may reach the cluster's API: 198.51.100.7/32.")] = None,
    context: Annotated[str | None, _option("CONTEXT", "Of your kubeconfig, instead of this machine's node.")] = None,
    registry: Annotated[str | None, _option("REGISTRY", "What that cluster pulls from, such as ghcr.io/you.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of a stack that is there.")] = False,
) -> None:
    ask = Questions()
    name = ask(name, "NAME", "Name of the stack", lambda said: free(said, force))
    if like is None and sys.stdin.isatty():
        print("\n".join(["Stacks whose machines it can have:", *map(offer, stacks())]), file=sys.stderr)
    like = ask(like, "--like", "Machines like those of which stack", known)
    kind = cluster_kind(stack_file_values(like)) if like else ""
    question = "Model: a name on the Hugging Face hub, a folder, or none for a GPT-2 from scratch"
    model, weights = ask(model, "", question, read_model, SCRATCH)
    question = "Data: a file or folder of this machine, hf:NAME, an address, or sample"
    found = ask(data, "--data", question, lambda said: read_data(said, tokens))
    own: dict[str, Any] = {"image": {"registry": registry}} if registry else {}

    def with_own(section: str, key: str, listed: bool = False) -> Callable[[str], dict[str, Any]]:
        def check(said: str) -> dict[str, Any]:
            given = {section: {key: [said] if listed else said}}
            lent(str(like), given, str(name))
            return given

        return check

    if kind == "gke":
        question = "Google Cloud project (`gcloud projects list`)"
        own |= ask(project, "--project", question, with_own("gke", "project")) or {}
    elif kind == "eks":
        question = "Who may reach the cluster: this machine's address (`curl https://checkip.amazonaws.com`) with /32"
        own |= ask(address, "--address", question, with_own("eks", "apiAllowedCidrs", listed=True)) or {}
    else:  # two stacks on one cluster need two namespaces
        own["cluster"] = {"namespace": name, **({"context": context} if context else {})}
    ask.refuse()
    task = task or ("finetune" if found.talks else "language_model")
    asked: dict[str, Any] = {"name": name, "like": like, "own": own, "model": model, "weights": weights, "task": task}
    longest = found.longest if task == "finetune" else 0
    draft = Draft(**asked, passes=epochs, input=found.input, tokens=found.tokens, longest=longest)
    draft, text, config = draft.fitting()
    file = ROOT / f"Pulumi.{name}.yaml"
    file.write_text(text + secrets_of(file), "utf-8")
    tell(draft, config, found)


class Questions:
    """Asks for what is not given, until the answer is right; where nobody can be asked, refuses all that is missing."""

    def __init__(self) -> None:
        self._missing: list[str] = []

    def __call__(
        self, given: str | None, flag: str, question: str, check: Callable[[str], Any], default: str | None = None
    ) -> Any:
        """What `check` makes of the answer. `flag`: what to give in a pipe; empty: then it is the default."""

        def checked(said: str) -> Any:
            try:
                return check(said.strip())
            except (CommandError, ConfigError) as error:
                raise typer.BadParameter(plain(str(error))) from None

        if given is not None:
            return check(given)
        if sys.stdin.isatty():
            return typer.prompt(question, default=default, err=True, value_proc=checked)
        if default is not None:
            return check(default)
        self._missing.append(flag)
        return None

    def refuse(self) -> None:
        if self._missing:
            raise CommandError(f"missing: {', '.join(self._missing)}; give it, or answer on a terminal", code=2)


def free(name: str, force: bool) -> str:
    """The name of a stack that is not there. Raises CommandError."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or name.startswith((PROOF, "e2e")):
        allowed = f"lower-case letters, digits, '-' inside, but not {PROOF} or e2e at the beginning"
        raise CommandError(f"'{name}' is no name for a stack; allowed: {allowed}", code=2)
    if not force and (ROOT / f"Pulumi.{name}.yaml").exists():
        raise CommandError(f"Pulumi.{name}.yaml is there; take another name, or --force to overwrite it", code=2)
    return name


def secrets_of(file: Path) -> str:
    """How a file that is overwritten encrypts the secrets of its stack, which may be up: Pulumi's own keys."""
    lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
    return "".join(line for line in lines if line.startswith(("encryptionsalt:", "encryptedkey:", "secretsprovider:")))


def offer(stack: str) -> str:
    """A stack in a line: where it is, its machines, what they cost."""
    try:
        config = parse(stack_file_values(stack), stack)
    except ConfigError:
        return f"  {stack:<12}  its file has mistakes: trainyard doctor --stack {stack}"
    workers, nodes, bill = config.workers, config.nodes, estimate(config)
    machines = f"{workers.count} x {workers.cpu:g} CPU, {workers.memory_gib:g} GiB"
    if nodes:
        machines = f"{nodes.max} x {nodes.machine_type}, {nodes.consumption.replace('_', ' ')}"
    here = config.cluster.context == NODE_CONTEXT
    where = "this machine" if here else cloud_of(config).place(config)
    cost = f"{dollars(bill.at_full)} USD an hour, {dollars(bill.at_rest)} at rest" if bill else "costs nothing here"
    return f"  {stack:<12}  {where}: {machines}; {cost if bill or here else 'its owner pays'}"


def read_model(given: str) -> tuple[str, Path | None]:
    """As `training.model.name`, and its folder on this machine. Raises CommandError."""
    if given == SCRATCH or given.startswith("/data/"):
        return "" if given == SCRATCH else given, None
    folder = Path(given)
    if not folder.is_dir():
        if given.startswith((".", "/", "~")):
            raise CommandError(
                f"--model {given}: no such folder; give one with config.json, or a name on the hub", code=2
            )
        return given, None
    try:
        if not isinstance(json.loads((folder / "config.json").read_text("utf-8")), dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CommandError(
            f"--model {given}: config.json: {why}; give a folder that transformers loads", code=2
        ) from None
    return f"/data/models/{folder.resolve().name}", folder


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
    longest: int = 0
    """Tokens of the longest conversation, at most; 0: there is none."""

    @property
    def talks(self) -> bool:
        return self.longest > 0


def read_data(given: str, tokens: int | None) -> Data:
    """Raises CommandError for a file that is not there."""
    path = SAMPLE if given == "sample" else Path(given)
    if "://" in given or given.startswith(("hf:", "/data/")):
        told = f"{rounded(tokens)} tokens" if tokens else "of unknown size until it is prepared (--tokens N)"
        try:
            return Data(spelled(given), tokens, told)
        except ValueError as error:
            raise CommandError(f"--data {error}", code=2) from None
    if not path.exists():
        raise CommandError(f"--data {given}: is not here; give /data/{given} for what is on the volume already", code=2)
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    if path.is_dir():
        files = [each for each in files if not passed_over(str(each), str(path), each.stat().st_size)]
    size = sum(each.stat().st_size for each in files)
    if not size:
        raise CommandError(f"--data {given}: holds no text; allowed: text, JSON lines, Parquet", code=2)
    tokens = tokens or sum(tokens_of(each.stat().st_size, bool(kind_of(each.name)[1])) for each in files)
    told = f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
    told = f"{told}, about {rounded(tokens)} tokens"
    if given == "sample":
        return Data(given, tokens, told)
    return Data(path.resolve().name, tokens, told, path, max(map(longest_conversation, files)))


def longest_conversation(path: Path) -> int:
    """Tokens, at most, of the longest in a file of them; 0 for another file."""
    suffix, compression = kind_of(path.name)
    if suffix not in (".jsonl", ".ndjson", ".json") or compression not in OPENED:
        return 0
    try:
        with OPENED[compression](path, "rb") as file:
            first = file.readline()
            if first.lstrip().startswith(b"["):
                records = json.loads(first + file.read())
            else:
                records = [json.loads(first), json.loads(max(file, key=len, default=first))]
    except (OSError, EOFError, ValueError):
        return 0  # the dataset Job says what is wrong with it
    if not records or not isinstance(records[0], dict) or not any(keys <= set(records[0]) for keys in CONVERSATION):
        return 0
    size = max(len(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")) for record in records)
    return round(size / facts()["bytes_per_token"]["least"])


def tell(draft: Draft, config: StackConfig, data: Data) -> None:
    """Say what the training should take, and what to type next."""
    size, hours, bill = config.training.tokens_per_step, draft.hours(config), estimate(config)
    length = config.training.sequence_length
    steps = f"about {rounded(draft.steps)} steps" if draft.steps else "steps"
    unknown = f"unknown, as the size of {draft.model if data.tokens else 'the data'} is"
    cost = "nothing but this machine's power" if config.cluster.context == NODE_CONTEXT else "the cluster's owner pays"
    if bill is not None:
        cost = f"{dollars(bill.at_full)} USD an hour at full size, {dollars(bill.at_rest)} at rest, by list prices"
        if hours and bill.at_full is not None:
            low, high = (
                f"{each:,.0f}" if each >= 10 else dollars(each) for each in (hour * bill.at_full for hour in hours)
            )
            cost = f"about {low} to {high} USD: {cost}"
    print(f"Pulumi.{draft.name}.yaml passes every check.")
    print(f"  data    {data.told}")
    print(f"  epochs  {config.training.epochs:g}: {steps} of {size:,} tokens, in windows of {length:,}")
    print(f"  time    {f'{span(*hours)} by arithmetic (infra/speed.yaml), once it trains' if hours else unknown}")
    print(f"  cost    {cost}")
    print(f"  limit   the Job ends after {config.job.max_hours:g} hours (job.maxHours)")
    for warning in draft.warnings():
        print(f"Warning: {warning}.")
    print("Next:")
    if config.cluster.context != NODE_CONTEXT:
        print(f"  trainyard doctor --stack {draft.name}")
    uploads = "".join(f" --data {shlex.quote(str(each))}" for each in (data.here, draft.weights) if each)
    print(f"  trainyard up --stack {draft.name}{uploads}")


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
