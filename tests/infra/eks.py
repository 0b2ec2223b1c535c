"""The AWS stack for tests: recorded with changes, and its parts by name."""

from __future__ import annotations

from typing import Any

import grpc

from review.recording import Recorded, Recording, record
from tests.infra.recorded import changed, recorded

STACK = "aws-g4dn"
#: The zones of its file, the first choice for workers first.
ZONES = ["use2-az1", "use2-az2", "use2-az3"]


def stack(**sections: dict[str, Any] | None) -> Recording:
    return record(STACK, changed(STACK, **sections)) if sections else recorded(STACK)


def workers(found: Recording) -> list[Recorded]:
    """The node groups that train, in the order of ZONES."""
    groups = [item for item in found.resources if item.kind == "NodeGroup" and item.name.startswith("workers-")]
    return sorted(groups, key=lambda item: ZONES.index(item.name.removeprefix("workers-")))


class NoCredentials(grpc.RpcError):
    """A provider's refusal, as the engine passes it on."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return "no valid credential sources found"


def refuse(*_: Any) -> Any:
    """In place of an answer of AWS's."""
    raise NoCredentials
