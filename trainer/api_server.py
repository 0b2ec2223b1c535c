"""Requests to the cluster's API server from inside a pod, with the rights of its service account."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from trainer.elastic import network
from trainer.errors import one_line

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
"""Content types of a PATCH: server-side apply, and a merge in which None removes a field."""
SECONDS = 30


class RefusedError(RuntimeError):
    """The API server's answer is no success."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


def namespace() -> str:
    """This pod's namespace."""
    return (ACCOUNT / "namespace").read_text().strip()


def ask(path: str, patch: dict[str, Any] | None = None, kind: str = MERGE) -> dict[str, Any]:
    """GET what is at `path`, or PATCH it. Raises RefusedError, and OSError where the API server is out of reach."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(
        f"https://{address}:{port}{path}",
        data=None if patch is None else json.dumps(patch).encode(),
        method="GET" if patch is None else "PATCH",
        # Read each time: the kubelet renews the token.
        headers={"Content-Type": kind, "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}"},
    )
    context = network.trust(str(ACCOUNT / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise RefusedError(error.code, one_line(error.read().decode(errors="replace"), 300)) from None
