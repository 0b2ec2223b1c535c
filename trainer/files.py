"""Writes that a kill or a power cut leaves either undone or complete."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def fsync(path: Path) -> None:
    """Push a file's content, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str, durable: bool = True) -> None:
    """Replace `path` by `text`: a reader sees the old content or the new, never a part.

    durable=False leaves out the fsyncs, for files that are rewritten every few seconds.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync(path.parent)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True) + "\n", durable)


def read_json(path: Path) -> Any | None:
    """The parsed file, or None when it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):  # a ValueError also for a number of 5,000 digits
        return None


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when it is missing or holds anything else: others write to the volume."""
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
