"""The tables of docs/training.md and docs/model.md, from docstrings; `make docs` writes them."""

import ast
import inspect
import json
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from trainer.config import schema as config
from trainer.train import metrics


def docstrings(cls: type) -> dict[str, str]:
    """The sentence under each field of a class, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for item, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(following, ast.Expr):
            text = following.value.value if isinstance(following.value, ast.Constant) else None
            if isinstance(text, str):
                found[item.target.id] = " ".join(text.split())
    return found


def settings() -> str:
    """A table for each section of the configuration."""
    parts: list[str] = []
    hints = get_type_hints(config.Config)
    scalars = [item for item in fields(config.Config) if not is_dataclass(hints[item.name])]
    texts = docstrings(config.Config)
    rows = [f"| `{item.name}` | {_shown(item.default)} | {_cell(texts[item.name])} |" for item in scalars]
    parts.append("\n".join(["| setting | default | meaning |", "|---|---|---|", *rows]))
    for section in fields(config.Config):
        cls = hints[section.name]
        if section in scalars:
            continue
        texts = docstrings(cls)
        rows = [
            f"| `{section.name}.{item.name}` | {_shown(item.default)} | {_cell(texts.get(item.name, ''))} |"
            for item in fields(cls)
        ]
        parts.append("\n".join([f"### {section.name}", "", "| setting | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def figures() -> str:
    """A row for each figure of a log step."""
    texts = docstrings(metrics.StepFigures)
    rows = [f"| `{item.name}` | {_cell(texts.get(item.name, ''))} |" for item in fields(metrics.StepFigures)]
    return "\n".join(["| figure | meaning |", "|---|---|", *rows])


def _shown(default: Any) -> str:
    if default == "":
        return "empty"
    return f"`{json.dumps(default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
