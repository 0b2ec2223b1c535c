"""The text of a document that is one field of a record; conversations.py makes it of a whole record."""

from collections import Counter
from typing import Any

from trainer.config.values import kind
from trainer.data.documents import Place
from trainer.errors import UserError


class TextField:
    """Takes a record's text from one of its fields; null and empty text make no document."""

    def __init__(self, name: str) -> None:
        self.columns: tuple[str, ...] = (name,)
        self.notes: Counter[tuple[str, str]] = Counter()

    def read(self, record: Any, place: Place) -> str:
        (name,) = self.columns
        if not isinstance(record, dict) or name not in record:
            have = f"it has {', '.join(map(str, record))}" if isinstance(record, dict) else "it is not a JSON object"
            raise UserError(f"--input {place()}: no field '{name}'; {have}: give one with --text-field")
        text = record[name]
        if text is not None and not isinstance(text, str):
            raise UserError(f"--input {place()}: field '{name}' holds {kind(text)}, not text")
        return text or ""
