"""Which members of a rendezvous are alive, judged by what this node has watched, and which are worth waiting for.

torch compares each member's last heartbeat, a time of day on that member's machine, with the clock of this one: an
outage of the store longer than the keep-alive, or a clock skew of a few seconds, makes live members look lost. Here a
member is lost when its heartbeat stayed the same through a whole keep-alive window of watching. Time in which nothing
could be seen (the store was away, this process was frozen) does not count as watching.

If the backend has a key for each member's heartbeat (etcd), heartbeats stay out of the shared state. The state has one
key, and each write invalidates the concurrent ones: hundreds of members would spend their time on refused heartbeats.
For the same reason a heartbeat tells which round its member asks for: whoever writes the state next lets in all who
ask, and their own writes, which would be refused one after the other, are no longer needed.

torch keeps every round open for a last call. Members change rounds with one write (rendezvous.py), so each member of
the last round either waits for the next one or is gone when it opens: it begins at once. Newcomers arrive in groups:
they get the last call while the members still train.
"""

import logging
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    RendezvousSettings,
    _BackendRendezvousStateHolder,  # torch 2.15 has no public way to replace how it judges
    _remove_participant_epilogue,
    _RendezvousState,
)

from trainer.elastic import rendezvous_state

log = logging.getLogger(__name__)

LEAST_GLANCE_SECONDS = 1.5
"""Agents look about once a second: up to this much of any pause between two looks counts as watched."""
LOOKS_A_SECOND = 128
"""At most so often do all members together look at a large round that stands still: etcd spends 1.5 ms on each look."""
BACKOFF_SECONDS = 0.01
"""First pause after a write that lost to another member's; it doubles, up to this much for each member. In a large
round all write at once and each write invalidates the others: without pauses, 256 members need 30,000 writes."""
LONGEST_BACKOFF_SECONDS = 2.0


@dataclass(frozen=True)
class Beat:
    moment: datetime
    """By the member's own clock."""
    asked: int | None = None
    """The round that it asks for."""


class BeatingBackend(RendezvousBackend):
    """A backend with a key for each member's heartbeat."""

    beats: Mapping[str, Beat]
    """Member -> its newest heartbeat as of the newest `get_state`."""

    @abstractmethod
    def beat(self, member: str, beat: Beat) -> None:
        """Write a member's heartbeat."""


class WatchingStateHolder(_BackendRendezvousStateHolder):
    """The shared state of a rendezvous, without the members that this node saw fall silent."""

    def __init__(
        self,
        backend: RendezvousBackend,
        settings: RendezvousSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(backend, settings)
        self._clock = clock
        self._looked: float | None = None
        self._refused = 0
        """Consecutive writes that lost to another member's."""
        self._watched = 0.0
        """Seconds for which we have watched the members."""
        self._seen: dict[str, tuple[datetime, float]] = {}
        """Member -> its newest heartbeat, and what `_watched` was when we first saw it."""
        self._asked: int | None = None
        """The round that this node asks for."""
        self._void: Mapping[str, Beat] = {}
        """The heartbeats when a state was refused: in a new one, whose rounds begin at 0, they ask for nothing."""
        self._text: bytes | None = None
        """What the state was read from, as long as it is unchanged here."""
        self._last, self._members = -1, frozenset[Any]()
        """The newest round that this node was in, and its members."""
        self.largest = 0
        """Members of the largest round so far: all there are, as far as we know."""

    def remember(self) -> None:
        """Record the complete current round: once its members are back, the next round need not wait."""
        self._last, self._members, self._asked = self._state.round, frozenset(self._state.participants), None
        self.largest = max(self.largest, len(self._members))

    def returning(self) -> int:
        """How many members of the newest round wait for the next one."""
        return len(self._members & self._state.wait_list)

    def beat(self, node: Any) -> None:
        """Write this node's heartbeat if the backend has a key for it; otherwise torch writes it into the state."""
        if isinstance(self._backend, BeatingBackend):
            self._state.last_heartbeats[node] = moment = datetime.now(UTC)
            self._backend.beat(str(node), Beat(moment, self._asked))

    def ask(self, node: Any, nothing: bool = False) -> None:
        """Let this node's heartbeats ask for the round to come, or for none."""
        asked = None if nothing else self._coming
        if asked != self._asked:
            self._asked = asked
            self.beat(node)

    @property
    def is_let_in(self) -> bool:
        """Whether the round that this node asks for is there."""
        return self._asked == self._state.round

    def asking(self) -> set[Any]:
        """The living members that ask for the round to come."""
        heard = {member: beat for member, beat in self._beats.items() if beat != self._void.get(member)}
        asking = [member for member, beat in heard.items() if beat.asked == self._coming]
        return {rendezvous_state.read_member(member) for member in asking if not self._is_lost(member)}

    @property
    def _coming(self) -> int:
        """The round that forms, or the one after the complete round."""
        return self._state.round + self._state.complete

    @property
    def _beats(self) -> Mapping[str, Beat]:
        return self._backend.beats if isinstance(self._backend, BeatingBackend) else {}

    def sync(self) -> bool | None:
        written = self._exchange()
        if written is False:
            self._refused += 1
            longest = min(LONGEST_BACKOFF_SECONDS, BACKOFF_SECONDS * len(self._state.last_heartbeats))
            time.sleep(random.uniform(0, min(longest, BACKOFF_SECONDS * 2 ** min(self._refused, 10))))
            # The state in the refusal is old by now: a change of it would be refused again.
            self._last_sync_time = -1.0
            self._exchange()
        elif written:
            self._refused = 0
        return written

    def _exchange(self) -> bool | None:
        """Write the state if it was changed, else read it: torch's own `sync` without its pickle.

        Returns whether the change was written; None without a change.
        """
        written: bool | None = None
        if self._dirty:
            self._text = None
            apart = isinstance(self._backend, BeatingBackend)
            answer = self._backend.set_state(rendezvous_state.encode(self._state, heartbeats=not apart), self._token)
            found, written = (answer[:2], answer[2]) if answer else (None, False)
        elif self._clock() - self._last_sync_time < max(self._cache_duration, self._between_looks()):
            return None
        else:
            found = self._backend.get_state()
        # An empty store is a fresh start: this node's state of a round is void.
        if found is None:
            self._state = _RendezvousState()
        elif not written and found[0] != self._text:  # a thousand members are not read once a second
            self._state = self._read(*found)
        self._text, self._token = found or (None, None)
        self._dirty, self._last_sync_time = False, self._clock()
        self._sanitize()
        return written

    def _between_looks(self) -> float:
        """Seconds, at most those between two heartbeats."""
        interval = self._settings.keep_alive_interval.total_seconds()
        return min(interval, len(self._state.last_heartbeats) / LOOKS_A_SECOND)

    def _read(self, data: bytes, token: Any) -> _RendezvousState:
        try:
            return rendezvous_state.decode(data)
        except RendezvousStateError as error:
            if token != self._token:  # once for each written state, not once a second
                log.warning("the rendezvous state is refused, and a new one begun: %s", error)
            self._void = self._beats
            return _RendezvousState()

    def _sanitize(self) -> None:
        state, interval = self._state, self._settings.keep_alive_interval.total_seconds()
        now = self._clock()
        # Count at most half an interval of a pause (store away, process frozen). A live member is then silent for at
        # most an interval before the pause, this half, and an interval after it: less than the three that it may be.
        if self._looked is not None:
            self._watched += min(now - self._looked, max(interval / 2, LEAST_GLANCE_SECONDS))
        self._looked = now

        members = {str(node): node for node in state.last_heartbeats}
        moments = {member: state.last_heartbeats[node] for member, node in members.items()}
        moments |= {member: beat.moment for member, beat in self._beats.items()}
        state.last_heartbeats.update({node: moments[member] for member, node in members.items()})
        for member, moment in moments.items():
            if member not in self._seen or self._seen[member][0] != moment:
                self._seen[member] = moment, self._watched
        self._dead_nodes = [node for member, node in members.items() if self._is_lost(member)]

        participants = len(state.participants)
        for node in self._dead_nodes:
            del state.last_heartbeats[node]
            state.participants.pop(node, None)
            state.wait_list.discard(node)
            state.redundancy_list.discard(node)
        if len(state.participants) < participants:
            _remove_participant_epilogue(state, self._settings)
        self._end_last_call()

    def _is_lost(self, member: str) -> bool:
        """Whether its heartbeat has stayed the same for as long as we may wait for the next."""
        window = self._settings.keep_alive_interval.total_seconds() * self._settings.keep_alive_max_attempt
        return member in self._seen and self._watched - self._seen[member][1] > window

    def _end_last_call(self) -> None:
        """End the last call if this node was in the last round: no member is left to come.

        A store that lost its data begins at round 0 again and does not know the members that are about to come back.
        """
        state = self._state
        follows = bool(self._members) and state.round == self._last + 1
        if follows and not state.complete and state.deadline is not None and not state.wait_list:
            state.deadline = rendezvous_state.NEVER  # over
