"""`etcd-v3`: a torch rendezvous over etcd's v3 API.

torch's own etcd backends speak the v2 API, which etcd 3.6 removed (pytorch#158326). This one is registered under the
entry point group `torchrun.handlers`, so plain torchrun accepts `--rdzv-backend etcd-v3`.
"""

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from torch.distributed import DistStoreError, Store
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import Token

from trainer.elastic.etcd import LEASE_SECONDS, RETRY_SECONDS, Etcd, Value, access
from trainer.elastic.liveness import Beat, BeatingBackend
from trainer.elastic.rendezvous import Handler, RoundOver, create_handler

NAME = "etcd-v3"
PREFIX = "/trainyard/rendezvous/"
POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""Between two looks at the members, while one waits for another."""
BATCH = 100
"""Keys in one request: etcd takes 128 operations in a transaction (--max-txn-ops)."""


class EtcdBackend(BeatingBackend):
    """The rendezvous state in one key, replaced by compare-and-swap on its mod revision; a key for each heartbeat."""

    def __init__(self, etcd: Etcd, run_id: str) -> None:
        self._etcd, self._key, self._beats = etcd, f"{PREFIX}{run_id}/state", f"{PREFIX}{run_id}/beats/"
        self._known: Value | None = None
        self._seen = 0
        """The revision of the store up to which its heartbeats were read."""
        self.beats: Mapping[str, Beat] = {}

    @property
    def name(self) -> str:
        return NAME

    def get_state(self) -> tuple[bytes, Token] | None:
        # Only what is new is sent: the state is large in a large round, and most members write once in five looks.
        known = self._known
        self._known, new, revision = self._etcd.get_changed(self._key, known, self._beats, self._seen)
        read = {member: _read_beat(beat.data) for member, beat in new.items()}
        # A store that lost its data counts its revisions from 1 again, and nobody in it asks for a round yet.
        self.beats = {**self.beats, **read} if self._known or not known else read
        self._seen = revision if self._known else 0
        return (self._known.data, self._known.revision) if self._known else None

    def beat(self, member: str, beat: Beat) -> None:
        text = beat.moment.isoformat() + ("" if beat.asked is None else f" {beat.asked}")
        self._etcd.put(self._beats + member, text.encode())
        self.beats = {**self.beats, member: beat}  # the next look may be a second away
        if self._known is not None:  # whoever wrote it: a spare that leaves would take the round with it
            self._etcd.keep(self._known)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        written, now = self._etcd.swap(self._key, state, int(token or 0))
        return (now.data, now.revision, written) if now else None


class EtcdStore(Store):
    """The store that torch's agents use between rounds: addresses, ranks, the exit barrier. Workers never see it."""

    def __init__(self, etcd: Etcd, run_id: str, timeout: timedelta = timedelta(seconds=300)) -> None:
        super().__init__()
        self._etcd, self._prefix = etcd, f"{PREFIX}{run_id}/store/"
        self.set_timeout(timeout)
        self.is_over: Callable[[], bool] = lambda: False
        """Whether nobody will write what a round waits for."""

    def set(self, key: str, value: str | bytes) -> None:
        self._etcd.put(self._prefix + key, _bytes(value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        found = self._etcd.get(self._prefix + key)
        while True:
            total = (int(found.data) if found else 0) + amount
            written, found = self._etcd.swap(self._prefix + key, str(total).encode(), found.revision if found else 0)
            if written:
                return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` where the key holds `expected` (or is missing, with expected empty); return what it holds."""
        while True:
            found = self._etcd.get(self._prefix + key)
            if found is None and _bytes(expected) != b"":
                return _bytes(expected)  # as torch's TCPStore answers for a missing key
            if found is not None and found.data != _bytes(expected):
                return found.data
            written, _ = self._etcd.swap(self._prefix + key, _bytes(desired), found.revision if found else 0)
            if written:
                return _bytes(desired)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read all keys in few requests: one by one, rank 0 would take minutes for hundreds of members."""
        values: dict[str, bytes] = {}
        self._until(keys, self.timeout, values)  # pyrefly: ignore[missing-attribute]
        return [values[key] for key in keys]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        pairs = [(self._prefix + key, _bytes(value)) for key, value in zip(keys, values, strict=True)]
        for start in range(0, len(pairs), BATCH):
            self._etcd.put_many(dict(pairs[start : start + BATCH]))

    def check(self, keys: list[str]) -> bool:
        return len(self._found(keys)) == len(set(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._until(keys, timeout or self.timeout, {})  # pyrefly: ignore[missing-attribute]

    def _found(self, keys: list[str]) -> dict[str, bytes]:
        """The values of those `keys` that exist."""
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            values = self._etcd.get_many([self._prefix + key for key in part])
            found |= {key: value.data for key, value in zip(part, values, strict=True) if value is not None}
        return found

    def _until(self, keys: list[str], timeout: timedelta, values: dict[str, bytes]) -> None:
        """Fill `values` with what `keys` hold, waiting for those that are not there yet."""
        deadline, look = time.monotonic() + timeout.total_seconds(), time.monotonic() + LOOK_SECONDS
        pause = POLL_SECONDS
        while True:
            values |= self._found([key for key in keys if key not in values])
            missing = [key for key in keys if key not in values]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise DistStoreError(f"waited {timeout.total_seconds():.0f} s for {', '.join(missing[:5])}")
            if time.monotonic() > look:
                look += LOOK_SECONDS
                if self.is_over():
                    raise RoundOver(f"nobody is left to write {', '.join(missing[:5])}")
            time.sleep(pause)
            pause = min(1.5 * pause, LOOK_SECONDS)  # a thousand members wait the longer for their ranks

    # torch's C++ side (PrefixStore) calls some methods by other names than its Python side.
    multiGet = multi_get
    multiSet = multi_set


def create(parameters: RendezvousParameters) -> Handler:
    """The rendezvous that torchrun's parameters describe.

    Keys of --rdzv-conf beyond torch's own: protocol (http, https), cacert, cert, key, username, password (files, or
    etcdctl's ETCDCTL_* variables), retry_seconds, lease_seconds. Raises RendezvousConnectionError without an etcd and
    UserError when etcd refuses our credentials, ValueError for what is no number.
    """
    where = access(parameters.endpoint, parameters.config)
    patience = float(parameters.get("retry_seconds", RETRY_SECONDS))
    lease = int(parameters.get("lease_seconds", LEASE_SECONDS))
    # Two clients: the store waits for etcd even when the look at the members must not.
    state, store = (Etcd(where, patience, lease) for _ in range(2))
    backend = EtcdBackend(state, parameters.run_id)
    backend.get_state()  # reports a wrong endpoint now, not in the middle of a round
    shared = EtcdStore(store, parameters.run_id)
    made = create_handler(shared, backend, state.patient, parameters)
    shared.is_over = made.is_over
    return made


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What the entry point names: a function that returns the creator (torch's contract)."""
    return create


def _read_beat(text: bytes) -> Beat:
    moment, _, asked = text.decode().partition(" ")
    return Beat(datetime.fromisoformat(moment), int(asked) if asked else None)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
