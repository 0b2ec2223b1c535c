"""The few requests to etcd's v3 API that a rendezvous needs, over the JSON gateway that etcd 3.4 to 3.7 serve.

It keeps connections open, uses TLS and a password if configured, and retries while etcd is away. Every key has a lease,
which its writer or another member that needs it renews, so the keys of a lost run expire.
"""

import base64
import json
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import urllib3
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousStateError

from trainer.contract import ETCD_PORT
from trainer.elastic.network import split_endpoint, trust
from trainer.errors import UserError, one_line

RETRY_SECONDS = 90.0
"""An etcd pod that moves to another node is back within 60 s; the rest is for its name to resolve again."""
LEASE_SECONDS = 300
"""Longer than the retries, so that an outage does not cost the keys; short enough that nothing piles up."""
REQUEST_SECONDS = 10.0
GLANCE_SECONDS = 2.0
"""Timeout of a request that must not wait: an etcd whose machine is gone does not refuse, it is silent."""
MEND_SECONDS = 1.0
"""At most so long waits who would mend a full store, since of a thousand launchers one is enough."""
FULL = (
    "the store is full, and was not mended from here. Nothing in it is worth keeping: `kubectl delete pod "
    "rendezvous-0` empties a stack's; your own: etcdctl compact, etcdctl defrag, etcdctl alarm disarm"
)
ENVIRONMENT = {
    "cacert": "ETCDCTL_CACERT",
    "cert": "ETCDCTL_CERT",
    "key": "ETCDCTL_KEY",
    "username": "ETCDCTL_USER",
    "password": "ETCDCTL_PASSWORD",
}
"""Settings -> etcdctl's variables, which apply where --rdzv-conf has no value."""


@dataclass(frozen=True)
class Access:
    """The address of etcd, and our credentials."""

    endpoint: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def access(endpoint: str, settings: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Access:
    """Access from --rdzv-endpoint and the keys protocol, cacert, cert, key, username and password. Raises UserError."""
    given = {name: str(settings.get(name) or environment.get(variable, "")) for name, variable in ENVIRONMENT.items()}
    scheme, separator, _ = endpoint.partition("://")
    protocol = settings.get("protocol") or (scheme if separator else "")
    if protocol not in ("", "http", "https"):
        raise UserError(f"etcd's protocol is '{protocol}'; allowed: http, https")
    files = {name: given[name] for name in ("cacert", "cert", "key") if given[name]}
    if protocol == "http" and files:
        raise UserError(f"{', '.join(files)} given for a plain http etcd; use https://, or leave them out")
    if ("cert" in files) != ("key" in files):
        raise UserError("a client certificate for etcd needs both cert and key (ETCDCTL_CERT, ETCDCTL_KEY)")
    tls = None
    if protocol == "https" or files:
        try:
            tls = trust(files.get("cacert"))
            if "cert" in files:
                tls.load_cert_chain(files["cert"], files["key"])
        except OSError as error:
            raise UserError(f"etcd's certificates ({', '.join(files.values())}) cannot be used: {error}") from None
    username, separator, inline = given["username"].partition(":")  # etcdctl's --user takes NAME:PASSWORD
    password = given["password"] or (inline if separator else None)
    if username and not password:
        raise UserError("etcd's username is given without a password; set ETCDCTL_PASSWORD")
    host, port = split_endpoint(endpoint, ETCD_PORT)
    return Access(endpoint, host, port, tls, username or None, password)


@dataclass(frozen=True)
class Value:
    data: bytes
    revision: int
    """The mod revision: changes with every write."""
    lease: str


class Etcd:
    """A client that retries while etcd is away: for `retry_seconds`, or not at all after `patient(False)`."""

    def __init__(
        self, access: Access, retry_seconds: float = RETRY_SECONDS, lease_seconds: int = LEASE_SECONDS
    ) -> None:
        self._access, self._lease_seconds = access, lease_seconds
        self._patience = self._retry_seconds = retry_seconds
        self._request_seconds = REQUEST_SECONDS
        self._lease: str | None = None
        self._renewed, self._kept = 0.0, time.monotonic()
        self._token: str | None = None
        where = access.host, access.port
        plain, tls = urllib3.HTTPConnectionPool, urllib3.HTTPSConnectionPool
        self._pool = tls(*where, ssl_context=access.tls) if access.tls else plain(*where)

    def patient(self, wait: bool) -> None:
        """Set whether requests wait for an etcd that is away, or fail at once."""
        self._retry_seconds = self._patience if wait else 0.0
        self._request_seconds = REQUEST_SECONDS if wait else GLANCE_SECONDS

    def get(self, key: str) -> Value | None:
        found = self._call("/kv/range", {"key": _encode(key)}).get("kvs")
        return _value(found[0]) if found else None

    def get_many(self, keys: list[str]) -> list[Value | None]:
        """Read all keys in one request."""
        body = {"success": [{"request_range": {"key": _encode(key)}} for key in keys]}
        replies = self._call("/kv/txn", body)["responses"]
        found = [reply["response_range"].get("kvs") for reply in replies]
        return [_value(kvs[0]) if kvs else None for kvs in found]

    def get_changed(
        self, key: str, known: Value | None, prefix: str, since: int = 0
    ) -> tuple[Value | None, dict[str, Value], int]:
        """The value of `key`, sent only if it is not `known`, what was written under `prefix` after revision `since`,
        by the rest of its keys, and the revision of the store."""
        unchanged = {"target": "MOD", "result": "EQUAL", "mod_revision": str(known.revision if known else 0)}
        keys = {"key": _encode(prefix), "range_end": _encode(_end(prefix))}
        under = [{"request_range": {**keys, "min_mod_revision": str(since + 1)}}]
        body = {
            "compare": [{"key": _encode(key), **unchanged}],
            "success": under,
            "failure": [{"request_range": {"key": _encode(key)}}, *under],
        }
        reply = self._call("/kv/txn", body)
        found = [answer["response_range"].get("kvs", []) for answer in reply.get("responses", [])]
        if not reply.get("succeeded"):
            now = found.pop(0)
            known = _value(now[0]) if now else None
        new = {base64.b64decode(kv["key"]).decode()[len(prefix) :]: _value(kv) for kvs in found for kv in kvs}
        return known, new, int(reply["header"]["revision"])

    def put(self, key: str, value: bytes) -> None:
        self.put_many({key: value})

    def put_many(self, values: Mapping[str, bytes]) -> None:
        """Write all values or none."""

        def body(lease: str) -> dict[str, Any]:
            return {"success": [_put(key, value, lease) for key, value in values.items()]}

        self._write(body)

    def swap(self, key: str, value: bytes, revision: int) -> tuple[bool, Value | None]:
        """Write when the key's mod revision is still `revision` (0: when there is no such key).

        Returns whether it was written, and what the key holds now.
        """
        lease = ""

        def body(current: str) -> dict[str, Any]:
            nonlocal lease
            lease = current
            return {
                "compare": [{"key": _encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}],
                "success": [_put(key, value, lease)],
                "failure": [{"request_range": {"key": _encode(key)}}],
            }

        reply = self._write(body)
        if reply.get("succeeded"):
            return True, Value(value, int(reply["header"]["revision"]), lease)
        found = reply["responses"][0]["response_range"].get("kvs")
        now = _value(found[0]) if found else None
        # A write whose answer was lost is retried, and then its own first attempt makes etcd refuse it. The lease shows
        # that the value is ours: otherwise a counter would count twice when etcd restarts.
        ours = now is not None and now.data == value and now.lease == lease
        return ours, now

    def keep(self, value: Value) -> None:
        """Renew the lease of a value that another process wrote, as often as our own: it must outlive that process."""
        if time.monotonic() - self._kept > self._lease_seconds / 4:
            self._call("/lease/keepalive", {"ID": value.lease})
            self._kept = time.monotonic()

    def _write(self, body: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Write with this process's lease, or with a new one if that has expired."""
        try:
            return self._call("/kv/txn", body(self._current_lease()))
        except _LeaseGone:
            self._lease = None
            return self._call("/kv/txn", body(self._current_lease()))

    def _current_lease(self) -> str:
        """The id of this process's lease, renewed when a quarter of its time is over.

        Each member writes its keep-alive every few seconds, so this needs no thread of its own.
        """
        if self._lease is not None and time.monotonic() - self._renewed > self._lease_seconds / 4:
            reply = self._call("/lease/keepalive", {"ID": self._lease}).get("result", {})
            if int(reply.get("TTL", 0)) > 0:
                self._renewed = time.monotonic()
            else:
                self._lease = None
        if self._lease is None:
            reply = self._call("/lease/grant", {"TTL": str(self._lease_seconds), "ID": "0"})
            # The gateway leaves out what it does not know, and answers 200: without a lease, keys would stay for ever.
            if int(reply.get("ID", 0)) == 0 or int(reply.get("TTL", 0)) < self._lease_seconds:
                raise RendezvousStateError(
                    f"etcd at {self._access.endpoint} grants no lease of {self._lease_seconds} s: {reply}"[:300]
                )
            self._lease, self._renewed = str(reply["ID"]), time.monotonic()
        return self._lease

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer; retry while etcd cannot be reached or has no leader."""
        deadline = time.monotonic() + self._retry_seconds
        pause, dropped, mended = 0.1, False, False
        while True:
            try:
                return self._once(path, body)
            except UserError:  # a ValueError, like that of a truncated reply
                raise
            except (OSError, urllib3.exceptions.HTTPError, _Unavailable, ValueError) as error:
                if error.args and isinstance(error.args[0], ssl.SSLCertVerificationError):
                    raise UserError(
                        f"etcd at {self._access.endpoint} has an untrusted certificate "
                        f"({error.args[0].verify_message}); give its authority as cacert (ETCDCTL_CACERT)"
                    ) from None
                if isinstance(error, urllib3.exceptions.ProtocolError) and not dropped:
                    dropped = True  # etcd closed an idle connection: retry over a new one
                    continue
                reason = one_line(error)
            if reason == FULL and not mended:
                mended = True
                if self._mend():
                    continue
            if time.monotonic() + pause > deadline:
                what = "takes no writes" if reason == FULL else "cannot be reached"
                raise RendezvousConnectionError(
                    f"etcd at {self._access.endpoint} {what} for {self._retry_seconds:.0f} s: {reason}"
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._access.username and self._token is None and not path.startswith("/auth/"):
            self._authenticate()
        status, text = self._post(path, json.dumps(body).encode())
        if status == 200:
            return json.loads(text)
        if "lease not found" in text:
            raise _LeaseGone
        if "database space exceeded" in text:
            raise _Unavailable(FULL)
        if "invalid auth token" in text or "invalid auth revision" in text:
            self._token = None  # tokens expire after five minutes, and with the etcd that issued them
            raise _Unavailable("the password's token has ended")
        if any(words in text for words in ("authentication failed", "permission denied", "user name is empty")):
            raise UserError(
                f"etcd at {self._access.endpoint} refuses our credentials: {_told(text)}; set username and password "
                "(ETCDCTL_USER, ETCDCTL_PASSWORD) of a user who may write under /trainyard/"
            )
        if status >= 500 or status == 429:  # 429: too many requests at once
            raise _Unavailable(f"{status} {_told(text)}")
        raise RendezvousStateError(f"etcd at {self._access.endpoint} refused {path}: {status} {_told(text)}")

    def _mend(self) -> bool:
        """Give the space of former values back, after which a full store takes writes again; whether it may do so.

        What is written now stays, and so does the round. Where authentication is on, only root may.
        """
        time.sleep(random.uniform(0, MEND_SECONDS))
        try:
            alarms = self._maintain("/maintenance/alarm", {"alarm": "NOSPACE"}).get("alarms", [])
            if alarms:  # else somebody else has
                revision = self._maintain("/kv/range", {"key": _encode("/"), "count_only": True})["header"]["revision"]
                self._maintain("/kv/compaction", {"revision": revision, "physical": True})
                self._maintain("/maintenance/defragment", {})
            for alarm in alarms:  # each is left by the id of the member that has it
                body = {"action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": "NOSPACE"}
                self._maintain("/maintenance/alarm", body)
        except (OSError, urllib3.exceptions.HTTPError, ValueError):
            return False
        return True

    def _maintain(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One attempt. Raises ValueError for a refusal, but not for a revision that another has compacted."""
        status, text = self._post(path, json.dumps(body).encode())
        if status != 200 and "has been compacted" not in text:
            raise ValueError(text)
        return json.loads(text)

    def _authenticate(self) -> None:
        answer = {"name": self._access.username, "password": self._access.password}
        status, text = self._post("/auth/authenticate", json.dumps(answer).encode())
        if status == 200:
            self._token = json.loads(text)["token"]
        elif "authentication is not enabled" in text:
            self._token = ""  # an etcd that lost its data has lost its users too
        elif "authentication failed" in text:
            raise UserError(
                f"etcd at {self._access.endpoint} refuses user {self._access.username}: wrong name or password"
            )
        else:
            raise _Unavailable(f"{status} {_told(text)}")

    def _post(self, path: str, body: bytes) -> tuple[int, str]:
        """Status and text of one answer, over the previous connection if it is still open."""
        headers = {"Content-Type": "application/json", **({"Authorization": self._token} if self._token else {})}
        response = self._pool.urlopen("POST", "/v3" + path, body, headers, False, timeout=self._request_seconds)
        return response.status, response.data.decode("utf-8", "replace")


class _LeaseGone(Exception):
    """The lease of a write ran out: this process was frozen, or etcd lost its data."""


class _Unavailable(Exception):
    """etcd answers, but cannot serve now."""


def _told(text: str) -> str:
    """The message in etcd's answer."""
    try:
        return str(json.loads(text).get("message") or text).strip()[:300]
    except (ValueError, AttributeError):
        return text.strip()[:300]


def _put(key: str, value: bytes, lease: str) -> dict[str, Any]:
    return {"request_put": {"key": _encode(key), "value": _encode(value), "lease": lease}}


def _end(prefix: str) -> str:
    """The end of the range of all keys with this prefix, computed like etcdctl's --prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _encode(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _value(found: dict[str, Any]) -> Value:
    """Parse a key of a reply, from which etcd leaves out empty fields."""
    return Value(base64.b64decode(found.get("value", "")), int(found["mod_revision"]), str(found.get("lease", "0")))
