"""A client of a cluster's API server, with the rights of a kubeconfig's context; and the kubeconfig's text."""

from __future__ import annotations

import codecs
import io
import ssl
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NoReturn

from urllib3 import HTTPSConnectionPool
from urllib3.connection import HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import create_urllib3_context
from urllib3.util.ssl_ import resolve_cert_reqs

if TYPE_CHECKING:
    from kubernetes import client

#: Marks at the beginning of a file -> its encoding; kubectl reads these three (go-yaml, as YAML 1.2 says).
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def kubeconfig_text(path: str | Path) -> str:
    """A kubeconfig's text: PowerShell's `>` writes UTF-16. Raises OSError, UnicodeDecodeError."""
    content = Path(path).read_bytes()
    return content.decode(next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8"))


def _open(path: str, *how: Any, **options: Any) -> IO[Any]:
    return open(path, *how, **options) if how or options else io.StringIO(kubeconfig_text(path))


class NoCredentials(HTTPError):
    """The program that a kubeconfig names gives no credentials, at the first request or when they have expired."""


def _refuse(told: str) -> NoReturn:
    # On a terminal the program's own words stand there, and the client stumbles over not having them.
    stumbles = isinstance(sys.exception(), (AttributeError, TypeError))
    why = "it failed" if stumbles else " ".join(told.removeprefix("exec: ").split())[:300]
    raise NoCredentials(why)


class Connection(HTTPSConnection):
    """Verifies what kubectl does, with a TLS context of its own.

    Python 3.13 began to refuse authorities without every extension of RFC 5280 (VERIFY_X509_STRICT), as EKS's is
    (kubernetes-client/python issue 2394, 2026-11-27). urllib3 changes a context that it is given at each connection,
    and frees what the handshake of another thread may be reading (urllib3 2.8.0, util/ssl_.py, ssl_wrap_socket).
    """

    def connect(self) -> None:
        verify = ssl.VERIFY_X509_PARTIAL_CHAIN
        self.ssl_context = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs), verify_flags=verify)
        if not (self.ca_certs or self.ca_cert_data):
            self.ssl_context.load_default_certs()
        super().connect()


class Pool(HTTPSConnectionPool):
    ConnectionCls = Connection  # pyrefly: ignore[bad-assignment]


def api_client(
    context: str, kubeconfig: str | None, configuration: client.Configuration | None = None
) -> client.ApiClient:
    """Raises kubernetes.config.ConfigException where no kubeconfig has the context, and NoCredentials."""
    from kubernetes import config  # takes a second

    # The client opens its files as text of this machine, and where a program gives no credentials it logs the reason
    # and asks without any (kubernetes 37.0.1, config/kube_config.py, load_config and _load_from_exec_plugin).
    vars(config.kube_config).update(open=_open, logging=SimpleNamespace(error=_refuse))
    made = config.new_client_from_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    manager = made.rest_client.pool_manager
    manager.pool_classes_by_scheme = {**manager.pool_classes_by_scheme, "https": Pool}
    return made
