"""What a type of Pulumi's aws package is in AWS: how it is made, changed and deleted there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .account import Account, Inputs

#: (id, outputs beside the inputs)
Made = tuple[str, dict[str, Any]]


def _nothing(account: Account, id_: str, state: Inputs) -> None:
    """For what is a setting of something else, and goes with it."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`state` of a resource are its inputs with its outputs laid over them."""

    create: Callable[[Account, Inputs], Made]
    delete: Callable[[Account, str, Inputs], None] = _nothing
    update: Callable[[Account, str, Inputs, Inputs], dict[str, Any]] | None = None
    """(account, id, state before, new inputs) -> outputs beside the inputs; None: nobody looked at changes of it."""
    name: str = ""
    """The property that the provider fills with a name of its own where the program gives none."""


def deletes(
    service: str, operation: str, argument: str, several: bool = False
) -> Callable[[Account, str, Inputs], None]:
    """What deletes a resource by its id alone; `several`: the operation takes a list."""

    def delete(account: Account, id_: str, state: Inputs) -> None:
        account.call(service, operation, **{argument: [id_] if several else id_})

    return delete
