"""Result pages: what was measured, on which machine, as a table; handwritten notes below it are kept."""

import datetime
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NOTES = "<!-- From here on by hand; the bench keeps it. -->"


def results(rehearsal: bool = False) -> Path:
    """The folder of the pages. A rehearsal's pages say nothing of speed and stay out of the repository."""
    return Path(tempfile.gettempdir()) / "trainyard-rehearsal" if rehearsal else Path(__file__).parent / "results"


def write(path: Path, lines: Iterable[str]) -> None:
    """Replace what the bench wrote before. What stands below the line NOTES stays."""
    _, line, kept = path.read_text("utf-8").partition(NOTES) if path.exists() else ("", "", "")
    path.parent.mkdir(exist_ok=True)
    text = "\n".join(lines).rstrip("\n") + "\n"
    path.write_text(text + (f"\n{line}{kept}" if line else ""), "utf-8")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table. Cells are cut nowhere; None is an empty one."""
    shown = (["" if cell is None else str(cell) for cell in row] for row in rows)
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {' | '.join(row)} |" for row in shown)]


def figures(results: Sequence[Mapping[str, float]]) -> list[str]:
    """A table of measurements that have the same figures, a row each."""
    return table(list(results[0]), ([f"{figure:.4g}" for figure in result.values()] for result in results))


def describe(*packages: str) -> str:
    """One line: date, processor with the cores that this process may use, operating system, versions."""
    cores = len(os.sched_getaffinity(0))
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    parts = [
        datetime.date.today().isoformat(),
        f"{_processor()}, {cores} core{'s' if cores > 1 else ''}",
        f"Linux {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
        *versions,
    ]
    return "; ".join(parts)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()
