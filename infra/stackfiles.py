"""Reads stack files without Pulumi's engine; names the labels or tags of everything that a stack is billed for."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from infra.finding import Finding, read_line, warning
from trainer.config.values import StackReader, encrypted, read_yaml, unique_keys, why_not_yaml
from trainer.plain import counted

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "trainyard"
#: The kubeconfig context of the node that `trainyard local up` starts on this machine.
NODE_CONTEXT = "trainyard-local"


class ConfigError(ValueError):
    """Every problem of a stack's configuration, one line each."""

    def __init__(self, stack: str, lines: Sequence[str]):
        self.lines = [for_stack(line, stack) for line in lines]
        self.problems = [read_line(line) for line in self.lines]
        count = counted(len(self.lines), "problem")
        super().__init__("\n  ".join([f"invalid configuration of stack {stack} ({count})", *self.lines]))


def object_name(training: str) -> str:
    """The name of one of several trainings in those of its objects: a part of a host name has no dots."""
    return training.replace(".", "-")


def stacks() -> list[str]:
    """The names of all stacks that have a file, without those of tests."""
    names = (path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml"))
    return sorted(name for name in names if not name.startswith("e2e"))


def stack_file(stack: str) -> dict[str, Any]:
    """All of Pulumi.STACK.yaml. Raises ConfigError."""
    try:
        content = deepcopy(_read((ROOT / f"Pulumi.{stack}.yaml").read_bytes()))
    except yaml.YAMLError as error:
        raise _unusable(stack, f"is not YAML: {why_not_yaml(error)}") from None
    return content if isinstance(content, dict) else {}


@cache
def _read(content: bytes) -> Any:
    return read_yaml(content, StackReader)


def _unusable(stack: str, why: str) -> ConfigError:
    return ConfigError(stack, [f"Pulumi.{stack}.yaml: {why}"])


def stack_file_values(stack: str) -> dict[str, Any]:
    """The values under `trainyard:` in Pulumi.STACK.yaml. Raises ConfigError."""
    config = stack_file(stack).get("config")
    if not isinstance(config, dict) or not config:
        # `pulumi stack init` writes such a file.
        copy = f"has no config; copy a stack file: cp Pulumi.local.yaml Pulumi.{stack}.yaml"
        raise ConfigError(stack, list(unread(stack, ()))) if any(unread(stack, ())) else _unusable(stack, copy)
    return ours(config)


def ours(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values under our name, decoded; unknown keys too, so that infra/parse.py can refuse them."""
    parts = ((_parts(key), value) for key, value in config.items())
    return {name: _decoded(value) for (namespace, name), value in parts if namespace == PROJECT and ":" not in name}


def _parts(key: str) -> tuple[str, str]:
    """Namespace and name of a key under `config:`, as Pulumi reads them: a key without a namespace is the project's,
    and `trainyard:config:x` is an older spelling (sdk/go/common: workspace/loaders.go, resource/config/key.go,
    v3.200.0)."""
    namespace, colon, name = key.partition(":")
    return (namespace, name.removeprefix("config:")) if colon else (PROJECT, key)


def _decoded(value: Any) -> Any:
    """Decode JSON: Pulumi passes structured values so, and `pulumi config set KEY '{...}'` writes them so.

    Pulumi passes a key without a value as an empty text (sdk/go/common/workspace/loaders.go, v3.200.0), where a stack
    file has null: a section whose keys are all commented out.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=unique_keys) if value else None
    except (ValueError, RecursionError):  # no JSON, a key that stands twice, or what Python does not read
        return value


#: What Pulumi reads of a stack file (sdk/go/common/workspace/project.go, ProjectStack, v3.200.0); it passes over all
#: else, such as a section that is not indented.
TOP = ("config", "environment", "secretsprovider", "encryptedkey", "encryptionsalt")


def unread(stack: str, sections: Iterable[str]) -> Iterator[str]:
    """A line for each key of a stack file that Pulumi refuses, or passes over though it is meant for one of `sections`.

    Raises ConfigError where the file is not YAML.
    """
    file = ROOT / f"Pulumi.{stack}.yaml"
    content = stack_file(stack) if file.exists() else {}
    text = "" if content.keys() <= {*TOP} else file.read_text(errors="replace")
    for key in content.keys() - {*TOP}:
        # Values under an anchor, which aliases bring into a section, may stand anywhere.
        if not re.search(rf"^[\"']?{re.escape(key)}[\"']?\s*:\s*&", text, re.MULTILINE):
            close = difflib.get_close_matches(key.strip().lower(), TOP, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}?" if close else "indent it with two spaces below, or into its section"
            yield f"{_visible(key)}: stands beside `config:` in Pulumi.{stack}.yaml, where nothing reads it; {hint}"
    for key in TOP[2:]:
        if isinstance(content.get(key), (dict, list)):
            yield f"{key}: is not text; copy its line as `pulumi stack init` wrote it"
    config = content.get("config")
    first: dict[tuple[str, str], str] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        namespace, name = parts = _parts(key)
        if other := first.get(parts):
            yield f"{name}: given twice, as {other} and {key}; keep one"
        first[parts] = key
        if ":" in name:
            yield f"{key}: has more than one ':', which Pulumi refuses; give it as a key of its section"
        elif namespace != PROJECT and (_meant(namespace) or name.strip() in {*sections}):
            yield f"{_visible(key)}: nothing reads it; did you mean {PROJECT}:{name.strip()}?"
        elif parts == (PROJECT, "cluster") and isinstance(value, str) and isinstance(_decoded(value), dict):
            yield "cluster: is text, and Pulumi.yaml wants an object; write it as keys and values"


def foreign(stack: str) -> list[str]:
    """Keys of a stack file that are for neither this program nor Pulumi's engine."""
    keys = stack_file(stack).get("config") or {}
    return [key for key in keys if _parts(key)[0] not in (PROJECT, "pulumi")]


def _meant(namespace: str) -> bool:
    """Whether a namespace is ours with a slip of the hand."""
    return bool(difflib.get_close_matches(namespace.strip().lower(), [PROJECT], cutoff=0.7))


def _visible(key: str) -> str:
    """A key with what a terminal does not show, such as a no-break space, as an escape."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in key)


#: Tokens by their form, as the services document it: Hugging Face, GitHub, GitLab, AWS, Google, Slack, OpenAI and
#: others with sk-; and a password in an address.
TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{24,}|gh[pousr]_\w{24,}|github_pat_\w{24,}|glpat-[\w-]{16,}|A(KIA|SIA)[0-9A-Z]{16}"
    r"|AIza[\w-]{32,}|xox[abp]-[\w-]{16,}|sk-[\w-]{20,})|://[^/@\s]*:[^/@\s]+@"
)


def plain_tokens(values: Any, stack: str, path: str = "") -> Iterator[Finding]:
    """A warning of each value that holds a token and is not encrypted; `values` are as in a stack file."""
    if encrypted(values) or values is None or not str(values).strip():
        return
    if isinstance(values, (dict, list)):
        inner = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in inner:
            at = f"{path}[{key}]" if isinstance(values, list) else f"{path}.{key}".lstrip(".")
            yield from plain_tokens(value, stack, at)
    elif path.startswith("secrets.") or TOKEN.search(str(values)):
        fix = f"pulumi config set --secret --path {path}" if path.startswith("secrets.") else "use a key of `secrets`"
        yield warning(path, "is a token in plain text, for all who see the stack file", for_stack(fix, stack))


def for_stack(text: str, stack: str) -> str:
    """A message whose `pulumi config` commands name the stack; without it Pulumi changes the one that is selected."""
    return re.sub(r"\bpulumi config (set|rm)\b(?! --stack)", rf"pulumi config \1 --stack {stack}", text)


def marks(stack: str) -> dict[str, str]:
    """The stack's labels or tags, in lower case, since Google's labels allow no other."""
    return {"app": "trainyard", "stack": stack.lower()}


def is_marked(found: Mapping[str, str] | None, stack: str) -> bool:
    """Whether labels or tags that a cloud returns are those of this stack."""
    return bool(found) and marks(stack).items() <= found.items()
