"""The rendezvous state as JSON: any pod may have written it, so reading it must not run code.

torch keeps the state as a pickle, and unpickling runs the code of whoever wrote it. A state that does not fit the types
here is refused, however it got into the store. Versions of the trainer do not share a state: another image is another
Job, and the Job's UID is the id of its rendezvous.
"""

import json
import re
import zlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    _NodeDesc,
    _RendezvousState,  # torch 2.15 has no public name for the state that its handler works on
)

LARGEST_BYTES = 1_000_000
"""Unpacked. A member takes 26 bytes, and 83 with its heartbeat: room for ten thousand. Packed, a member takes 4 to 7
bytes (1,000 members), and each of them writes the whole state once in a round."""
NEVER = datetime.min.replace(tzinfo=UTC)
"""Heartbeat of a member whose heartbeats are not in the state."""
_MEMBER = re.compile(r"([!-~]{1,253})_(\d{1,10})_(\d{1,10})", re.ASCII)
"""An address, a process id and a number, as torch's own text of a member has them."""


def read_moment(text: str) -> datetime:
    """A time as `isoformat` writes it. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not UTC:  # torch compares it with times in UTC
        raise ValueError("a time that is not in UTC")
    return moment


@lru_cache(maxsize=10_000)  # in a large round the same members are read many times a second
def _read_member(text: str) -> _NodeDesc:
    found = _MEMBER.fullmatch(text)
    if found is None:
        raise ValueError("not a member's name")
    return _NodeDesc(found[1], int(found[2]), int(found[3]))


Member = Annotated[str, AfterValidator(_read_member)]
Moment = Annotated[str, AfterValidator(read_moment)]
Count = Annotated[int, Field(ge=0, lt=2**31)]


class _Document(BaseModel):
    """The fields of _RendezvousState with their required types."""

    model_config = ConfigDict(strict=True, extra="forbid")

    round: Count
    complete: bool
    closed: bool
    deadline: Moment | None
    participants: dict[Member, Count]
    wait_list: set[Member]
    redundancy_list: set[Member]
    last_heartbeats: dict[Member, Moment] | None


def encode(state: _RendezvousState, heartbeats: bool = True) -> bytes:
    """Pack the state; without `heartbeats` where each has a key of its own."""
    document = {
        **vars(state),
        "deadline": None if state.deadline is None else state.deadline.isoformat(),
        # Sorted, names that begin alike stand side by side, which packs a fifth smaller.
        "participants": {str(node): state.participants[node] for node in sorted(state.participants)},
        "wait_list": [str(node) for node in sorted(state.wait_list)],
        "redundancy_list": [str(node) for node in sorted(state.redundancy_list)],
        "last_heartbeats": {str(node): moment.isoformat() for node, moment in state.last_heartbeats.items()}
        if heartbeats
        else None,
    }
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode())


def decode(data: bytes) -> _RendezvousState:
    """The state that `encode` wrote. Raises RendezvousStateError, in one line, for anything else."""
    try:
        text = zlib.decompressobj().decompress(data, LARGEST_BYTES + 1)
    except zlib.error:
        raise RendezvousStateError(f"{len(data)} bytes that are no state (not packed)") from None
    if len(text) > LARGEST_BYTES:
        raise RendezvousStateError(f"{len(data)} bytes; at most {LARGEST_BYTES} are read")
    try:
        document = _Document.model_validate_json(text)
    except ValidationError as error:
        what = ascii(error.errors(include_url=False, include_input=False)[0]["msg"])[:100]
        raise RendezvousStateError(f"{len(data)} bytes that are no state ({what})") from None
    members = document.participants.keys() | document.wait_list | document.redundancy_list
    heartbeats: dict[str, Any] | None = document.last_heartbeats
    if heartbeats is None:
        heartbeats = dict.fromkeys(members, NEVER)
    # Every member must have a heartbeat: without one it could never be found lost.
    if not heartbeats.keys() >= members:
        raise RendezvousStateError(f"{len(data)} bytes that are no state (a member without a heartbeat)")
    state = _RendezvousState()
    vars(state).update(vars(document), last_heartbeats=heartbeats)
    return state
