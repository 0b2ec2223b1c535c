"""`etcd-v3`: a torch rendezvous over etcd's v3 API.

torch's own etcd backends speak the v2 API, which etcd 3.6 removed (pytorch#158326). This one uses the JSON gateway
that every etcd from 3.4 on serves beside gRPC, so it needs nothing but the standard library. It is registered under
the entry point group `torchrun.handlers`; plain torchrun takes `--rdzv-backend etcd-v3` with it.

Every key hangs on a lease that its writer renews while it lives: what a finished or lost run leaves behind goes away.
"""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

from trainer.rendezvous import Handler, create_handler

NAME = "etcd-v3"
PREFIX = "/trainyard/rendezvous/"
RETRY_SECONDS = 60
"""An etcd pod that is moved to another node is back within this time."""
LEASE_SECONDS = 300
"""Longer than the retries, so that an outage does not cost the keys; short enough that nothing piles up."""
POLL_SECONDS = 0.1
REQUEST_SECONDS = 10


class Etcd:
    """The four requests that a rendezvous needs, each repeated while etcd is away."""

    def __init__(self, endpoint: str, retry_seconds: float = RETRY_SECONDS, lease_seconds: int = LEASE_SECONDS) -> None:
        self._base = (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/") + "/v3"
        self._endpoint, self.retry_seconds, self._lease_seconds = endpoint, retry_seconds, lease_seconds
        self._lease: str | None = None
        self._renewed = 0.0

    def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its mod revision, or None."""
        found = self._call("/kv/range", {"key": _encode(key)}).get("kvs")
        return _value(found[0]) if found else None

    def put(self, key: str, value: bytes) -> None:
        self._call_with_lease("/kv/put", lambda lease: {"key": _encode(key), "value": _encode(value), "lease": lease})

    def swap(self, key: str, value: bytes, revision: int) -> tuple[bool, tuple[bytes, int] | None]:
        """Write when the key's mod revision is still `revision` (0: when there is no such key).

        Returns whether it was written, and what the key holds now.
        """

        def body(lease: str) -> dict[str, Any]:
            return {
                "compare": [
                    {"key": _encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)},
                ],
                "success": [{"request_put": {"key": _encode(key), "value": _encode(value), "lease": lease}}],
                "failure": [{"request_range": {"key": _encode(key)}}],
            }

        reply = self._call_with_lease("/kv/txn", body)
        if reply.get("succeeded"):
            return True, (value, int(reply["header"]["revision"]))
        found = reply["responses"][0]["response_range"].get("kvs")
        return False, _value(found[0]) if found else None

    def delete(self, key: str) -> bool:
        return int(self._call("/kv/deleterange", {"key": _encode(key)}).get("deleted", 0)) > 0

    def count(self, prefix: str) -> int:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        body = {"key": _encode(prefix), "range_end": _encode(end), "count_only": True}
        return int(self._call("/kv/range", body).get("count", 0))

    def _call_with_lease(self, path: str, body: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """A write that hangs on this process's lease; with a new lease where the old one ran out meanwhile."""
        try:
            return self._call(path, body(self._current_lease()))
        except _LeaseGone:
            self._lease = None
            return self._call(path, body(self._current_lease()))

    def _current_lease(self) -> str:
        """The id of this process's lease, renewed when a quarter of its time is over.

        Each member writes its keep-alive every few seconds, so no thread of its own is needed for this.
        """
        if self._lease is None:
            reply = self._call("/lease/grant", {"TTL": str(self._lease_seconds), "ID": "0"})
            self._lease, self._renewed = str(reply["ID"]), time.monotonic()
        elif time.monotonic() - self._renewed > self._lease_seconds / 4:
            reply = self._call("/lease/keepalive", {"ID": self._lease}).get("result", {})
            if int(reply.get("TTL", 0)) <= 0:
                self._lease = None
                return self._current_lease()
            self._renewed = time.monotonic()
        return self._lease

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST `body`; repeat for retry_seconds while etcd cannot be reached or has no leader."""
        deadline = time.monotonic() + self.retry_seconds
        pause = 0.1
        while True:
            try:
                request = urllib.request.Request(
                    self._base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as reply:
                    return json.load(reply)
            except urllib.error.HTTPError as error:
                text = error.read().decode("utf-8", "replace")
                if "lease not found" in text:
                    raise _LeaseGone from None
                if error.code < 500:
                    raise RendezvousStateError(
                        f"etcd at {self._endpoint} refused {path}: {text.strip()[:300]}"
                    ) from None
                reason: object = f"{error.code} {text.strip()[:200]}"
            except (OSError, ValueError) as error:  # URLError is an OSError; a cut reply is no JSON
                reason = getattr(error, "reason", error)
            if time.monotonic() + pause > deadline:
                raise RendezvousConnectionError(
                    f"etcd at {self._endpoint} cannot be reached for {self.retry_seconds:.0f} s: {reason}"
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


class _LeaseGone(Exception):
    """The lease of a write ran out: this process was frozen, or etcd lost its data."""


class EtcdBackend(RendezvousBackend):
    """The rendezvous state in one key, replaced by compare-and-swap on its mod revision."""

    def __init__(self, etcd: Etcd, run_id: str) -> None:
        self._etcd, self._key = etcd, f"{PREFIX}{run_id}/state"

    @property
    def name(self) -> str:
        return NAME

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._etcd.get(self._key)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        written, now = self._etcd.swap(self._key, state, int(token or 0))
        if now is None:
            return None  # the key went away since it was read: the caller reads again and starts afresh
        return (*now, written)


class EtcdStore(Store):
    """The store that torch's agents use between rounds: addresses, ranks, the exit barrier. Workers never see it."""

    def __init__(self, etcd: Etcd, run_id: str, timeout: timedelta = timedelta(seconds=300)) -> None:
        super().__init__()
        self._etcd, self._prefix = etcd, f"{PREFIX}{run_id}/store/"
        self.set_timeout(timeout)

    def set(self, key: str, value: str | bytes) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._etcd.put(self._prefix + key, _bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        found = self._etcd.get(self._prefix + key)
        if found is None:
            raise DistStoreError(f"{key} was deleted while it was read")
        return found[0]

    def add(self, key: str, amount: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = self._etcd.get(self._prefix + key)
        while True:
            value, revision = found or (b"0", 0)
            total = int(value) + amount
            written, found = self._etcd.swap(self._prefix + key, str(total).encode(), revision)
            if written:
                return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write `desired` where the key holds `expected` (or is missing, with expected empty); return what it holds."""
        while True:
            found = self._etcd.get(self._prefix + key)
            if found is None and _bytes(expected) != b"":
                return _bytes(expected)  # as torch's TCPStore answers for a missing key
            if found is not None and found[0] != _bytes(expected):
                return found[0]
            written, _ = self._etcd.swap(self._prefix + key, _bytes(desired), found[1] if found else 0)
            if written:
                return _bytes(desired)

    def check(self, keys: list[str]) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return all(self._etcd.get(self._prefix + key) is not None for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        limit = (timeout or self.timeout).total_seconds()  # pyright: ignore[reportAttributeAccessIssue]
        deadline = time.monotonic() + limit
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise DistStoreError(f"waited {limit:.0f} s for {', '.join(keys)}")
            time.sleep(POLL_SECONDS)

    def delete_key(self, key: str) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._etcd.delete(self._prefix + key)

    def num_keys(self) -> int:
        return self._etcd.count(self._prefix)

    # torch's C++ side (PrefixStore) calls these two by other names than its Python side.
    deleteKey = delete_key
    getNumKeys = num_keys


class EtcdHandler(Handler):
    """A Handler that waits for etcd where it needs it, to make a round, and not in between.

    Between rounds the workers train without it: looking after them must not stop for a minute.
    """

    etcd: Etcd
    patience: float

    def next_rendezvous(self) -> RendezvousInfo:
        self.etcd.retry_seconds = self.patience
        try:
            return super().next_rendezvous()
        finally:
            self.etcd.retry_seconds = 0.0


def create(parameters: RendezvousParameters) -> Handler:
    """The rendezvous that torchrun's parameters describe. Raises RendezvousConnectionError without an etcd."""
    patience = float(parameters.get("retry_seconds", RETRY_SECONDS))
    lease = int(parameters.get("lease_seconds", LEASE_SECONDS))
    state, store = (Etcd(parameters.endpoint, patience, lease) for _ in range(2))
    backend = EtcdBackend(state, parameters.run_id)
    backend.get_state()  # a wrong endpoint is told now, not in the middle of a round
    handler = create_handler(EtcdStore(store, parameters.run_id), backend, parameters, EtcdHandler)
    handler.etcd, handler.patience = state, patience
    return handler


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What the entry point names: a function that returns the creator (torch's contract)."""
    return create


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _encode(value: str | bytes) -> str:
    return base64.b64encode(_bytes(value)).decode()


def _value(found: dict[str, Any]) -> tuple[bytes, int]:
    """etcd leaves empty fields out of its replies."""
    return base64.b64decode(found.get("value", "")), int(found["mod_revision"])
