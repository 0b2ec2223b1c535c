"""Requests to containerd and the API server about the node: health, image pulls, RBAC roles, readiness."""

from local import api, certs, credentials, network, paths
from local.daemons import TEMPLATES, daemon, write
from local.processes import Daemon, read_record

PULL_SECONDS = 600.0


def containerd(pause: str) -> Daemon:
    """Write containerd's configuration; return the daemon. `pause` is the sandbox image's reference."""
    hosts = (TEMPLATES / "hosts.toml").read_text().format(network=network, authorization=credentials.authorization())
    certs.write_private(paths.CONFIGURATION / "certs.d" / network.REGISTRY / "hosts.toml", hosts.encode())
    write(paths.CONFIGURATION / "cni/10-trainyard.conflist", network.cni_configuration())
    return daemon("containerd", containerd_health, pause=pause)


def containerd_health() -> str | None:
    """Ask containerd's CRI service for its version: the kubelet's first request, too."""
    if not paths.CONTAINERD_SOCKET.exists():
        return "no socket"
    import grpc  # takes 0.1 s to import

    with grpc.insecure_channel(f"unix://{paths.CONTAINERD_SOCKET}") as channel:
        # A VersionRequest without fields encodes to zero bytes, so this needs no generated code. Any answer will do.
        ask = channel.unary_unary("/runtime.v1.RuntimeService/Version")
        try:
            ask(b"", timeout=api.TIMEOUT)
        except grpc.RpcError as error:
            return str(error.details() if isinstance(error, grpc.Call) else error)
    return None


def pull(reference: str) -> None:
    """Pull and unpack an image as the kubelet would, before a pod needs it. Raises OSError."""
    import grpc
    from google.protobuf.wrappers_pb2 import BytesValue, StringValue

    # A PullImageRequest's first field is an ImageSpec, whose first field is the image's name. On the wire, both look
    # like these wrappers (k8s.io/cri-api v0.34 pkg/apis/runtime/v1/api.proto).
    request = BytesValue(value=StringValue(value=reference).SerializeToString()).SerializeToString()
    with grpc.insecure_channel(f"unix://{paths.CONTAINERD_SOCKET}") as channel:
        try:
            channel.unary_unary("/runtime.v1.ImageService/PullImage")(request, timeout=PULL_SECONDS)
        except grpc.RpcError as error:
            raise OSError(str(error.details() if isinstance(error, grpc.Call) else error)) from None


def grant_coredns() -> None:
    grant(
        "coredns",
        {"": ["endpoints", "services", "pods", "namespaces"], "discovery.k8s.io": ["endpointslices"]},
    )


def grant(who: str, kinds: dict[str, list[str]]) -> None:
    """Let one of the node's programs read these kinds (API group -> resources) in all namespaces.

    The program runs outside the cluster under its own certificate, so these are its only rights.
    """
    name = f"trainyard:{who}"
    group = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [api_group], "resources": resources, "verbs": ["list", "watch", "get"]}
        for api_group, resources in kinds.items()
    ]
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    base = f"/apis/{group}/v1"
    api.apply(f"{base}/clusterroles/{name}", {**head, "kind": "ClusterRole", "rules": rules})
    binding = {
        **head,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    }
    api.apply(f"{base}/clusterrolebindings/{name}", binding)


def ready() -> str | None:
    """Why the node is not ready, or None when it is, by a report of the kubelet that runs now."""
    from datetime import datetime

    record = read_record("kubelet")
    try:
        node = api.get(f"/api/v1/nodes/{certs.NODE_NAME}")
        # In a new cluster this account appears a moment later, and the API server refuses a pod made before that.
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except (OSError, ValueError) as error:
        return api.reason(error)
    for condition in node["status"].get("conditions", ()):
        if condition["type"] == "Ready":
            # A stopped kubelet leaves the Node object, and for a while its last report. Timestamps have whole seconds.
            stamp = datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp()
            if record and stamp + 1 < record.since:
                return "no report of this kubelet yet"
            return None if condition["status"] == "True" else condition.get("message", "not ready")
    return "no report yet"
