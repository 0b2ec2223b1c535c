"""The control plane: etcd, the API server, the controller manager and the scheduler, as light as they go.

They share two cores with the training, so everything that only serves a larger cluster is off: leader election,
profiling, request fairness, controllers for clouds.
"""

from local import api, certs, kubeconfig, network, paths
from local.processes import Daemon
from local.toolchain import program

ETCD_CLIENT = "http://127.0.0.1:2379"  # reachable inside the namespace only, and there by the node's own processes


def etcd() -> Daemon:
    peer = "http://127.0.0.1:2380"
    return Daemon(
        "etcd",
        [
            program("etcd"),
            f"--data-dir={paths.ETCD_DATA}",
            "--name=local",
            f"--listen-client-urls={ETCD_CLIENT}",
            f"--advertise-client-urls={ETCD_CLIENT}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            # Health only, where the host can ask.
            f"--listen-metrics-urls=http://{network.NODE_ADDRESS}:2381",
            # A killed process loses nothing by this; a machine that loses power may lose this test cluster's objects.
            "--unsafe-no-fsync",
            "--quota-backend-bytes=268435456",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=5m",
            "--log-level=warn",
            # Heartbeats of a single member go nowhere: five times fewer than usual.
            "--heartbeat-interval=500",
            "--election-timeout=5000",
        ],
        api.http_health(2381, "/health"),
        # With nobody to vote against, the member elects itself without waiting for that timeout.
        environment={"GOMAXPROCS": "2"},
    )


def apiserver() -> Daemon:
    return Daemon(
        "kube-apiserver",
        [
            program("kube-apiserver"),
            f"--etcd-servers={ETCD_CLIENT}",
            f"--advertise-address={network.NODE_ADDRESS}",
            f"--bind-address={network.NODE_ADDRESS}",
            "--secure-port=6443",
            f"--service-cluster-ip-range={network.SERVICE_SUBNET}",
            f"--tls-cert-file={certs.certificate('apiserver')}",
            f"--tls-private-key-file={certs.key('apiserver')}",
            f"--client-ca-file={certs.CA}",
            f"--service-account-issuer=https://kubernetes.default.svc.{network.DNS_DOMAIN}",
            f"--service-account-key-file={certs.SERVICE_ACCOUNT_PUBLIC}",
            f"--service-account-signing-key-file={certs.SERVICE_ACCOUNT_KEY}",
            f"--kubelet-certificate-authority={certs.CA}",
            f"--kubelet-client-certificate={certs.certificate('apiserver-kubelet-client')}",
            f"--kubelet-client-key={certs.key('apiserver-kubelet-client')}",
            # No DNS of the host knows the node's name.
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",  # whether a namespace may is Pod Security's to say
            "--profiling=false",
            "--enable-priority-and-fairness=false",
            "--watch-cache-sizes=",
            "--event-ttl=2h",
        ],
        api.apiserver_health,
        (certs.certificate("apiserver"), certs.CA, certs.SERVICE_ACCOUNT_PUBLIC),
    )


def controller_manager() -> Daemon:
    config = kubeconfig.component("kube-controller-manager")
    return Daemon(
        "kube-controller-manager",
        [
            program("kube-controller-manager"),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--bind-address={network.NODE_ADDRESS}",
            f"--cert-dir={paths.RUN}/kube-controller-manager",
            f"--root-ca-file={certs.CA}",
            f"--service-account-private-key-file={certs.SERVICE_ACCOUNT_KEY}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--profiling=false",
            # The pods' subnet is in the CNI configuration; nobody asks for autoscaling of pods here.
            "--controllers=*,-node-ipam-controller,-horizontal-pod-autoscaler-controller",
            # A kubelet that stopped is noticed in 20 s instead of 50 s: a test of a lost node need not wait for long.
            "--node-monitor-grace-period=20s",
        ],
        api.http_health(10257, "/healthz", "https"),
        (config, certs.CA),
    )


def scheduler() -> Daemon:
    config = kubeconfig.component("kube-scheduler")
    return Daemon(
        "kube-scheduler",
        [
            program("kube-scheduler"),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--bind-address={network.NODE_ADDRESS}",
            f"--cert-dir={paths.RUN}/kube-scheduler",
            "--leader-elect=false",
            "--profiling=false",
        ],
        api.http_health(10259, "/healthz", "https"),
        (config,),
    )
