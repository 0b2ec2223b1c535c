"""Requests to the API server: discovery of kinds, retries, and errors that say what is wrong.

The official `kubernetes` client handles authentication, TLS and proxies. Objects are plain dicts instead of its typed
classes, because a provider handles every kind alike.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from .errors import ApiError, CancelledError, NoSuchKindError, UnreachableError, parse_status
from .settings import Settings

APPLY = "application/apply-patch+yaml"
JSON = "application/json"
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
# Pauses in seconds before each retry of a request that met a busy or restarting server.
RETRY_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)
RETRY_CODES = {429, 500, 502, 503, 504}

_import_lock = threading.Lock()


def import_kubernetes() -> Any:
    """Import the official client. Two threads that import it at once see half-initialised modules, hence the lock."""
    with _import_lock:
        import kubernetes.client
        import kubernetes.config
        import kubernetes.utils

        return kubernetes


@dataclass(frozen=True)
class Kind:
    """The API path of a kind: `/apis/batch/v1`, `jobs`, namespaced."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """Return the URL path of an object, or of the collection if `name` is empty."""
        scope = ["namespaces", quote(namespace, safe="")] if self.namespaced else []
        return "/".join([self.prefix, *scope, self.plural, *([quote(name, safe="")] if name else [])])


class Client:
    """One API server. `cancelled` ends pauses and waits at once."""

    def __init__(self, settings: Settings, cancelled: threading.Event) -> None:
        self._settings = settings
        self.cancelled = cancelled
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._probe_lock, self._connect_lock = threading.Lock(), threading.Lock()
        self._api: Any = None
        self._problem: str | None = settings.problem
        self._probed = settings.problem is not None

    def problem(self) -> str | None:
        """Why the cluster cannot be used, or None. Asks the server once in each run of the plugin."""
        with self._probe_lock:
            if not self._probed:
                try:
                    self._request("GET", "/version", "the API server", pauses=(0.5,))
                except (ApiError, UnreachableError) as error:
                    refused = isinstance(error, ApiError) and error.code != 401
                    self._problem = None if refused else str(error)
            self._probed = True
            return self._problem

    def sleep(self, seconds: float, what: str = "") -> None:
        """Sleep. Raises CancelledError if the user interrupts."""
        if self.cancelled.wait(seconds):
            raise CancelledError(f"{what}: interrupted")

    def kind(self, api_version: str, kind: str) -> Kind:
        """Look a kind up in the API server's discovery documents.

        Raises:
            NoSuchKindError: the server has no such kind (yet).
        """
        key = (api_version, kind)
        if key not in self._kinds:
            self._discover(api_version)
        if key not in self._kinds:
            raise NoSuchKindError(
                f"the API server has no kind {kind} in {api_version}: check apiVersion and kind, and that its "
                "CustomResourceDefinition is installed"
            )
        return self._kinds[key]

    def _discover(self, api_version: str) -> None:
        """Read the discovery document of one group and version."""
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
        self, method: str, obj: dict[str, Any], body: Any = None, content_type: str = JSON, **query: Any
    ) -> dict[str, Any]:
        """Send one request about the object that `obj` names (apiVersion, kind, metadata).

        Raises:
            ApiError: the server refused. UnreachableError: it did not answer. NoSuchKindError: it has no such kind.
        """
        meta = obj.get("metadata") or {}
        kind = self.kind(obj["apiVersion"], obj["kind"])
        name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "default")
        what = f"{obj['kind']} {namespace}/{name}" if kind.namespaced else f"{obj['kind']} {name}"
        return self._request(method, kind.path(namespace, name), what, body, content_type, query=query)

    def get(self, obj: dict[str, Any]) -> dict[str, Any] | None:
        """Return the live object, or None if it does not exist."""
        try:
            return self.request("GET", obj)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str, **query: Any) -> list[dict[str, Any]]:
        """List the objects of a kind in a namespace. `query`: labelSelector, fieldSelector."""
        like = {"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}}
        return self.request("GET", like, **query).get("items") or []

    def logs(self, namespace: str, pod: str, container: str, lines: int, previous: bool) -> str:
        """Return the last lines of a container's log; empty if there are none or they cannot be read."""
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
        *,
        query: dict[str, Any] | None = None,
        pauses: tuple[float, ...] | None = None,
    ) -> dict[str, Any]:
        url = f"{path}?{urlencode(query)}" if query else path
        # Every request may be retried: a second apply or delete changes nothing.
        for pause in RETRY_PAUSES if pauses is None else pauses:
            try:
                return json.loads(self._send(method, url, body, content_type, what) or b"{}")
            except UnreachableError:
                self.sleep(pause, what)
            except ApiError as error:
                # A controller changed the object during the apply. This is not a conflict of field managers: retry.
                changed = error.code == 409 and method == "PATCH" and not error.is_conflict_of_managers
                if error.code not in RETRY_CODES and not changed:
                    raise
                self.sleep(pause, what)
        return json.loads(self._send(method, url, body, content_type, what) or b"{}")

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
            raise UnreachableError(_explain_unreachable(api.configuration.host, error)) from None
        if response.status >= 400:
            raise ApiError(what, response.status, parse_status(response.data, response.status))
        return response.data

    def _connect(self) -> Any:
        with self._connect_lock:
            if self._api is None:
                self._api = import_kubernetes().client.ApiClient(_configuration(self._settings))
            return self._api


def _configuration(settings: Settings) -> Any:
    """Return the official client's Configuration for the chosen context."""
    kubernetes = import_kubernetes()
    configuration = kubernetes.client.Configuration()
    options = {"context": settings.context, "client_configuration": configuration, "persist_config": False}
    try:
        if isinstance(settings.kubeconfig, dict):
            kubernetes.config.load_kube_config_from_dict(settings.kubeconfig, **options)
        else:
            kubernetes.config.load_kube_config(settings.kubeconfig, **options)
    except Exception as error:  # the loader raises many types; each means an unusable kubeconfig entry
        raise UnreachableError(f"context {settings.context!r} of the kubeconfig cannot be used: {error}") from None
    configuration.connection_pool_maxsize = 32
    if not configuration.verify_ssl:
        import urllib3

        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return configuration


def _explain_unreachable(host: str, error: Exception) -> str:
    """Explain in one line which server failed, what went wrong and what to check."""
    cause: BaseException = error
    while isinstance(inner := cause.__cause__ or cause.__context__ or getattr(cause, "reason", None), BaseException):
        cause = inner
    lines = str(cause).split("(Caused by")[0].strip().splitlines()
    detail = lines[0] if lines else type(cause).__name__
    return (
        f"the Kubernetes API server at {host} cannot be reached ({detail}): is it running, is this the right context?"
    )
