"""A client of a cluster's API server, with the rights of a kubeconfig's context."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes import client


def api_client(
    context: str, kubeconfig: str | None, configuration: client.Configuration | None = None
) -> client.ApiClient:
    """Raises kubernetes.config.ConfigException where no kubeconfig has the context."""
    from kubernetes import config  # takes a second
    from urllib3.util import create_urllib3_context

    made = config.new_client_from_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    pools = made.rest_client.pool_manager.connection_pool_kw
    # Verify what kubectl does. Python 3.13 began to refuse authorities without every extension of RFC 5280
    # (VERIFY_X509_STRICT), as EKS's is (kubernetes-client/python issue 2394, 2026-11-27).
    trust = create_urllib3_context(cert_reqs=pools["cert_reqs"], verify_flags=ssl.VERIFY_X509_PARTIAL_CHAIN)
    if not (pools["ca_certs"] or pools["ca_cert_data"]):
        trust.load_default_certs()
    pools["ssl_context"] = trust
    return made
