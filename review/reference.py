"""Tables of the documentation: every key of a stack and of the trainer, from the models that validate them and from
their marks; every figure of a log step; every command, from its help."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cli.__main__ import COMMANDS, GROUPS, load
from infra.clouds import CLOUDS, keys
from infra.effect import conditions, marks
from infra.stackfiles import ROOT
from infra.training_rules import DERIVED

HEAD = "| key under `trainyard:` | default | meaning | changed on a living stack |\n|---|---|---|---|"


def table() -> str:
    """Markdown: key, default, meaning, effect of a change. The keys that each kind of cluster has, then those that one
    kind has alone, by kind."""
    by_kind = {kind: {key: field for key, field in keys(kind).items() if key not in DERIVED} for kind in CLOUDS}
    everywhere = {key for key in keys() if all(key in each or key.startswith("nodes.") for each in by_kind.values())}
    told = {kind: {key: _row(key, field) for key, field in each.items()} for kind, each in by_kind.items()}
    alike = {key for key in everywhere if len({rows[key] for rows in told.values() if key in rows}) == 1}
    first = {key: row for rows in told.values() for key, row in rows.items() if key in alike}
    parts = [HEAD, *(first[key] for key in keys() if key in first)]
    for kind, rows in told.items():
        parts += [f"| **with `cluster.kind: {kind}`** | | | |", *(row for key, row in rows.items() if key not in alike)]
    return "\n".join(parts)


def _row(path: str, field: FieldInfo) -> str:
    used = "".join(f" O{str(each)[1:]}." for each in conditions(field))
    meaning = (field.description or "") + used + _allowed(field)
    return f"| `{path}` | {_default(field)} | {_cell(meaning)} | {'; '.join(map(str, marks(field)))} |"


def figures() -> str:
    """A row for each figure of a log step, parsed from the source, so that the trainer's libraries are not needed."""
    (figures,) = (
        item
        for item in ast.parse((ROOT / "trainer" / "train" / "metrics.py").read_text()).body
        if isinstance(item, ast.ClassDef) and item.name == "StepFigures"
    )
    rows = [
        f"| `{ast.unparse(field.target)}` | {_cell(ast.literal_eval(sentence.value))} |"
        for field, sentence in zip(figures.body, figures.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(sentence, ast.Expr)
    ]
    return "\n".join(["| figure | meaning |", "|---|---|", *rows])


def commands() -> str:
    """A table: how a command is typed, and its help. `--help` of each has its options."""
    parts = ["| command | what it does |", "|---|---|"]
    for group, names in GROUPS.items():
        parts += [f"| **{group}** | |", *(row for name in names for row in _rows(name))]
    return "\n".join(parts)


def _rows(name: str) -> Iterator[str]:
    """The row of a command, and of those in it."""
    command = load(name)
    arguments = [each.metavar or each.name.upper() for each in command.params if not each.opts[0].startswith("-")]
    yield f"| `{' '.join(['trainyard', name, *arguments])}` | {_cell(command.help or COMMANDS[name][1])} |"
    for each, found in getattr(command, "commands", {}).items():
        yield f"| `trainyard {name} {each}` | {_cell(found.help)} |"


def _cell(text: str) -> str:
    """A text's paragraphs in one line."""
    return " ".join(text.split()).replace("|", "\\|")


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        return ""
    return "" if field.default is None else f"`{json.dumps(field.default)}`"


def _allowed(field: Any) -> str:
    """The choices of an enumeration, unless the key's description names them all."""
    choices = [
        str(choice)
        for part in (field.annotation, *get_args(field.annotation))
        for choice in get_args(part)
        if isinstance(choice, str)
    ]
    missing = [choice for choice in choices if choice not in (field.description or "")]
    return f" Allowed: {', '.join(f'`{choice}`' for choice in choices)}." if len(choices) > 1 and missing else ""
