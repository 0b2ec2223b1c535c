"""Draw which folder imports which, as a Mermaid flowchart.

Counts the imports at the top of each file. An import inside a function is for one case, such as that of the local
node in cli/target.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.stackfiles import ROOT
from review.recording import closure

FOLDERS = ("infra", "workloads", "cli", "review", "prove", "trainer", "local")


def layers() -> str:
    """The flowchart's text; a box has the first clause of its folder's docstring."""
    first = {"__main__": ROOT / "__main__.py"} | {name: ROOT / name / "__init__.py" for name in FOLDERS}
    files = {name: sorted(path.parent.rglob("*.py")) if name in FOLDERS else [path] for name, path in first.items()}
    direct = {
        name: {each for path in files[name] for each in _imported(path)} & first.keys() - {name} for name in first
    }
    boxes = [
        f'  {name}["{name}{".py" if name == "__main__" else "/"}: {_title(path)}"]' for name, path in first.items()
    ]
    arrows = [f"  {name} --> {imported}" for imported, name in without_implied(direct)]
    return "\n".join(["flowchart TD", *boxes, *arrows])


def without_implied(direct: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Pairs (predecessor, node), without those that other pairs imply."""
    before = closure(direct)
    arrows = []
    for node, nearest in direct.items():
        arrows += [(each, node) for each in nearest.difference(*(before[other] for other in nearest))]
    return sorted(arrows)


def _imported(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module.partition(".")[0]


def _title(path: Path) -> str:
    sentence = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    return " ".join(sentence.replace("`", "").split()).partition(":")[0].rstrip(".")
