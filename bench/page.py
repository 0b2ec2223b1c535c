"""Result pages: measurements as a table, with the machine. Handwritten notes below the line NOTES are kept."""

import datetime
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NOTES = "<!-- From here on by hand; the bench keeps it. -->"


def results(rehearsal: bool = False) -> Path:
    """Return the folder of the pages: a temporary one for a rehearsal, whose pages do not show real speed, and where
    the checkout is read-only."""
    own = Path(__file__).parent / "results"
    if rehearsal or not os.access(own, os.W_OK):
        return Path(tempfile.gettempdir()) / f"trainyard-{'rehearsal' if rehearsal else 'results'}"
    return own


def write(path: Path, *parts: str | Sequence[str]) -> str:
    """Write paragraphs, tables and lists over the page's generated part, and return them as text. All below the line
    NOTES stays."""
    _, line, kept = path.read_text("utf-8").partition(NOTES) if path.exists() else ("", "", "")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts if part) + "\n"
    path.write_text(text + (f"\n{line}{kept}" if line else ""), "utf-8")
    return text


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Make a Markdown table. None is an empty cell."""
    shown = (["" if cell is None else str(cell) for cell in row] for row in rows)
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {' | '.join(row)} |" for row in shown)]


def figures(results: Sequence[Mapping[str, float]]) -> list[str]:
    """Make a table of measurements with the same figures, one per row."""
    return table(list(results[0]), ([f"{figure:.4g}" for figure in result.values()] for result in results))


def describe(*packages: str) -> str:
    """Describe date, processor with the cores that this process may use, operating system and versions in one line."""
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


def load() -> str:
    """Say what other programs ran. Call it before a measurement begins."""
    return f"load average {os.getloadavg()[0]:.1f} when it began"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()
