"""A page of results: the bench writes its upper part, people may write below it."""

from pathlib import Path

NOTES = "<!-- From here on by hand; the bench keeps it. -->"


def write(path: Path, text: str) -> None:
    """Replace what the bench wrote before. What stands below the line NOTES stays."""
    _, line, kept = path.read_text("utf-8").partition(NOTES) if path.exists() else ("", "", "")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.rstrip("\n") + "\n" + (f"\n{line}{kept}" if line else ""), "utf-8")
