"""Kubernetes quantities (`1000m`, `0.5Gi`, `1e3`) in the one spelling that the API server uses.

Rules from k8s.io/apimachinery pkg/api/resource: the suffix family stays (binary, decimal, exponent), the mantissa is
an integer, and the suffix is the largest that allows this.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MAPS = {"limits", "requests", "capacity", "allocatable", "hard", "overhead", "min", "max", "default", "defaultRequest"}


def is_quantity_map(key: str) -> bool:
    """Whether the values of the object under `key` are quantities (`resources.limits`, a quota's `hard`)."""
    return key in _MAPS


def canonical(value: Any) -> Any:
    """The server's spelling of a quantity; anything that is not one is returned as it is (the server will complain).

    >>> canonical("1000m"), canonical("0.5Gi"), canonical(2), canonical("1.5")
    ('1', '512Mi', '2', '1500m')
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return value
    text = str(value)
    match = _QUANTITY.fullmatch(text)
    if not match:
        return value
    number, exponent, suffix = Decimal(match[1]), match[2], match[3] or ""
    if suffix in _BINARY and suffix:
        amount = number * 1024 ** _BINARY.index(suffix)
        # Below 1024 the binary family has no suffix to spell the value with, and the decimal one is used.
        return _binary(amount) if abs(amount) >= 1024 else _decimal(amount)
    if exponent:
        return _exponent(number * Decimal(10) ** int(exponent[1:]))
    return _decimal(number * Decimal(10) ** _DECIMAL[suffix])


def _binary(amount: Decimal) -> str:
    if amount != amount.to_integral_value():
        return _decimal(amount)
    whole, power = int(amount), 0
    while power + 1 < len(_BINARY) and whole and whole % 1024 == 0:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_BINARY[power]}"


def _decimal(amount: Decimal) -> str:
    nano = int((amount * 10**9).to_integral_value(ROUND_CEILING))
    if nano == 0:
        return "0"
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        whole, rest = divmod(nano, 10 ** (power + 9))
        if rest == 0:
            return f"{whole}{suffix}"
    raise AssertionError("unreachable: nano divides by one")


def _exponent(amount: Decimal) -> str:
    if amount == 0:
        return "0"
    for power in (18, 15, 12, 9, 6, 3, 0, -3, -6, -9):
        whole = amount / Decimal(10) ** power
        if whole == whole.to_integral_value():
            return f"{int(whole)}e{power}" if power else str(int(whole))
    return str(amount)
