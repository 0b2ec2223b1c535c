"""How the launchers of one run find each other, and notice when one of them is gone.

torch's DynamicRendezvousHandler has the state machine; this adds what it lacks in torch 2.15: a lost member causes a
new round (pytorch#111646: agents look only at newcomers), a member that leaves on purpose says so, so that nobody waits
for it, and only the forming of a round waits for a store that is away.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from torch.distributed import DistStoreError, Store, TCPStore
from torch.distributed.elastic.events.api import NodeState
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousSettings,
    RendezvousTimeout,
    _Action,
    _DistributedRendezvousOpExecutor,
    _remove_participant_epilogue,
    _RendezvousExitOp,  # no public way to leave a round in torch 2.15
    _should_keep_alive,
)

from trainer.elastic import rendezvous_state
from trainer.elastic.liveness import WatchingStateHolder
from trainer.plain import counted

log = logging.getLogger(__name__)

JOIN_SECONDS = 1800
"""A GPU node needs 4 to 8 minutes to boot and pull its image; torch's default of 600 s is too tight."""
LAST_CALL_SECONDS = 5
"""How long a first round with the minimum of members waits for more, and newcomers for others (liveness.py)."""
CLOSE_SECONDS, HEARTBEAT_SECONDS = 30, 5
"""torch's defaults for the end of a rendezvous, and for one heartbeat."""
KEEP_ALIVE_SECONDS = 5
KEEP_ALIVE_ATTEMPTS = 3
"""A member that is silent for 15 s is lost."""
CHANGES_ROUNDS = {_Action.ADD_TO_PARTICIPANTS, _Action.ADD_TO_WAIT_LIST, _Action.REMOVE_FROM_PARTICIPANTS}
OWNER = "trainyard/run"
"""Key of the store that names the run whose rendezvous it is."""


class RoundOver(DistStoreError):
    """A round is over before it has begun: see Handler.is_over."""


class OpExecutor(_DistributedRendezvousOpExecutor):
    """Changes rounds with one write of each member, which is always in one of them.

    torch leaves with one write, waits with another and joins with a third. Between them, which is long on a busy
    machine, a member looks lost; and each of a thousand members writes them all. Here a member leaves one round to wait
    for the next, and who opens that lets in all who wait. If the backend has keys for heartbeats, a heartbeat does not
    change the state, and whoever writes that takes all along who ask for the same.
    """

    leaving = False
    """Whether this node leaves for good."""
    _state_holder: WatchingStateHolder

    def run(
        self,
        state_handler: Callable[[Any, float], _Action],
        deadline: float,
        update_deadline: Callable[[timedelta], float] | None = None,
    ) -> None:
        def beating(context: Any, deadline: float) -> _Action:
            # Always beat first: a change that keeps losing to other members' writes may take longer than the
            # keep-alive lasts.
            if _should_keep_alive(context):
                self._state_holder.beat(self._node)
            if isinstance(state_handler, _RendezvousExitOp) and self._state_holder.is_let_in and not self.leaving:
                return _Action.FINISH  # it is out of its last round, and another has let it into the next
            action = state_handler(context, deadline)
            if action in CHANGES_ROUNDS and not self.leaving:
                self._state_holder.ask(self._node)
            return action

        super().run(beating, deadline, update_deadline)

    def _record(self, message: str, node_state: NodeState = NodeState.RUNNING) -> None:
        """Do nothing: torch inspects the stack for each event, half the time of a large round, and nobody listens."""

    def _remove_from_participants(self) -> None:
        others = self._others() if self._state.complete else set()  # else it gives up the round that forms
        super()._remove_from_participants()
        if not self.leaving:
            super()._add_to_wait_list()
            self._await_next_round(others)

    def _add_to_wait_list(self) -> None:
        super()._add_to_wait_list()
        self._await_next_round(self._others())

    def _add_to_participants(self) -> None:
        state, most = self._state, self._settings.max_nodes - 1 - len(self._state.participants)
        for node in sorted((state.wait_list | self._others()) - state.participants.keys() - {self._node})[:most]:
            state.wait_list.discard(node)
            state.participants[node] = 0  # its rank is set once the round is complete
            state.last_heartbeats.setdefault(node, rendezvous_state.NEVER)
        if state.deadline is None and len(state.participants) >= self._settings.min_nodes:
            state.deadline = datetime.now(UTC) + self._settings.timeout.last_call
        super()._add_to_participants()

    def _others(self) -> set[Any]:
        """Who else asks for what this node is about to do."""
        return self._state_holder.asking() - self._state.redundancy_list - {self._node}

    def _await_next_round(self, nodes: set[Any]) -> None:
        """Let them leave the complete round, if they are in it, and wait for the next one."""
        for node in nodes:
            self._state.participants.pop(node, None)
            self._state.wait_list.add(node)
            self._state.last_heartbeats.setdefault(node, rendezvous_state.NEVER)
        _remove_participant_epilogue(self._state, self._settings)


class _LeaveOp(_RendezvousExitOp):
    """Leaves the wait list too: torch 2.15 leaves a member in it, whom the next round would wait for."""

    def __call__(self, ctx: Any, deadline: float) -> _Action:
        return _Action.REMOVE_FROM_WAIT_LIST if ctx.node in ctx.state.wait_list else super().__call__(ctx, deadline)


class Handler(DynamicRendezvousHandler):
    """A rendezvous in which a lost member counts like a waiting one: both cause a new round."""

    patient: Callable[[bool], None]
    """Sets whether requests wait for a store that is away, or fail at once."""
    _state_holder: WatchingStateHolder
    _op_executor: OpExecutor
    _delayed: threading.Timer | None = None
    _round = -1
    _size = 0
    _away = False
    """Whether the store could not be reached at the last look."""
    _called: float | None = None
    """Since when newcomers wait for the next round."""
    forming = False
    """Whether the round has its members, who do not know their ranks and addresses yet: the agent ends it."""

    @property
    def round(self) -> int:
        """The current round, from 1."""
        return self._round + 1

    def claim(self, run: str) -> bool:
        """Take the rendezvous for a run; False if another has it: in one round they would mix their gradients."""
        return self._store.compare_set(OWNER, "", run) == run.encode()

    def next_rendezvous(self) -> RendezvousInfo:
        # Wait for the store only here: the workers train without it, and monitoring them must not stop for a minute.
        self.patient(True)
        try:
            info = super().next_rendezvous()
        finally:
            self.patient(False)
        os.environ["TRAINYARD_ROUND"] = str(self.round)  # workers inherit it
        return info

    def _get_store(self) -> Store:
        """The store of the round whose members are known from here on, and may be lost."""
        self._round, self._called = self._state_holder.state.round, None
        _, self._size = self._get_world()
        self._state_holder.remember()
        self.forming = True
        return super()._get_store()

    def is_over(self) -> bool:
        """Whether a round that forms has lost a member, for whose address or rank the others would wait in vain."""
        return self.forming and self.num_nodes_waiting() > 0

    def _start_heartbeats(self) -> None:
        # All members begin a round at the same moment: without random delays their heartbeats would always coincide.
        delay = random.uniform(0, self._settings.keep_alive_interval.total_seconds() / 2)
        self._delayed = threading.Timer(delay, super()._start_heartbeats)
        self._delayed.daemon = True
        self._delayed.start()

    def _stop_heartbeats(self) -> None:
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed.join()
        super()._stop_heartbeats()

    def num_nodes_waiting(self) -> int:
        """How many members a new round would add or remove."""
        try:
            waiting = super().num_nodes_waiting()
        except RendezvousConnectionError as error:
            # Training needs no rendezvous store between rounds: an outage must not end it.
            if not self._away:  # once for each outage: agents look twice a second
                log.warning("rendezvous store out of reach, training goes on: %s", error)
            self._away = True
            return 0
        self._away = False
        # A spare keeps waiting while the round is full: torch would start one new round after the other for it.
        full = len(self._state_holder.state.participants) >= self._settings.max_nodes
        newcomers = 0 if full else waiting
        return (newcomers and self._after_last_call(newcomers)) or self.left_members() or int(not self._in_round())

    def _after_last_call(self, newcomers: int) -> int:
        """How many of the newcomers to begin a round for: none before the last call for others is over.

        The workers train meanwhile, which they would not in a round that is open for a last call.
        """
        now = time.monotonic()
        self._called = self._called or now
        last = len(self._state_holder.state.participants) + newcomers == self._state_holder.largest
        over = now - self._called >= self._settings.timeout.last_call.total_seconds()
        return newcomers if last or over else 0

    def _in_round(self) -> bool:
        """Whether the store knows the round that this node is in: not if it lost its data."""
        state = self._state_holder.state
        return state.round == self._round and self._this_node in state.participants

    def left_members(self) -> int:
        """How many members have left this round. Their workers have ended, so this node's wait for them in vain.

        0 if the store lost its data: all the workers may still train.
        """
        return max(0, self._size - len(self._state_holder.state.participants)) if self._in_round() else 0

    def lost_members(self) -> int:
        """How many of the members that left do not wait for the next round."""
        return max(0, self.left_members() - self._state_holder.returning())

    def changed(self) -> str:
        """What has happened to this node's round, as far as the store tells; empty: nothing."""
        state = self._state_holder.state
        if not self._in_round():
            others = state.round > self._round
            return (
                "the others have begun a round without this worker"
                if others
                else "the rendezvous went away, and came back without this round"
            )
        lost, left = self.lost_members(), self.left_members()
        told = [f"{counted(lost, 'worker')} left the round"] if lost else []
        told += [f"{counted(left - lost, 'worker')} left for a new round"] if left > lost else []
        joining = len(state.wait_list) - (left - lost)
        told += [f"{counted(joining, 'worker')} to join"] if joining > 0 else []
        return ", ".join(told)

    def leave(self) -> None:
        """Give up the place in the round, so that the others need not wait for the keep-alive to run out."""
        self._stop_heartbeats()
        self._op_executor.leaving = True
        try:
            self._state_holder.ask(self._this_node, nothing=True)
            self._op_executor.run(_LeaveOp(), self._get_deadline(self._settings.timeout.heartbeat))
        except RendezvousError as error:
            log.warning("could not leave the rendezvous: %s", error)


def create_alone(parameters: RendezvousParameters) -> Handler:
    """A rendezvous of this process alone, in a store that it hosts itself: torch's own c10d backend."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return create_handler(store, C10dRendezvousBackend(store, parameters.run_id), lambda wait: None, parameters)


def create_handler(
    store: Store, backend: RendezvousBackend, patient: Callable[[bool], None], parameters: RendezvousParameters
) -> Handler:
    """Build a handler, with our defaults for missing parameters. Raises ValueError for a number that is none."""
    # Otherwise torch 2.15 gives survivors the address of a rank 0 that is gone (pytorch#182375 fixed half of it). torch
    # reads the variable at each round, so plain torchrun gets it too.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    def seconds(key: str, default: float) -> timedelta:
        return timedelta(seconds=float(parameters.get(key, default)))

    settings = RendezvousSettings(
        parameters.run_id,
        parameters.min_nodes,
        parameters.max_nodes,
        RendezvousTimeout(
            join=seconds("join_timeout", JOIN_SECONDS),
            last_call=seconds("last_call_timeout", LAST_CALL_SECONDS),
            close=seconds("close_timeout", CLOSE_SECONDS),
            heartbeat=seconds("heartbeat_timeout", HEARTBEAT_SECONDS),
        ),
        keep_alive_interval=seconds("keep_alive_interval", KEEP_ALIVE_SECONDS),
        keep_alive_max_attempt=int(parameters.get("keep_alive_max_attempt", KEEP_ALIVE_ATTEMPTS)),
        cas_backoff_max_seconds=float(parameters.get("cas_backoff_max_seconds", 0.0)),
    )
    node = Handler._node_desc_generator.generate(parameters.local_addr)
    holder = WatchingStateHolder(backend, settings)
    handler = Handler(node, settings, backend.name, store, holder)
    handler._op_executor = OpExecutor(node, holder, settings)
    handler.patient = patient
    return handler
