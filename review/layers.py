"""Draws which part of the program imports which, from the sources, as a Mermaid flowchart (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

from infra.stackfiles import ROOT

#: What a reader has to know of the house; tests, benches and the policy pack look at all of it.
PARTS = ("__main__", "infra", "workloads", "trainer", "local")
SAYS = {
    "__main__": "__main__.py: the whole program",
    "infra": "infra/: what a cloud bills",
    "workloads": "workloads/: what runs on any cluster",
    "trainer": "trainer/: what runs in the container",
    "local": "local/: one machine as a cloud",
}


def draw() -> str:
    """An arrow means "imports"."""
    boxes = [f'  {part}["{SAYS[part]}"]' for part in PARTS]
    return "\n".join(["flowchart TD", *boxes, *(f"  {user} --> {used}" for user, used in arrows())])


def arrows() -> list[tuple[str, str]]:
    """Pairs (part, what it imports)."""
    return sorted({(user, used) for user in PARTS for used in _imported(_sources(user)) if used != user})


def _sources(part: str) -> list[Path]:
    return [ROOT / "__main__.py"] if part == "__main__" else sorted((ROOT / part).rglob("*.py"))


def _imported(sources: list[Path]) -> set[str]:
    found: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found & set(PARTS)
