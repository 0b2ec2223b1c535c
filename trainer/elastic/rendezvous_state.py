"""The rendezvous state as JSON.

torch keeps the state as a pickle, and unpickling runs the code of whoever wrote it. Versions of the trainer do not
share a state: another image is another Job, and the Job's UID is the id of its rendezvous.
"""

import json
import zlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    _NodeDesc,
    _RendezvousState,  # torch 2.15 has no public name for the state that its handler works on
)

from trainer.errors import cause

NEVER = datetime.min.replace(tzinfo=UTC)
"""Heartbeat of a member whose heartbeats are not in the state."""


@lru_cache(maxsize=10_000)  # in a large round the same members are read many times a second
def read_member(text: str) -> _NodeDesc:
    """The inverse of torch's own text of a member."""
    address, process, number = text.rsplit("_", 2)
    return _NodeDesc(address, int(process), int(number))


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
        document: dict[str, Any] = json.loads(zlib.decompress(data))
        members = {
            "participants": {read_member(name): rank for name, rank in document["participants"].items()},
            "wait_list": set(map(read_member, document["wait_list"])),
            "redundancy_list": set(map(read_member, document["redundancy_list"])),
        }
        beats: dict[str, str] | None = document["last_heartbeats"]
        if beats is None:
            heartbeats = dict.fromkeys(set().union(*members.values()), NEVER)
        else:
            heartbeats = {read_member(name): datetime.fromisoformat(beat) for name, beat in beats.items()}
        deadline = document["deadline"] and datetime.fromisoformat(document["deadline"])
        state = _RendezvousState()
        vars(state).update(document, **members, deadline=deadline, last_heartbeats=heartbeats)
    except (zlib.error, ValueError, TypeError, AttributeError, LookupError) as error:
        raise RendezvousStateError(f"{len(data)} bytes that are no state ({cause(error)})") from None
    return state
