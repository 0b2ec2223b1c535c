"""The few requests that `up` sends to the API server and to the daemons' health endpoints.

The official client takes over a second to import, longer than everything else that a second `up` does. Plain GETs and
one kind of PATCH need only the standard library's HTTP.
"""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from local import certs, network

TIMEOUT = 3.0  # seconds; everything is on this machine


def open_url(request: urllib.request.Request, context: ssl.SSLContext | None = None) -> bytes:
    # Ignore the environment's proxies: they cannot reach the network namespace.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT) as response:
        return response.read()


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certs.CA))
    context.load_cert_chain(certs.certificate("admin"), certs.key("admin"))
    return context


def reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return str(getattr(error, "reason", error)) or type(error).__name__


def get(path: str) -> Any:
    """Return the object at an API path. Raises OSError (urllib's errors are OSErrors)."""
    return json.loads(open_url(urllib.request.Request(network.API_SERVER + path), _context()))


def apply(path: str, thing: dict[str, Any]) -> None:
    """Server-side apply of one object at its own API path."""
    request = urllib.request.Request(
        f"{network.API_SERVER}{path}?fieldManager=trainyard-local&force=true",
        data=json.dumps(thing).encode(),
        headers={"Content-Type": "application/apply-patch+yaml"},
        method="PATCH",
    )
    open_url(request, _context())


def apiserver_health() -> str | None:
    try:
        open_url(urllib.request.Request(f"{network.API_SERVER}/readyz"), _context())
    except OSError as error:
        return reason(error)
    return None


def http_health(url: str) -> Callable[[], str | None]:
    """Make a health check of a URL of the node. It accepts a self-signed certificate: the address is our own veth."""

    def check() -> str | None:
        context = ssl._create_unverified_context() if url.startswith("https:") else None
        try:
            open_url(urllib.request.Request(url), context)
        except OSError as error:
            # Who asks for credentials serves.
            return None if getattr(error, "code", None) == 401 else reason(error)
        return None

    return check
