"""Tables on the terminal, and in a file so wide that each row is a line."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.plain import plain

WIDE = 200
"""Characters of a line where no terminal shows it: another program reads it."""


def wide() -> Console:
    """The terminal; where there is none, so wide that each row is a line."""
    return console if (console := Console(highlight=False)).is_terminal else Console(width=WIDE, highlight=False)


def table(*columns: str, right: Iterable[str] = (), whole: Iterable[str] = (), gap: int = 2) -> Table:
    """An empty table without lines; `right` are the columns that are set to the right, which, as those of `whole`, stay
    on one line."""
    made = Table(box=None, padding=(0, gap, 0, 0))
    for name in columns:
        stays = name in (*right, *whole)
        made.add_column(name, justify="right" if name in right else "left", no_wrap=stays, overflow="fold")
    return made


def cells(*row: object) -> list[Text]:
    """Of a table: what pods and the volume say is no markup."""
    return [each if isinstance(each, Text) else Text(plain("" if each is None else each)) for each in row]
