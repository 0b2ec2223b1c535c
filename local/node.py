"""The machine part of the node: containerd, kubelet, kube-proxy and CoreDNS, with their configuration files."""

import json
import os
from pathlib import Path
from typing import Any

from local import api, certs, cgroups, kubeconfig, network, paths
from local.processes import Daemon, read_record
from local.toolchain import program

# Short paths: a unix socket's may have 107 bytes. kubelet makes its sockets below its root directory, so it gets
# one in /run that is a link to the one in the checkout, where pods' files have room.
CONTAINERD_SOCKET = paths.RUN / "containerd.sock"
KUBELET_ROOT = paths.RUN / "kubelet"
CONTAINERD_STATE = paths.RUN / "containerd"
CNI_CONFIGURATION = paths.CONFIGURATION / "cni"
REGISTRY_HOSTS = paths.CONFIGURATION / "certs.d"

PULL_SECONDS = 600.0

CONTAINERD = """\
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Root of a container or a small machine often lacks CAP_SYS_RESOURCE, and may then not lower a score.
  restrict_oom_score_adj = true
  # Pods' network namespaces lie below `state`, so `down` finds all of them.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    # The registry beside it has the layers; a second copy of 3 GB serves nobody.
    discard_unpacked_layers = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{hosts}"
"""

REGISTRY_HOST = """\
server = "http://{registry}"
[host."http://{registry}"]
  capabilities = ["pull", "resolve"]
"""

COREFILE = """\
.:53 {{
  bind {address}
  errors
  ready {node}:8181
  kubernetes {domain} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    # Every pod that a headless Service selects is found at once: elastic workers look each other up while they start.
    pods insecure
    ttl 5
  }}
  cache {{
    success 1000 5
    denial 1000 1
  }}
}}
"""


def kubelet_configuration() -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.NODE_ADDRESS,
        "healthzBindAddress": network.NODE_ADDRESS,
        "tlsCertFile": str(certs.certificate("kubelet-server")),
        "tlsPrivateKeyFile": str(certs.key("kubelet-server")),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(certs.CA)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.ROOT,
        "failCgroupV1": False,  # version 1 still works in 1.34, and some machines have nothing else
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        "clusterDNS": [network.DNS_ADDRESS],
        "clusterDomain": network.DNS_DOMAIN,
        "resolvConf": "",  # pods reach nothing beyond the node, so the host's resolvers would only time out
        "maxPods": 50,
        "serializeImagePulls": False,
        # By age alone: how full the disk is says nothing about images on a machine that does other work as well.
        "imageGCHighThresholdPercent": 100,
        "imageMaximumGCAge": "1h",
        "evictionHard": {
            "memory.available": "200Mi",
            "nodefs.available": "1Gi",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1Gi",
        },
        "evictionPressureTransitionPeriod": "30s",
        # Not /var/log/pods: another kubelet of this machine would collect our pods' logs as those of strangers.
        "podLogsDir": str(paths.POD_LOGS),
        "containerLogMaxSize": "20Mi",
        "containerLogMaxFiles": 2,
        "enableProfilingHandler": False,
        "protectKernelDefaults": False,
    }


def write(path: Path, text: str) -> Path:
    """Writes a configuration file only when it differs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def containerd(pause: str) -> Daemon:
    """`pause` is the sandbox image's reference."""
    settings = CONTAINERD.format(
        root=paths.CONTAINERD_DATA,
        state=CONTAINERD_STATE,
        socket=CONTAINERD_SOCKET,
        pause=pause,
        cni=CNI_CONFIGURATION,
        hosts=REGISTRY_HOSTS,
    )
    config = write(paths.CONFIGURATION / "containerd.toml", settings)
    write(REGISTRY_HOSTS / network.REGISTRY / "hosts.toml", REGISTRY_HOST.format(registry=network.REGISTRY))
    write(CNI_CONFIGURATION / "10-trainyard.conflist", network.cni_configuration())
    return Daemon("containerd", ["containerd", "--config", str(config)], containerd_health, (config,))


def containerd_health() -> str | None:
    """Asks containerd's CRI service for its version: the question that kubelet begins with."""
    if not CONTAINERD_SOCKET.exists():
        return "no socket"
    import grpc  # takes 0.1 s to import

    with grpc.insecure_channel(f"unix://{CONTAINERD_SOCKET}") as channel:
        # A VersionRequest without fields is no bytes, so no generated code is needed; any answer will do.
        ask = channel.unary_unary("/runtime.v1.RuntimeService/Version")
        try:
            ask(b"", timeout=api.TIMEOUT)
        except grpc.RpcError as error:
            return str(error.details() if isinstance(error, grpc.Call) else error)
    return None


def pull(reference: str) -> None:
    """Fetch and unpack an image as the kubelet would, before a pod asks for it. Raises OSError."""
    import grpc
    from google.protobuf.wrappers_pb2 import BytesValue, StringValue

    # A PullImageRequest has an ImageSpec as its first field, and that the image's name: these two look so on the wire
    # (k8s.io/cri-api v0.34 pkg/apis/runtime/v1/api.proto).
    request = BytesValue(value=StringValue(value=reference).SerializeToString()).SerializeToString()
    with grpc.insecure_channel(f"unix://{CONTAINERD_SOCKET}") as channel:
        try:
            channel.unary_unary("/runtime.v1.ImageService/PullImage")(request, timeout=PULL_SECONDS)
        except grpc.RpcError as error:
            raise OSError(str(error.details() if isinstance(error, grpc.Call) else error)) from None


def link_kubelet_root() -> None:
    paths.KUBELET_DATA.mkdir(parents=True, exist_ok=True)
    if not KUBELET_ROOT.is_symlink() or os.readlink(KUBELET_ROOT) != str(paths.KUBELET_DATA):
        KUBELET_ROOT.unlink(missing_ok=True)
        KUBELET_ROOT.symlink_to(paths.KUBELET_DATA)


def kubelet() -> Daemon:
    config = write(paths.CONFIGURATION / "kubelet.json", json.dumps(kubelet_configuration(), indent=1))
    identity = kubeconfig.component("kubelet")
    link_kubelet_root()
    return Daemon(
        "kubelet",
        [
            program("kubelet"),
            f"--config={config}",
            f"--kubeconfig={identity}",
            f"--hostname-override={certs.NODE_NAME}",
            f"--node-ip={network.NODE_ADDRESS}",
            f"--root-dir={KUBELET_ROOT}",
        ],
        api.http_health(10248, "/healthz"),
        (config, identity, certs.certificate("kubelet-server")),
    )


def kube_proxy() -> Daemon:
    identity = kubeconfig.component("kube-proxy")
    return Daemon(
        "kube-proxy",
        [
            program("kube-proxy"),
            f"--kubeconfig={identity}",
            f"--hostname-override={certs.NODE_NAME}",
            f"--cluster-cidr={network.POD_SUBNET}",
            "--proxy-mode=iptables",
            f"--healthz-bind-address={network.NODE_ADDRESS}:10256",
            f"--metrics-bind-address={network.NODE_ADDRESS}:10249",
            # These are limits of the whole machine: not ours to change.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        ],
        api.http_health(10256, "/livez"),
        (identity,),
    )


def coredns() -> Daemon:
    identity = kubeconfig.component("coredns")
    text = COREFILE.format(
        address=network.DNS_ADDRESS, node=network.NODE_ADDRESS, domain=network.DNS_DOMAIN, kubeconfig=identity
    )
    config = write(paths.CONFIGURATION / "Corefile", text)
    return Daemon(
        "coredns",
        [program("coredns"), "-conf", str(config)],
        api.http_health(8181, "/ready"),
        (config, identity),
    )


def grant_coredns() -> None:
    grant(
        "coredns",
        {"": ["endpoints", "services", "pods", "namespaces"], "discovery.k8s.io": ["endpointslices"]},
    )


def grant(who: str, kinds: dict[str, list[str]]) -> None:
    """Lets one of the node's programs read these kinds (API group -> resources) in all namespaces.

    It runs outside the cluster under its own certificate, so nothing but this gives it its rights.
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
    """Whether the API server counts the node as ready, by a report that this run of the kubelet made."""
    from datetime import datetime

    record = read_record("kubelet")
    try:
        node = api.get(f"/api/v1/nodes/{certs.NODE_NAME}")
        # In a new cluster it comes a moment later, and a pod made before that is refused.
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except (OSError, ValueError) as error:
        return api.reason(error)
    for condition in node["status"].get("conditions", ()):
        if condition["type"] == "Ready":
            # The object outlives a stopped kubelet, and for a while so does its last report. Stamps have whole seconds.
            stamp = datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp()
            if record and stamp + 1 < record.since:
                return "no report of this kubelet yet"
            return None if condition["status"] == "True" else condition.get("message", "not ready")
    return "no report yet"
