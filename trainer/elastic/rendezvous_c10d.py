"""`c10d`: a rendezvous in a TCPStore on a stable pod (store.py), for clusters without etcd.

torch's own c10d backend gives up for good when its one connection breaks. This one reconnects, and a store that comes
back empty is a fresh start: every member finds that it is in no round, and joins the next.
"""

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

from trainer.contract import STORE_PORT
from trainer.elastic import network
from trainer.elastic.rendezvous import Handler, create_handler
from trainer.errors import one_line

RETRY_SECONDS = 90.0
CONNECT_SECONDS = 5.0
GLANCE_SECONDS = 2.0
"""Timeout of a connection that must not wait."""
READ_SECONDS = 300
NOTHING = b"-"
"""Stands in the state's key until there is a state: reading a missing key of a TCPStore blocks."""


class Connection:
    """A TCPStore client that reconnects when its server was away."""

    def __init__(self, host: str, port: int, retry_seconds: float = RETRY_SECONDS) -> None:
        self._host, self._port = host, port
        self._patience = self._retry_seconds = retry_seconds
        self._connect_seconds = CONNECT_SECONDS
        self._client: TCPStore | None = None

    def patient(self, wait: bool) -> None:
        self._retry_seconds = self._patience if wait else 0.0
        self._connect_seconds = CONNECT_SECONDS if wait else GLANCE_SECONDS

    def call(self, operation: Callable[[TCPStore], Any]) -> Any:
        """The result of `operation`; repeated over a new connection when the one it had breaks.

        Raises RendezvousConnectionError when the store stays away, and torch's own error when a wait times out.
        """
        deadline = time.monotonic() + self._retry_seconds
        while True:
            fresh = self._client is None
            try:
                return operation(self._client or self._connect())
            except (RuntimeError, OSError) as error:  # torch's DistNetworkError is a RuntimeError
                # These words mean that a wait expired while the store answered; a failed _connect has other words.
                if "wait timeout" in str(error) or "Timeout waiting" in str(error):
                    raise
                self._client = None
                reason = one_line(error)
            if fresh:  # else the store may have restarted under an open connection: retry at once
                if time.monotonic() > deadline:
                    raise RendezvousConnectionError(
                        f"the c10d store at {self._host}:{self._port} cannot be reached for "
                        f"{self._retry_seconds:.0f} s: {reason}"
                    ) from None
                time.sleep(0.5)

    def _connect(self) -> TCPStore:
        # Try a plain connection first: torch's own attempt logs a traceback of C++ frames for each refusal.
        reason = network.wait_reachable(self._host, self._port, 0, connect=True)
        if reason is not None:
            raise ConnectionError(reason)
        self._client = TCPStore(
            self._host, self._port, is_master=False, timeout=timedelta(seconds=self._connect_seconds)
        )
        self._client.set_timeout(timedelta(seconds=READ_SECONDS))
        return self._client


class StoreBackend(RendezvousBackend):
    """The rendezvous state in one key of the store, replaced by compare_set. The state itself is the token."""

    def __init__(self, connection: Connection, run_id: str) -> None:
        self._connection, self._key = connection, f"rendezvous/{run_id}/state"

    @property
    def name(self) -> str:
        return "c10d"

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._compare_set(b"", NOTHING)
        return None if found == NOTHING else (found, found)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self._compare_set(b"", NOTHING)
        found = self._compare_set(token or NOTHING, state)
        return None if found == NOTHING else (found, found, found == state)

    def _compare_set(self, expected: Any, desired: bytes) -> bytes:
        # torch's binding also takes bytes for its strings: another member's value need not be text.
        return self._connection.call(lambda store: store.compare_set(self._key, expected, desired))  # pyright: ignore[reportArgumentType]


class ReconnectingStore(Store):
    """The store that torch's agents use between rounds, over a Connection."""

    def __init__(self, connection: Connection, run_id: str) -> None:
        super().__init__()
        self._connection, self._prefix = connection, f"store/{run_id}/"
        self.set_timeout(timedelta(seconds=READ_SECONDS))

    def set(self, key: str, value: str | bytes) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        def write(store: TCPStore) -> None:
            store.set(self._prefix + key, value)  # pyright: ignore[reportArgumentType]
            # set() waits for no answer: it writes without an error into a connection whose server is gone.
            store.check([self._prefix + key])

        self._connection.call(write)

    def get(self, key: str) -> bytes:
        return self._connection.call(lambda store: store.get(self._prefix + key))

    def add(self, key: str, amount: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._connection.call(lambda store: store.add(self._prefix + key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._connection.call(lambda store: store.compare_set(self._prefix + key, expected, desired))

    def check(self, keys: list[str]) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._connection.call(lambda store: store.check([self._prefix + key for key in keys]))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        limit = timeout or self.timeout  # pyright: ignore[reportAttributeAccessIssue]
        self._connection.call(lambda store: store.wait([self._prefix + key for key in keys], limit))

    def delete_key(self, key: str) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._connection.call(lambda store: store.delete_key(self._prefix + key))

    def num_keys(self) -> int:
        return self._connection.call(lambda store: store.num_keys())

    deleteKey = delete_key
    getNumKeys = num_keys


def create(parameters: RendezvousParameters) -> Handler:
    """The rendezvous that the launcher's parameters describe. Raises RendezvousConnectionError without a store.

    With `is_host=true` in --rdzv-conf this process also hosts the store, as in torch: for a try on one machine.
    """
    host, port = network.split_endpoint(parameters.endpoint, STORE_PORT)
    server = None
    if parameters.get_as_bool("is_host", False):
        with contextlib.suppress(RuntimeError):  # another process of this machine hosts the store already
            server = TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
    patience = float(parameters.get("retry_seconds", RETRY_SECONDS))
    state, store = (Connection(host, port, patience) for _ in range(2))
    backend = StoreBackend(state, parameters.run_id)
    backend.get_state()
    handler = create_handler(ReconnectingStore(store, parameters.run_id), backend, state, parameters)
    handler.hosted = server  # lives as long as its handler
    return handler
