"""Google's REST APIs for the doctor: a question gets an answer, or raises NoAnswer with a plain reason."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import requests

from infra import finding
from infra.gke.keys import FILE, TOKEN

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
#: One login for all programs: gcloud's own, and Application Default Credentials.
LOGIN = "gcloud auth login --update-adc"
PATIENCE = (10, 30)  # seconds to connect, and to answer
#: Addresses of the services; a test's server stands in for them.
SERVICES = {
    "artifactregistry": "https://artifactregistry.googleapis.com/v1",
    "cloudbilling": "https://cloudbilling.googleapis.com/v1",
    "cloudresourcemanager": "https://cloudresourcemanager.googleapis.com/v1",
    "compute": "https://compute.googleapis.com/compute/v1",
    "container": "https://container.googleapis.com/v1",
    "file": "https://file.googleapis.com/v1",
    "iam": "https://iam.googleapis.com/v1",
    "serviceusage": "https://serviceusage.googleapis.com/v1",
    "storage": "https://storage.googleapis.com/storage/v1",
}


class NoAnswer(finding.NoAnswer):
    """Why a question has no answer: in words, and the HTTP status (0: nobody answered)."""

    def __init__(self, text: str, status: int = 0, *, disabled: bool = False, fix: str = "") -> None:
        super().__init__(text, fix)
        self.status = status
        self.disabled = disabled
        """Whether the API has to be enabled before it answers."""


@dataclass(frozen=True)
class Google:
    """The APIs with one identity's credentials."""

    token: str
    identity: str = ""
    """Whose credentials they are, where they say so."""
    session: requests.Session = field(default_factory=requests.Session)
    patience: tuple[int, int] = PATIENCE

    def get(self, service: str, path: str, **query: Any) -> dict[str, Any]:
        """The answer to GET.

        Raises:
            NoAnswer: status 404: there is no such thing.
        """
        return self._ask("GET", service, path, params=query)

    def pages(self, service: str, path: str, key: str) -> list[dict[str, Any]]:
        """All items under a key; an aggregated list has them by place. Raises NoAnswer."""
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {}
        while True:
            answer = self.get(service, path, **query)
            items = answer.get(key) or []
            found += items.values() if isinstance(items, dict) else items
            if not answer.get("nextPageToken"):
                return found
            query = {"pageToken": answer["nextPageToken"]}

    def post(self, service: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to POST. Raises NoAnswer."""
        return self._ask("POST", service, path, json=body)

    def delete(self, service: str, path: str) -> dict[str, Any]:
        """The answer to DELETE. Raises NoAnswer."""
        return self._ask("DELETE", service, path)

    def member(self) -> str:
        """The caller as IAM's policies name it; user:YOU: the credentials do not say who it is."""
        return f"serviceAccount:{self.identity}" if self.identity.endswith(".gserviceaccount.com") else "user:YOU"

    def _ask(self, method: str, service: str, path: str, **given: Any) -> dict[str, Any]:
        url = f"{SERVICES[service]}/{path}"
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            answer = self.session.request(method, url, headers=headers, timeout=self.patience, **given)
        except requests.RequestException as error:
            raise NoAnswer(f"{service}.googleapis.com does not answer ({type(error).__name__})") from None
        try:
            content = answer.json()
        except ValueError:
            content = {}
        if answer.ok:
            return content
        error = content.get("error") or {}
        disabled = any(detail.get("reason") == "SERVICE_DISABLED" for detail in error.get("details") or [])
        message = str(error.get("message") or f"HTTP {answer.status_code}").splitlines()[0]
        raise NoAnswer(message, answer.status_code, disabled=disabled)


def connect(patience: tuple[int, int] = PATIENCE) -> Google:
    """The APIs with the credentials that the Pulumi provider would use.

    Raises:
        NoAnswer: there are none, or they are not valid any more.
    """
    # The provider takes a ready token first (hashicorp/terraform-provider-google, provider configuration).
    if token := os.environ.get(TOKEN):
        return Google(token, f"the token in {TOKEN}", patience=patience)
    import google.auth
    import google.auth.transport.requests

    named = os.environ.get(FILE)
    # A file of another shape ends in whatever its reader stumbles over: AttributeError, KeyError, OSError, ValueError.
    try:
        credentials, _ = google.auth.default(scopes=[CLOUD_PLATFORM])
        credentials.refresh(partial(google.auth.transport.requests.Request(), timeout=sum(patience)))
    except Exception as error:
        where = f"{FILE} names {named}: " if named else ""
        # While the variable is set, no login of gcloud's counts.
        fix = f"unset {FILE}   # or name a file that is valid" if named else LOGIN
        raise NoAnswer(f"{where}{finding.reason_of(error)}", fix=fix) from None
    identity = getattr(credentials, "service_account_email", "") or "application default credentials"
    return Google(str(credentials.token), identity, patience=patience)
