"""Requests to the API server: discovery of kinds, retries, and errors that say what is wrong.

Authentication, TLS and proxies come from the official `kubernetes` client. Its typed API classes are not used: objects
are plain dicts here, because a provider handles every kind alike.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from .errors import ApiError, CancelledError, NoSuchKindError, UnreachableError, parse_status
from .settings import Settings

APPLY = "application/apply-patch+yaml"
JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
# A request that met a busy or restarting server is sent again: at once, then with doubling pauses.
RETRY_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)
RETRY_CODES = {429, 500, 502, 503, 504}
REFUSED_CODES = {429, 503}  # the request was certainly not carried out


_import_lock = threading.Lock()


def import_kubernetes() -> Any:
    """The official client's package, which takes half a second to load. Two threads that load parts of it at the same
    time see half-made modules, hence the lock."""
    with _import_lock:
        import kubernetes.client
        import kubernetes.config

        return kubernetes


@dataclass(frozen=True)
class Kind:
    """How a kind is addressed: `/apis/batch/v1`, `jobs`, namespaced."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """URL path of an object, or of the collection where `name` is empty."""
        parts = [self.prefix]
        if self.namespaced:
            parts += ["namespaces", quote(namespace or "default", safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        return "/".join(parts)


class Client:
    """One API server. `cancelled` ends pauses and waits at once."""

    def __init__(self, settings: Settings, cancelled: threading.Event) -> None:
        self._settings = settings
        self.cancelled = cancelled
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._lock = threading.Lock()
        self._connect_lock = threading.Lock()
        self._api: Any = None
        self._problem: str | None = settings.problem
        self._probed = False

    def problem(self) -> str | None:
        """Why the cluster cannot be used, or None. The server is asked once for each run of the plugin."""
        with self._lock:
            if not self._probed and self._problem is None:
                try:
                    self._request("GET", "/version", "the API server", pauses=(0.5,))
                except ApiError as error:
                    self._problem = str(error) if error.code == 401 else None
                except UnreachableError as error:
                    self._problem = str(error)
            self._probed = True
            return self._problem

    def _connect(self) -> Any:
        with self._connect_lock:
            if self._api is None:
                self._api = import_kubernetes().client.ApiClient(_configuration(self._settings))
            return self._api

    def kind(self, api_version: str, kind: str) -> Kind:
        """How to address a kind, from the API server's discovery documents.

        Raises:
            NoSuchKindError: the server has no such kind (yet).
        """
        key = (api_version, kind)
        found = self._kinds.get(key)
        if found is None:
            self.forget_kinds(api_version)
            found = self._kinds.get(key)
        if found is None:
            raise NoSuchKindError(
                f"the API server has no kind {kind} in {api_version}: check apiVersion and kind, and that its "
                "CustomResourceDefinition is created first (depends_on)"
            )
        return found

    def forget_kinds(self, api_version: str) -> None:
        """Read the discovery document of one group and version (again)."""
        prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            document = self._request("GET", prefix, f"the API {api_version}")
        except ApiError as error:
            if error.code == 404:
                return
            raise
        for resource in document.get("resources") or []:
            if "/" not in resource["name"]:
                self._kinds[(api_version, resource["kind"])] = Kind(prefix, resource["name"], resource["namespaced"])

    def request(
        self,
        method: str,
        obj: dict[str, Any],
        body: Any = None,
        *,
        content_type: str = JSON,
        collection: bool = False,
        subpath: str = "",
        **query: Any,
    ) -> dict[str, Any]:
        """One request about the object that `obj` names (apiVersion, kind, metadata).

        Raises:
            ApiError: the server refused. UnreachableError: it did not answer. NoSuchKindError: it has no such kind.
        """
        meta = obj.get("metadata") or {}
        kind = self.kind(obj["apiVersion"], obj["kind"])
        name = str(meta.get("name") or "")
        namespace = str(meta.get("namespace") or "default") if kind.namespaced else ""
        path = kind.path(namespace, "" if collection else name) + subpath
        what = f"{obj['kind']} {namespace}/{name}" if namespace else f"{obj['kind']} {name}"
        return self._request(method, path, what, body, content_type, query)

    def get(self, obj: dict[str, Any]) -> dict[str, Any] | None:
        """The live object, or None where it does not exist."""
        try:
            return self.request("GET", obj)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str, **query: Any) -> list[dict[str, Any]]:
        """The objects of a kind in a namespace; `labelSelector` and `fieldSelector` narrow it."""
        like = {"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}}
        return self.request("GET", like, collection=True, **query).get("items") or []

    def logs(self, namespace: str, pod: str, container: str, lines: int, previous: bool) -> str:
        """The last lines that a container wrote; empty where there are none."""
        query = urlencode({"container": container, "tailLines": lines, "previous": str(previous).lower()})
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log?{query}"
        try:
            return self._send("GET", path, None, JSON).decode(errors="replace")
        except (ApiError, UnreachableError):
            return ""

    def _request(
        self,
        method: str,
        path: str,
        what: str,
        body: Any = None,
        content_type: str = JSON,
        query: dict[str, Any] | None = None,
        pauses: tuple[float, ...] = RETRY_PAUSES,
    ) -> dict[str, Any]:
        url = f"{path}?{urlencode(query)}" if query else path
        for pause in (*pauses, None):
            try:
                return json.loads(self._send(method, url, body, content_type, what) or b"{}")
            except (UnreachableError, ApiError) as error:
                if pause is None or not _may_retry(method, error):
                    raise
                if self.cancelled.wait(pause):
                    raise CancelledError(f"{what}: interrupted") from None
        raise AssertionError("unreachable: the last pause is None")

    def _send(self, method: str, url: str, body: Any, content_type: str, what: str = "") -> bytes:
        import urllib3

        api = self._connect()
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": "pulumi-kubernetes-stand-in"}
        for setting in api.configuration.auth_settings().values():
            if setting.get("in") == "header" and setting.get("value"):
                headers[setting["key"]] = setting["value"]
        try:
            response = api.rest_client.pool_manager.request(
                method,
                api.configuration.host + url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            unsent = isinstance(error, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError))
            raise UnreachableError(_unreachable(api.configuration.host, error), sent=not unsent) from None
        if response.status >= 400:
            raise ApiError(what, response.status, parse_status(response.data, response.status))
        return response.data


def _may_retry(method: str, error: ApiError | UnreachableError) -> bool:
    """Whether sending again is safe: a create that may have reached the server would then find its own object."""
    if isinstance(error, ApiError):
        return error.code in (REFUSED_CODES if method == "POST" else RETRY_CODES)
    return method != "POST" or not error.sent


def _configuration(settings: Settings) -> Any:
    """The official client's Configuration for the chosen context."""
    kubernetes = import_kubernetes()
    configuration = kubernetes.client.Configuration()
    try:
        if settings.context is None:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        else:
            kubernetes.config.load_kube_config_from_dict(
                settings.kubeconfig, context=settings.context, client_configuration=configuration, persist_config=False
            )
    except Exception as error:  # the loader raises many kinds; each means an unusable kubeconfig entry
        raise UnreachableError(f"context {settings.context!r} of the kubeconfig cannot be used: {error}") from None
    configuration.connection_pool_maxsize = 32
    if not configuration.verify_ssl:
        import urllib3

        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return configuration


def _unreachable(host: str, error: Exception) -> str:
    """One line: which server, what went wrong, what to check."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__ or getattr(cause, "reason", None)) and isinstance(
        inner, BaseException
    ):
        cause = inner
    text = str(cause).split("(Caused by")[0].strip().splitlines()
    detail = text[0] if text else type(cause).__name__
    return (
        f"the Kubernetes API server at {host} cannot be reached ({detail}): is it running, is this the right context?"
    )


def wait(cancelled: threading.Event, seconds: float, deadline: float) -> bool:
    """Pause, but no longer than to the deadline; False when the deadline passed. Raises CancelledError."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        return False
    if cancelled.wait(min(seconds, remaining)):
        raise CancelledError("interrupted")
    return True
