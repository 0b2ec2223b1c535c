"""Errors for the user: one line that names the object, the field and the reason.

The API server answers with a `Status` object (k8s.io/apimachinery, meta/v1 types.go). The user never sees its JSON, nor
any value that the program marked secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class PluginError(Exception):
    """An error for the user, shown as it is."""


class UnreachableError(PluginError):
    """The API server does not answer."""


class NoSuchKindError(PluginError):
    """The API server does not know this apiVersion and kind."""


class CancelledError(PluginError):
    """The user interrupted the operation."""


class InitFailedError(PluginError):
    """The object exists but is not ready, or still exists after its deletion.

    `live` is its last known state. The provider adds the id and the properties (after a read, the inputs too), which
    the engine stores.
    """

    object_id = ""
    properties: dict[str, Any]
    inputs: dict[str, Any] | None = None

    def __init__(self, message: str, reasons: list[str], live: dict[str, Any]) -> None:
        super().__init__(message)
        self.reasons, self.live, self.properties = reasons, live, {}


class ApiError(PluginError):
    """A refusal of the API server. `code` is the HTTP status, `reason` Kubernetes' name for it (`NotFound`)."""

    def __init__(self, what: str, code: int, status: dict[str, Any]) -> None:
        self.code, self.reason, self.causes = code, str(status.get("reason") or ""), _causes(status)
        super().__init__(explain(what, code, status))

    @property
    def is_conflict_of_managers(self) -> bool:
        """Whether another field manager owns a field."""
        return any(cause.get("reason") == "FieldManagerConflict" for cause in self.causes)


def _causes(status: dict[str, Any]) -> list[dict[str, Any]]:
    return (status.get("details") or {}).get("causes") or []


def parse_status(body: bytes, code: int) -> dict[str, Any]:
    """Parse the `Status` in a response's body. If the body is a proxy's error page, make one of its first line."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return status
    lines = body.decode(errors="replace").strip().splitlines()
    return {"message": lines[0][:200] if lines else f"HTTP status {code}"}


def explain(what: str, code: int, status: dict[str, Any]) -> str:
    """Explain a `Status` in one line, e.g. `Job default/x is invalid: spec.completions: Required value: ...`."""
    reason, causes = status.get("reason"), _causes(status)
    message = " ".join(str(status.get("message") or f"HTTP status {code}").split())
    if reason == "Invalid" and causes:
        return f"{what} is invalid: " + "; ".join(dict.fromkeys(map(_explain_cause, causes)))
    if reason == "Forbidden":
        return f"{what} is forbidden: {message.split('is forbidden: ', 1)[-1]}"
    conflicts = [cause for cause in causes if cause.get("reason") == "FieldManagerConflict"]
    if conflicts:
        owned = "; ".join(f"{cause.get('field')} ({cause.get('message', '')})" for cause in conflicts)
        return (
            f"{what}: other programs manage some of its fields: {owned}; leave the fields out, or set the annotation "
            'pulumi.com/patchForce: "true" to take them over'
        )
    if code == 401:
        return f"{what}: the API server does not accept the credentials of the kubeconfig (401 Unauthorized)"
    return f"{what}: {message}"


def _explain_cause(cause: dict[str, Any]) -> str:
    """Return `field: message`, without the dump of the whole object that the server adds for an immutable field."""
    field, message = str(cause.get("field") or ""), " ".join(str(cause.get("message") or "").split())
    head, found, dump = message.partition("Invalid value: ")
    if found and len(dump) > 160:
        message = f"{head}Invalid value: ...: {dump.rsplit(': ', 1)[-1][:160]}"
    return f"{field}: {message}" if field else message


def hide(message: str, secret_values: Iterable[str]) -> str:
    """Replace every secret value in the message, in plain or JSON-escaped form."""
    for value in sorted(set(secret_values), key=len, reverse=True):
        if len(value) >= 3:
            message = message.replace(value, "[secret]").replace(json.dumps(value)[1:-1], "[secret]")
    return message
