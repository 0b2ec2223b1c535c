"""The image registry: Debian's docker-registry in the node's namespace, reachable from the host and from containerd."""

import urllib.error
import urllib.request

from local import api, network, paths
from local.node import write
from local.processes import Daemon

CONFIGURATION = """\
version: 0.1
log:
  level: warn
  accesslog:
    disabled: true
storage:
  filesystem:
    rootdirectory: {data}
    maxthreads: 100
  cache:
    blobdescriptor: inmemory
  delete:
    enabled: true
http:
  addr: {address}
  # Uploads of one client stay valid over a restart of the registry. Not a secret: only this machine reaches it.
  secret: trainyard
"""

ACCEPT = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


def registry() -> Daemon:
    text = CONFIGURATION.format(data=paths.REGISTRY_DATA, address=network.REGISTRY)
    config = write(paths.CONFIGURATION / "registry.yml", text)
    return Daemon("registry", ["docker-registry", "serve", str(config)], api.http_health(5000, "/v2/"), files=(config,))


def has(reference: str) -> bool:
    """Whether the registry holds an image, given as HOST:PORT/NAME@DIGEST."""
    name, _, digest = reference.removeprefix(f"{network.REGISTRY}/").partition("@")
    request = urllib.request.Request(
        f"http://{network.REGISTRY}/v2/{name}/manifests/{digest}", headers={"Accept": ACCEPT}, method="HEAD"
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=api.TIMEOUT):
            return True
    except urllib.error.HTTPError:
        return False
