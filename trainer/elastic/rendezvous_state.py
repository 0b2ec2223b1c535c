"""The rendezvous state as JSON: what any pod may have written is read without running it.

torch keeps the state as a pickle, and unpickling what a stranger wrote is running the stranger's code. A state that
does not fit here is refused, however it got into the store. Versions of the trainer do not meet in one state: another
image is another Job, and the Job's UID is the id of its rendezvous.
"""

import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    _NodeDesc,
    _RendezvousState,  # torch 2.15 has no public name for the state that its handler works on
)

LARGEST_BYTES = 1_000_000
"""A member takes 90 bytes: room for ten thousand. etcd itself takes 1.5 MiB (--max-request-bytes)."""
_NODE = re.compile(r"([!-~]{1,253})_(\d{1,10})_(\d{1,10})", re.ASCII)
"""An address, a process id and a number, as torch's own text of a member has them."""
_LARGEST = 2**31


def encode(state: _RendezvousState) -> bytes:
    document = {
        "round": state.round,
        "complete": state.complete,
        "closed": state.closed,
        "deadline": None if state.deadline is None else state.deadline.isoformat(),
        "participants": {str(node): rank for node, rank in state.participants.items()},
        "wait_list": [str(node) for node in state.wait_list],
        "redundancy_list": [str(node) for node in state.redundancy_list],
        "last_heartbeats": {str(node): moment.isoformat() for node, moment in state.last_heartbeats.items()},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode(data: bytes) -> _RendezvousState:
    """The state that `encode` wrote. Raises RendezvousStateError, in one line, for anything else."""
    if len(data) > LARGEST_BYTES:
        raise RendezvousStateError(f"{len(data)} bytes; at most {LARGEST_BYTES} are read")
    try:
        return _read(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = f"{type(error).__name__}: {' '.join(ascii(error.args[0]).split())[:100]}" if error.args else repr(error)
        raise RendezvousStateError(f"{len(data)} bytes that are no state ({what})") from None


def moment(text: Any) -> datetime:
    """A time as `isoformat` writes it. Raises ValueError or TypeError."""
    read = datetime.fromisoformat(text)
    if read.tzinfo is not UTC:  # torch compares it with times in UTC
        raise ValueError("a time that is not in UTC")
    return read


def _read(document: Any) -> _RendezvousState:
    state = _RendezvousState()
    if _of(dict, document).keys() != vars(state).keys():
        raise ValueError("not the keys of a state")
    state.round = _whole(document["round"])
    state.complete, state.closed = _of(bool, document["complete"]), _of(bool, document["closed"])
    state.deadline = None if document["deadline"] is None else moment(document["deadline"])
    heartbeats: dict[str, Any] = _of(dict, document["last_heartbeats"])
    nodes = {text: _node(text) for text in heartbeats}
    state.last_heartbeats = {nodes[text]: moment(beat) for text, beat in heartbeats.items()}
    # Nobody is in a round, or waits for one, without a heartbeat: it could never be found to be lost.
    state.participants = {nodes[text]: _whole(rank) for text, rank in _of(dict, document["participants"]).items()}
    state.wait_list = {nodes[text] for text in _of(list, document["wait_list"])}
    state.redundancy_list = {nodes[text] for text in _of(list, document["redundancy_list"])}
    return state


@lru_cache(maxsize=10_000)  # of a large round all but one member are read again and again, many times a second
def _node(text: str) -> _NodeDesc:
    found = _NODE.fullmatch(text)
    if found is None:
        raise ValueError("not a member's name")
    return _NodeDesc(found[1], int(found[2]), int(found[3]))


def _whole(value: Any) -> int:
    if not 0 <= _of(int, value) < _LARGEST:
        raise ValueError("a number out of range")
    return value


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:  # not isinstance: true is no 1
        raise TypeError(f"{type(value).__name__} where {kind.__name__} is due")
    return value
