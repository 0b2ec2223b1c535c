"""Makes the node enforce network policies, as the clouds' networks do and its own bridge does not: `up --policies`.

Of kube-router only the firewall runs. It writes iptables rules and sets of addresses for the pods of this node; the
bridge shows iptables what one pod sends another (br_netfilter). kube-router needs a moment for a new pod; until then
others turn it away.
"""

import shutil
from collections.abc import Callable

from local import api, certs, kubeconfig, network, node, packages, processes, toolchain
from local.phases import Phases
from local.processes import Daemon

TOOL = "kube-router"
HEALTH_PORT = 20244
BRIDGE = "net.bridge.bridge-nf-call-iptables"
KINDS = {
    "": ["pods", "namespaces", "nodes", "services", "endpoints"],
    "networking.k8s.io": ["networkpolicies"],
    "discovery.k8s.io": ["endpointslices"],
}


def wanted() -> bool:
    """Whether an earlier `up` was asked for it, and no `down` came since."""
    return processes.read_record(TOOL) is not None


def start(phases: Phases, build: Callable[[str, Phases], None]) -> None:
    """From nothing, or as far as it is not there."""
    if not shutil.which("ipset"):
        with phases.phase("install ipset"):
            packages.install(("ipset",))
    build(TOOL, phases)
    node.grant(TOOL, KINDS)
    network.set_kernel(BRIDGE, "let iptables see what pods send each other")
    with phases.phase("network policies"):
        if processes.ensure(kube_router()):
            processes.wait(kube_router())


def kube_router() -> Daemon:
    identity = kubeconfig.component(TOOL)
    return Daemon(
        TOOL,
        [
            toolchain.program(TOOL),
            f"--kubeconfig={identity}",
            f"--hostname-override={certs.NODE_NAME}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            f"--service-cluster-ip-range={network.SERVICE_SUBNET}",
            f"--health-port={HEALTH_PORT}",
        ],
        api.http_health(HEALTH_PORT, "/healthz"),
        (identity,),
    )
