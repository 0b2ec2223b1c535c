"""The node's network namespace and all of its addresses.

The host keeps one end of a veth pair. Nothing else in the host's network changes. 198.18.0.0/15 is reserved for
benchmarks of network devices (RFC 2544), so no network in use should contain it.
"""

import json
import os
import socket
import subprocess
from pathlib import Path

from local import paths
from local.shell import LocalError, run

NAMESPACE = "trainyard"
HOST_ADDRESS = "198.18.0.1"
NODE_ADDRESS = "198.18.0.2"
PREFIX = 30
HOST_DEVICE = "trainyard0"
NODE_DEVICE = "node0"

POD_SUBNET = "10.244.0.0/24"
SERVICE_SUBNET = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"  # the first of SERVICE_SUBNET, by Kubernetes' rule
# CoreDNS listens on this link-local address, on the namespace's lo, so that pods reach it without kube-proxy.
DNS_ADDRESS = "169.254.20.10"
DNS_DOMAIN = "cluster.local"

API_SERVER = f"https://{NODE_ADDRESS}:6443"
REGISTRY = f"{NODE_ADDRESS}:5000"

NETNS_FILE = Path("/run/netns") / NAMESPACE
# One line: the path of the checkout that the namespace belongs to.
OWNER_FILE = Path("/run/trainyard.owner")
IPAM_DATA = paths.RUN / "addresses"


def exists() -> bool:
    """Whether the namespace exists. Where /run is on disk, a reboot leaves a plain file of its name, not a mount."""
    return os.path.ismount(NETNS_FILE)


def owner() -> str | None:
    """Return the path of the checkout whose node is in the namespace, or None if there is no namespace."""
    if not exists():
        return None
    try:
        return OWNER_FILE.read_text().strip()
    except OSError:
        return "unknown"


def is_ours() -> bool:
    """Whether the namespace is free for us: it is missing, or belongs to this checkout or to a deleted one."""
    found = owner()
    return found is None or found == str(paths.ROOT) or (found.startswith("/") and not Path(found, "Makefile").exists())


def ip(*arguments: str, inside: bool = False) -> str:
    return run(["ip", *(["-n", NAMESPACE] if inside else []), *arguments], "set up the node's network")


def has_device() -> bool:
    return any(name == HOST_DEVICE for _, name in socket.if_nameindex())


def ensure() -> bool:
    """Make the namespace with its addresses. Returns whether it was missing: then all earlier pods are gone too."""
    fresh = not exists()
    if fresh:
        NETNS_FILE.unlink(missing_ok=True)
        # Write the owner first: nobody may remove a namespace without one.
        OWNER_FILE.write_text(f"{paths.ROOT}\n")
        ip("netns", "add", NAMESPACE)
    if fresh or not has_device():
        _remove_device()
        ip("link", "add", HOST_DEVICE, "type", "veth", "peer", "name", NODE_DEVICE, "netns", NAMESPACE)
    # Every command below is idempotent: the next run completes one that was killed half way.
    ip("addr", "replace", f"{HOST_ADDRESS}/{PREFIX}", "dev", HOST_DEVICE)
    ip("link", "set", HOST_DEVICE, "up")
    ip("addr", "replace", f"{NODE_ADDRESS}/{PREFIX}", "dev", NODE_DEVICE, inside=True)
    ip("link", "set", NODE_DEVICE, "up", inside=True)
    ip("link", "set", "lo", "up", inside=True)
    ip("addr", "replace", f"{DNS_ADDRESS}/32", "dev", "lo", inside=True)
    # kube-apiserver and kube-proxy take the node's address from the default route. Nothing forwards its packets.
    ip("route", "replace", "default", "via", HOST_ADDRESS, inside=True)
    set_kernel("net.ipv4.ip_forward", "let pods reach each other")
    # A reply from pod to pod over the bridge must pass iptables, which restores the Service's address in it.
    if not Path("/proc/sys/net/bridge").exists():
        run(["modprobe", "br_netfilter"], "load the kernel's br_netfilter, without which no pod reaches a Service")
    set_kernel("net.bridge.bridge-nf-call-iptables", "let iptables see what pods send each other")
    guard_registry()
    return fresh


def guard_registry() -> None:
    """Let the node's containerd and this host alone connect to the registry: neither pods nor a network behind us.

    In a table that comes before the one in which kube-router accepts whatever no policy forbids.
    """
    rule = f"INPUT -p tcp --dport {REGISTRY.rpartition(':')[2]} ! -i lo ! -s {HOST_ADDRESS} -j DROP"
    inside = ["nsenter", f"--net={NETNS_FILE}", "--", "iptables", "-w", "-t", "mangle"]
    if subprocess.run([*inside, "-C", *rule.split()], capture_output=True).returncode:
        run([*inside, "-I", *rule.split()], "keep pods from the node's registry")


def _remove_device() -> None:
    """Remove the veth pair. A moment after the namespace is gone, the kernel does this itself, and may be faster."""
    if has_device():
        try:
            ip("link", "del", HOST_DEVICE)
        except LocalError:
            if has_device():
                raise


def set_kernel(parameter: str, what: str) -> None:
    """Set one of the namespace's kernel parameters to 1. `what` gives the purpose in an error message."""
    run(["nsenter", f"--net={NETNS_FILE}", "--", "sysctl", "-qw", f"{parameter}=1"], what)


def remove() -> None:
    """Delete the veth pair and the namespace."""
    _remove_device()
    if exists():
        subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True)
    NETNS_FILE.unlink(missing_ok=True)
    OWNER_FILE.unlink(missing_ok=True)


def conflicts() -> str | None:
    """Find a host device that already has one of our two addresses; None if there is none, or our own device exists."""
    if has_device():
        return None
    try:
        text = subprocess.run(["ip", "-json", "-4", "addr"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    for device in json.loads(text):
        for address in device.get("addr_info", ()):
            if address.get("local") in (HOST_ADDRESS, NODE_ADDRESS):
                return f"{address['local']} on {device['ifname']}"
    return None


def cni_configuration() -> str:
    """Return the CNI configuration of the pods' bridge. Pods reach each other, the node and the host, nothing else."""
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,  # lets a pod reach itself through its own Service
        "ipam": {
            "type": "host-local",
            "dataDir": str(IPAM_DATA),
            "ranges": [[{"subnet": POD_SUBNET}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": NAMESPACE, "plugins": [bridge, portmap]}, indent=1)
