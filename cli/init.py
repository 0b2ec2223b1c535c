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
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.filesize import decimal

from cli import CommandError, name_of
from cli.target import PROOF, known
from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig
from infra.cost import dollars, estimate
from infra.new_stack import Data, Model, NewStack, lent, positions_of
from infra.parse import cluster_kind, parse
from infra.speed import facts, tokens_of
from infra.stackfiles import NODE_CONTEXT, ROOT, stack_file_values, stacks
from trainer.config.addresses import LOST, kind_of, passed_over
from trainer.config.addresses import address as spelled
from trainer.plain import counted, plain

SCRATCH, MODERN = "none", "modern"
"""Answers to the question for a model: a GPT-2 from scratch, and a modern decoder by its recipe."""
SAMPLE = ROOT / "trainer" / "sample" / "opticks.txt"
OPENED: dict[str, Callable[..., Any]] = {"": open, "gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}
FOOTER = 1 << 16
"""Bytes at the end of a Parquet file in which the names of its columns are, each behind its length."""
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
            "(/data/models/NAME). Or none, the default: a GPT-2 from scratch; or modern: a newer network and optimizer "
            "from scratch, which need fewer tokens for the same loss.",
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
        _option(
            "N",
            "Passes over the data. Default: 3 to 10 for a model; from scratch 4, of much text 1.",
            min=0.001,
            max=1e6,
        ),
    ] = None,
    tokens: Annotated[
        int | None, _option("N", "How many the data has, where no file of this machine tells.", min=1, max=10**15)
    ] = None,
    project: Annotated[str | None, _option("ID", "On Google Cloud: the project.")] = None,
    address: Annotated[str | None, _option("CIDR", "On AWS: who may reach the cluster's API: 198.51.100.7/32.")] = None,
    context: Annotated[str | None, _option("CONTEXT", "Of your kubeconfig, instead of this machine's node.")] = None,
    registry: Annotated[str | None, _option("REGISTRY", "What that cluster pulls from, such as ghcr.io/you.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of a stack that is there.")] = False,
) -> None:
    name = ask(name, "NAME", "Name of the stack", lambda said: free(said, force))
    if like is None and sys.stdin.isatty():
        print("\n".join(["Stacks whose machines it can have:", *map(offer, stacks())]), file=sys.stderr)
    like = ask(like, "--like", "Machines like those of which stack", known)
    question = "Model: a name on the Hugging Face hub, a folder; from scratch: none (a GPT-2) or modern (fewer tokens)"
    chosen = ask(model, "--model", question, read_model, default=SCRATCH)
    question = "Data: a file or folder of this machine, hf:NAME, an address, or sample"
    found = ask(data, "--data", question, lambda said: read_data(said, tokens))
    own: dict[str, Any] = {"image": {"registry": registry}} if registry else {}

    def checked(values: dict[str, Any]) -> dict[str, Any]:
        lent(str(like), values, str(name))
        return values

    kind = cluster_kind(stack_file_values(str(like)))
    if kind == "gke":
        question = "Google Cloud project (`gcloud projects list`)"
        own |= ask(project, "--project", question, lambda said: checked({"gke": {"project": said}}))
    elif kind == "eks":
        question = "Who may reach the cluster: this machine's address (`curl https://checkip.amazonaws.com`) with /32"
        own |= ask(address, "--address", question, lambda said: checked({"eks": {"apiAllowedCidrs": [said]}}))
    else:  # two stacks on one cluster need two namespaces
        own["cluster"] = {"namespace": name, **({"context": context} if context else {})}
    task = task or ("finetune" if found.longest else "language_model")
    new = NewStack(name=str(name), like=str(like), own=own, model=chosen, data=found, task=task, passes=epochs)
    made, text, config = new.write()
    file = ROOT / f"Pulumi.{name}.yaml"
    file.write_text(text + secrets_of(file), "utf-8")
    tell(made, config)


def ask(given: str | None, flag: str, question: str, check: Callable[[str], Any], default: str | None = None) -> Any:
    """What `check` makes of a value: of an answer on a terminal, until it is right, where none is given.

    Raises:
        CommandError: nobody can be asked, and there is no default.
    """

    def checked(said: str) -> Any:
        try:
            return check(said.strip())
        except (CommandError, ConfigError) as error:
            raise typer.BadParameter(plain(str(error))) from None

    if given is None and sys.stdin.isatty():
        return typer.prompt(question, default=default, err=True, value_proc=checked)
    if (said := default if given is None else given) is None:
        raise CommandError(f"missing: {flag}; give it, or answer on a terminal", code=2)
    return check(said)


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


def read_model(given: str) -> Model:
    """Raises CommandError for a folder without a config.json that tells its positions, or leaves them out."""
    if given in (SCRATCH, MODERN):
        return Model(recipe="modern" if given == MODERN else "gpt2")
    folder = Path(given)
    if given.startswith("/data/") or not (folder.is_dir() or given.startswith((".", "/", "~"))):
        return Model(given)
    try:
        positions = positions_of(folder)
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CommandError(
            f"--model {given}: config.json: {error}; give a folder that transformers loads, or a name on the hub",
            code=2,
        ) from None
    return Model(f"/data/models/{name_of(folder)}", folder=folder, positions=positions)


def read_data(given: str, tokens: int | None) -> Data:
    """Raises CommandError for a file that is not there, or that no dataset Job reads."""
    path = SAMPLE if given == "sample" else Path(given)
    try:
        name = spelled(given)
    except ValueError as error:
        raise CommandError(f"--data {error}", code=2) from None
    if "://" in given or given.startswith(("hf:", "/data/")):
        told = f"{rounded(tokens)} tokens" if tokens else "of unknown size until it is prepared (--tokens N)"
        return Data(name, tokens, told)
    if not path.exists():
        hub = f", hf:{given} for what is on the hub" if given.count("/") == 1 else ""
        raise CommandError(
            f"--data {given}: is not here; give /data/{given} for what is on the volume already{hub}", code=2
        )
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    sizes = {each: each.stat().st_size for each in files}
    if path.is_dir():
        over = {each: passed_over(str(each), str(path), size) for each, size in sizes.items()}
        lost = [each for each in files if over[each] != "hidden" and kind_of(each.name)[0] in LOST]
        if lost:
            told = f"{counted(len(lost), 'file')} such as {lost[0].name}, which the dataset Job reads from no folder"
            raise CommandError(f"--data {given}: holds {told}; convert to .txt or .jsonl, or move elsewhere", code=2)
        sizes = {each: size for each, size in sizes.items() if not over[each]}
    if not any(sizes.values()):
        raise CommandError(f"--data {given}: holds no text; allowed: text, JSON lines, Parquet", code=2)
    tokens = tokens or sum(tokens_of(size, bool(kind_of(each.name)[1])) for each, size in sizes.items())
    told = f"{decimal(sum(sizes.values()))}, about {rounded(tokens)} tokens"
    if given == "sample":
        return Data(given, tokens, told)
    return Data(name_of(path), tokens, told, path, max(map(longest_conversation, sizes), key=abs))


def longest_conversation(path: Path) -> int:
    """Tokens, at most, of the longest in a file of them; 0 for another file, -1 where its columns alone are known."""
    suffix, compression = kind_of(path.name)
    if suffix == ".parquet":
        with open(path, "rb") as file:
            file.seek(-min(FOOTER, path.stat().st_size), 2)
            columns = file.read()
        return -any(all(bytes([len(key)]) + key.encode() in columns for key in keys) for keys in CONVERSATION)
    if suffix not in (".jsonl", ".ndjson", ".json") or compression not in OPENED:
        return 0
    try:
        with OPENED[compression](path, "rb") as file:
            first = next((line for line in file if line.strip()), b"")
            if first.lstrip().startswith(b"["):
                records = json.loads(first + file.read())
            else:
                records = [json.loads(first), json.loads(max(file, key=len, default=first))]
    except UnicodeDecodeError:
        raise CommandError(f"--data {path}: is not UTF-8; convert it, for example with iconv", code=2) from None
    except (OSError, EOFError, ValueError, RecursionError):
        return 0  # the dataset Job says what is wrong with it
    talks = [isinstance(record, dict) and any(keys <= set(record) for keys in CONVERSATION) for record in records]
    if len(set(talks)) > 1:
        told = "some of its records are conversations and others are not; give each kind in a file of its own"
        raise CommandError(f"--data {path}: {told}", code=2)
    if not any(talks):
        return 0
    size = max(len(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")) for record in records)
    return round(size / facts()["bytes_per_token"]["least"])


def tell(made: NewStack, config: StackConfig) -> None:
    """Say what the training should take, and what to type next."""
    training, hours, bill, data = config.training, made.hours(config), estimate(config), made.data
    here = config.cluster.context == NODE_CONTEXT
    steps = f"about {rounded(made.steps)} steps" if made.steps else "steps"
    time = f"unknown, as the size of {made.model.name if data.tokens else 'the data'} is"
    cost = "nothing but this machine's power" if here else "the cluster's owner pays"
    if hours:
        low, high = hours
        span = f"{60 * low:.0f} to {60 * high:.0f} minutes" if high < 2 else f"{low:,.1f} to {high:,.1f} hours"
        time = f"about {span} by arithmetic (infra/speed.yaml), once it trains"
    if bill is not None:
        cost = f"{dollars(bill.at_full)} USD an hour at full size, {dollars(bill.at_rest)} at rest, by list prices"
        if hours and bill.at_full is not None:
            low, high = (dollars(float(f"{each * bill.at_full:.2g}")) for each in hours)
            cost = f"about {low} to {high} USD: {cost}"
    print(f"Pulumi.{made.name}.yaml passes every check.")
    print(f"  data    {data.told}")
    size, window = training.tokens_per_step, training.sequence_length
    print(f"  epochs  {training.epochs:g}: {steps} of {size:,} tokens, in windows of {window:,}")
    print(f"  time    {time}")
    print(f"  cost    {cost}")
    print(f"  limit   the Job ends after {config.job.max_hours:g} hours (job.maxHours)")
    for warning in made.warnings():
        print(f"Warning: {warning}.")
    print("Next:")
    if not here:
        print(f"  trainyard doctor --stack {made.name}")
    uploads = "".join(f" --data {shlex.quote(str(each))}" for each in (data.here, made.model.folder) if each)
    print(f"  trainyard up --stack {made.name}{uploads}")


def rounded(count: float) -> str:
    """A count with the two digits that an estimate has."""
    return f"{float(f'{count:.2g}'):,.0f}"
