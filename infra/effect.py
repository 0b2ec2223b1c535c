"""Marks beside a key's type: what its change does to a living stack (infra/changes.py), and with what it is used
(infra/rules.py). docs/configuration.md shows them. A key without a mark costs neither the cluster, nor data, nor all
objects, and is used always."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo

from infra.facts import numbers

#: Whether a change from an old value to a new one is of a kind, which the function's name says.
When = Callable[[Any, Any], bool]


def changed(old: Any, new: Any) -> bool:
    return True


def smaller(old: Any, new: Any) -> bool:
    return new < old


def older(old: Any, new: Any) -> bool:
    """`latest` names no version: it is neither older nor newer."""
    return [] < numbers(new) < numbers(old)


def turned_on(old: Any, new: Any) -> bool:
    return bool(new)


def turned_off(old: Any, new: Any) -> bool:
    return not new


@dataclass(frozen=True)
class Replaces:
    """A change replaces parts of the stack with all that is on them: refused unless `cluster.replace` is true, but for
    workers."""

    parts: str = ""
    """`cluster`, `data`, `objects` (all that the stack has in a cluster) or `workers`, with commas between them."""
    on: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Kind of volume or of cluster -> the parts there."""

    def __str__(self) -> str:
        cells = {"": self.parts, **self.on}
        said = {kind: f"replaces {parts}" if parts else "nothing" for kind, parts in cells.items()}
        return "; ".join(f"{kind}: {text}" if kind else text for kind, text in said.items() if kind or self.parts)

    def there(self, kind: str, volume: str) -> list[str]:
        """The parts that a change replaces in a stack."""
        return self.on.get(volume, self.on.get(kind, self.parts)).split(", ")


@dataclass(frozen=True)
class Impossible:
    """A change cannot succeed, even with `cluster.replace`."""

    when: When
    because: str
    on: tuple[str, ...] = ()
    """Kinds of volume, each alone or with its tier (`filestore ZONAL`); empty: any."""

    def __str__(self) -> str:
        only = f" ({', '.join(self.on)})" if self.on else ""
        return f"**refused** when {_words(self.when)}{only}"


@dataclass(frozen=True)
class Careful:
    """A change is made, with a warning."""

    when: When
    because: str

    def __str__(self) -> str:
        return f"a warning when {_words(self.when)}"


def _words(when: When) -> str:
    return when.__name__.replace("_", " ")


Mark = Replaces | Impossible | Careful


def marks(field: FieldInfo) -> list[Mark]:
    """What a key says of its change."""
    return [each for each in field.metadata if isinstance(each, Mark)]


class OnlyWith:
    """A key that nothing reads unless another one has one of these values, or any other than one; without either,
    unless it is set."""

    def __init__(self, key: str, *values: str | None, other_than: str = "") -> None:
        self.key, self.values, self.other_than = key, values, other_than

    def __str__(self) -> str:
        """Such as `only used with storage.kind nfs`."""
        words = f"other than {self.other_than}" if self.other_than else " or ".join(filter(None, self.values))
        return f"only used with {self.key} {words}".rstrip()

    def holds(self, value: Any) -> bool:
        if self.other_than:
            return value != self.other_than
        return value in self.values if self.values else bool(value)


def conditions(field: FieldInfo) -> list[OnlyWith]:
    """With what a key is used."""
    return [each for each in field.metadata if isinstance(each, OnlyWith)]
