"""Errors as a person should read them: one line that names the object, the field and the reason.

An API server answers with a `Status` object (k8s.io/apimachinery, meta/v1 types.go); its JSON never reaches the user,
and neither does any value that the program marked secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class PluginError(Exception):
    """An error for the user, shown as it is."""


class UnreachableError(PluginError):
    """The API server does not answer. `sent` says whether it may have seen the request."""

    def __init__(self, message: str, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class NoSuchKindError(PluginError):
    """The API server does not know this apiVersion and kind."""


class CancelledError(PluginError):
    """The user interrupted the operation."""


class CannotPreviewError(PluginError):
    """A dry run says nothing about the real update."""


class InitFailedError(PluginError):
    """The object exists, but is not ready: `live` goes into the state together with the reasons."""

    def __init__(self, message: str, reasons: list[str], live: dict[str, Any]) -> None:
        super().__init__(message)
        self.reasons = reasons
        self.live = live


class ApiError(PluginError):
    """A refusal of the API server. `code` is the HTTP status, `reason` Kubernetes' word for it (`AlreadyExists`)."""

    def __init__(self, what: str, code: int, status: dict[str, Any]) -> None:
        self.code = code
        self.reason = str(status.get("reason") or "")
        self.status = status
        super().__init__(explain(what, code, status))

    @property
    def is_conflict_of_managers(self) -> bool:
        """Whether another field manager owns a field (409 with FieldManagerConflict causes)."""
        return any(cause.get("reason") == "FieldManagerConflict" for cause in _causes(self.status))

    @property
    def required_fields(self) -> list[str]:
        """The fields that the server misses."""
        return [
            str(cause.get("field")) for cause in _causes(self.status) if cause.get("reason") == "FieldValueRequired"
        ]


def _causes(status: dict[str, Any]) -> list[dict[str, Any]]:
    return (status.get("details") or {}).get("causes") or []


def parse_status(body: bytes, code: int) -> dict[str, Any]:
    """The `Status` in a response's body; a made-up one where the body is something else (a proxy's page)."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return status
    text = body.decode(errors="replace").strip().splitlines()
    return {"reason": "", "message": (text[0][:200] if text else f"HTTP status {code}")}


def explain(what: str, code: int, status: dict[str, Any]) -> str:
    """One line for a `Status`, e.g. `Job default/x is invalid: spec.completions: Required value: ...`."""
    reason = status.get("reason") or ""
    message = " ".join(str(status.get("message") or f"HTTP status {code}").split())
    if reason == "Invalid" and _causes(status):
        return f"{what} is invalid: " + "; ".join(_cause_lines(status))
    if reason == "AlreadyExists" and "is being deleted" in message:
        return (
            f"{what} is still being deleted: with pulumi.com/skipAwait nobody waits for that; give the new object "
            "another name (leave metadata.name out), or try again in a moment"
        )
    if reason == "AlreadyExists":
        return (
            f"{what} already exists in the cluster: import it (pulumi import), give this one another name, or set "
            "upsertExistingObjects on the provider to take it over"
        )
    if reason == "NotFound":
        return f"{what}: {message}"
    if reason == "Forbidden":
        return f"{what} is forbidden: {_after_prefix(message, 'is forbidden: ')}"
    if code == 409 and any(cause.get("reason") == "FieldManagerConflict" for cause in _causes(status)):
        owned = "; ".join(f"{cause.get('field', '?')} ({cause.get('message', '')})" for cause in _causes(status))
        return (
            f"{what}: other programs manage some of its fields: {owned}; leave the fields out, or set the annotation "
            'pulumi.com/patchForce: "true" to take them over'
        )
    if code == 401:
        return f"{what}: the API server does not accept the credentials of the kubeconfig (401 Unauthorized)"
    return f"{what}: {message}"


def _cause_lines(status: dict[str, Any]) -> Iterable[str]:
    """`field: message` of every cause, each once, without the object dumps that immutable fields come with."""
    seen: dict[str, None] = {}
    for cause in _causes(status):
        field, message = str(cause.get("field") or ""), " ".join(str(cause.get("message") or "").split())
        value, found, rest = message.partition("Invalid value: ")
        if found and len(rest) > 160:
            message = (
                f"{value}Invalid value: ...: {rest.rsplit(': ', 1)[-1]}" if ": " in rest else message[:160] + "..."
            )
        seen[f"{field}: {message}" if field else message] = None
    return seen


def _after_prefix(message: str, prefix: str) -> str:
    return message.split(prefix, 1)[-1]


def hide(message: str, secret_values: Iterable[str]) -> str:
    """The message with every secret value in it replaced, also in its quoted and base64 forms as given."""
    for value in sorted(set(secret_values), key=len, reverse=True):
        if len(value) >= 3:
            message = message.replace(value, "[secret]")
            message = message.replace(json.dumps(value)[1:-1], "[secret]")
    return message
