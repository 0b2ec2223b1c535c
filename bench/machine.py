"""What a measurement was made on: it says nothing without."""

import datetime
import importlib.metadata
import os
import platform
import tempfile
from pathlib import Path


def results(rehearsal: bool = False) -> Path:
    """The folder of the pages; those of a rehearsal say nothing of speed and stay out of the repository."""
    return Path(tempfile.gettempdir()) / "trainyard-rehearsal" if rehearsal else Path(__file__).parent / "results"


def describe(*packages: str) -> str:
    """One line: date, processor with the cores this process may use, operating system, versions."""
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
