"""Reads stack files without Pulumi's engine; names the labels or tags of everything that a stack is billed for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainer.config.values import StackReader, encrypted, read_yaml
from trainer.plain import counted

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "trainyard"
#: The kubeconfig context of the node that `trainyard local up` starts on this machine.
NODE_CONTEXT = "trainyard-local"


class ConfigError(ValueError):
    """Every problem of a stack's configuration, one line each."""

    def __init__(self, stack: str, problems: list[str]):
        self.problems = problems = [for_stack(problem, stack) for problem in problems]
        count = counted(len(problems), "problem")
        super().__init__("\n  ".join([f"invalid configuration of stack {stack} ({count})", *problems]))


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
        content = read_yaml((ROOT / f"Pulumi.{stack}.yaml").read_text("utf-8"), StackReader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise _unusable(stack, f"is not YAML{line}: {error.problem}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise _unusable(stack, f"is not YAML: {error}") from None
    return content if isinstance(content, dict) else {}


def _unusable(stack: str, why: str) -> ConfigError:
    return ConfigError(stack, [f"Pulumi.{stack}.yaml: {why}"])


def stack_file_values(stack: str) -> dict[str, Any]:
    """The values under `trainyard:` in Pulumi.STACK.yaml. Raises ConfigError."""
    config = stack_file(stack).get("config")
    if not isinstance(config, dict) or not config:
        # `pulumi stack init` writes such a file.
        raise _unusable(stack, f"has no config; copy a stack file: cp Pulumi.local.yaml Pulumi.{stack}.yaml")
    return ours(config)


def ours(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values under our name, decoded; unknown keys too, so that infra/parse.py can refuse them."""
    prefix = f"{PROJECT}:"
    return {key.removeprefix(prefix): _decoded(value) for key, value in config.items() if key.startswith(prefix)}


def _decoded(value: Any) -> Any:
    """Decode JSON: Pulumi passes structured values so, and `pulumi config set KEY '{...}'` writes them so.

    Pulumi passes a key without a value as an empty text (sdk/go/common/workspace/loaders.go, v3.200.0), where a stack
    file has null: a section whose keys are all commented out.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else None
    except json.JSONDecodeError:
        return value


def beside_config(stack: str) -> list[str]:
    """Our keys at the top level of a stack file, beside `config:`, where Pulumi ignores them."""
    file = ROOT / f"Pulumi.{stack}.yaml"
    return re.findall(rf"^[\"']?({PROJECT}:\w+)", file.read_text() if file.exists() else "", re.MULTILINE)


#: Tokens by their form, as the services document it: Hugging Face, GitHub, GitLab, AWS, Google, Slack, OpenAI and
#: others with sk-; and a password in an address.
TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{24,}|gh[pousr]_\w{24,}|github_pat_\w{24,}|glpat-[\w-]{16,}|A(KIA|SIA)[0-9A-Z]{16}"
    r"|AIza[\w-]{32,}|xox[abp]-[\w-]{16,}|sk-[\w-]{20,})|://[^/@\s]*:[^/@\s]+@"
)


def plain_tokens(values: Any, stack: str, path: str = "") -> Iterator[str]:
    """A line for each value that holds a token and is not encrypted; `values` are as in a stack file."""
    if encrypted(values) or values is None or not str(values).strip():
        return
    if isinstance(values, (dict, list)):
        inner = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in inner:
            at = f"{path}[{key}]" if isinstance(values, list) else f"{path}.{key}".lstrip(".")
            yield from plain_tokens(value, stack, at)
    elif path.startswith("secrets.") or TOKEN.search(str(values)):
        fix = f"pulumi config set --secret --path {path}" if path.startswith("secrets.") else "use a key of `secrets`"
        yield for_stack(f"{path}: is a token in plain text, for all who see the stack file; {fix}", stack)


def for_stack(text: str, stack: str) -> str:
    """A message whose `pulumi config` commands name the stack; without it Pulumi changes the one that is selected."""
    return re.sub(r"\bpulumi config (set|rm)\b(?! --stack)", rf"pulumi config \1 --stack {stack}", text)


def marks(stack: str) -> dict[str, str]:
    """The stack's labels or tags, in lower case, since Google's labels allow no other."""
    return {"app": "trainyard", "stack": stack.lower()}


def is_marked(found: Mapping[str, str] | None, stack: str) -> bool:
    """Whether labels or tags that a cloud returns are those of this stack."""
    return bool(found) and marks(stack).items() <= found.items()
