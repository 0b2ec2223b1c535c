"""A bill: the cost of each item per hour, between trainings and at full size. The clouds fill it in."""

from __future__ import annotations

from dataclasses import dataclass

#: Months are billed as this many hours (cloud.google.com/compute/disks-image-pricing; AWS's calculator does the same).
HOURS_PER_MONTH = 730


@dataclass(frozen=True)
class Rate:
    """USD per hour, on demand and as Spot."""

    on_demand: float
    spot: float


@dataclass(frozen=True)
class Line:
    """One item of the bill, USD per hour; None: no list price is known."""

    what: str
    at_rest: float | None
    at_full: float | None


@dataclass(frozen=True)
class Estimate:
    region: str
    lines: tuple[Line, ...]
    date: str
    """Date of the prices."""
    source: str
    """The list that has them."""
    notes: tuple[str, ...] = ()

    @property
    def at_rest(self) -> float | None:
        return _total([line.at_rest for line in self.lines])

    @property
    def at_full(self) -> float | None:
        return _total([line.at_full for line in self.lines])

    @property
    def unknown(self) -> list[str]:
        """Items without a known price."""
        return [line.what for line in self.lines if line.at_rest is None or line.at_full is None]


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def always(what: str, each: float | None) -> Line:
    """An item that costs the same at rest and at full size; USD per hour."""
    return Line(what, each, each)


def counted(what: str, fewest: int, most: int, each: float | None) -> Line:
    """Several of a kind, of which `fewest` run at rest; `each` in USD per hour."""
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    if each is None:
        return Line(f"{count} x {what}", 0 if not fewest else None, None if most else 0)
    return Line(f"{count} x {what}", fewest * each, most * each)


def monthly(amount: float, each: float | None) -> float | None:
    """USD per hour of `amount` units (GiB, keys) at `each` USD a month."""
    return amount * each / HOURS_PER_MONTH if each is not None else None
