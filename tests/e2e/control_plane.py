"""A real API server alone, to which objects are applied: no node, no controllers, nothing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import urllib3

from tests.standin import api_server as standin


class Refused(AssertionError):
    """The API server's own words."""


class ApiServer:
    """Applies objects server-side, as `kubectl apply --server-side` does, and keeps each warning."""

    def __init__(self, url: str, certificate: Path) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(ca_certs=str(certificate))
        self._resources: dict[tuple[str, str], dict[str, Any]] = {}
        """API version and kind -> what discovery says of it; `{}`: the server does not know it."""
        self.warnings: list[str] = []

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        """Raises Refused for an answer that is no success."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind, "Authorization": f"Bearer {standin.TOKEN}"}
        answer = self._pool.request(method, self._url + path, body=content, headers=headers, retries=False)
        self.warnings += answer.headers.getlist("Warning")
        if answer.status >= 400:
            raise Refused(f"{method} {path}: {answer.status} {answer.data.decode()[:1000]}")
        return json.loads(answer.data)

    def resource(self, version: str, kind: str) -> dict[str, Any]:
        if (version, kind) not in self._resources:
            with suppress(Refused):
                found = self.ask("GET", f"/{'apis' if '/' in version else 'api'}/{version}")["resources"]
                self._resources |= {(version, each["kind"]): each for each in found if "/" not in each["name"]}
        return self._resources.setdefault((version, kind), {})

    def apply(self, thing: dict[str, Any], manager: str) -> dict[str, Any]:
        """Apply with strict validation: a field that this version does not know is refused.

        What belongs to no namespace is not kept: of another stack it may have the same name.
        """
        version, found = thing["apiVersion"], self.resource(thing["apiVersion"], thing["kind"])
        namespace = f"/namespaces/{thing['metadata']['namespace']}" if found["namespaced"] else ""
        path = (
            f"/{'apis' if '/' in version else 'api'}/{version}{namespace}/{found['name']}/{thing['metadata']['name']}"
        )
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict"
        query += "" if namespace or thing["kind"] == "Namespace" else "&dryRun=All"
        return self.ask("PATCH", path + query, thing, "application/apply-patch+yaml")


@contextmanager
def api_server(folder: Path, tool: str = "kubernetes", emulated: str = "") -> Iterator[ApiServer]:
    """The API server of a tool of gomod/tools.yaml; `emulated` is an older minor version as which it behaves."""
    with standin.api_server(folder, tool, emulated, controllers=False) as made:
        yield ApiServer(f"https://{made.address}", made.certificate)
