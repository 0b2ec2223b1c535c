"""The control plane: zonal, without a public IP address, reached by DNS name with the caller's Google identity."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.config import StackConfig
from infra.gke.identity import NodeIdentity
from infra.gke.keys import GkeConfig
from infra.gke.network import PODS_PER_NODE, PODS_RANGE, SERVICES_RANGE, Network
from infra.gke.scope import Scope
from infra.scope import LONG
from infra.scope import kubeconfig as written

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
#: Exec plug-in that prints the provider's credentials, not those of gcloud's own login, which may be another user's or,
#: as in CI, missing (kubernetes/cloud-provider-gcp, cmd/gke-gcloud-auth-plugin/cred.go, read 2026-11-22).
PLUGIN: dict[str, Any] = {
    "command": "gke-gcloud-auth-plugin",
    "args": ["--use_application_default_credentials"],
    "installHint": "gcloud components install gke-gcloud-auth-plugin",
}


def create_cluster(
    config: StackConfig, scope: Scope, network: Network, nodes: NodeIdentity, after: list[pulumi.Resource]
) -> gcp.container.Cluster:
    """The cluster without nodes.

    `after`: resources that must outlive it when the stack is destroyed, such as a disk that its nodes have attached.
    """
    c = gcp.container
    disabled = c.ClusterAddonsConfigHttpLoadBalancingArgs(disabled=True)
    # System metrics are free. The accelerators' metrics are worth the price of their samples, those of every object's
    # state are not.
    components = ["SYSTEM_COMPONENTS"]
    # How soon the autoscaler removes an idle node: BALANCED after ten minutes, the other after one or two. A Job waits
    # up to six minutes before it replaces a lost pod (Kubernetes' back-off limit). A node with accelerators that is
    # removed meanwhile may not be available again.
    gke, profile = config.section(GkeConfig), "OPTIMIZE_UTILIZATION"
    if config.machine.accelerators:
        components.append("DCGM")
        profile = "BALANCED"
    return c.Cluster(
        "cluster",
        name=scope.name,
        location=scope.zone,
        deletion_protection=config.cluster.deletion_protection,
        # The default pool is one node for a minute. Ours are separate resources, so that each can be replaced alone.
        remove_default_node_pool=True,
        initial_node_count=1,
        node_config=c.ClusterNodeConfigArgs(
            machine_type=gke.system_machine_type,
            disk_type="pd-standard",
            disk_size_gb=20,
            # Projects without Compute Engine's default service account cannot make even that node.
            service_account=nodes.account.email,
            oauth_scopes=[CLOUD_PLATFORM],
        ),
        release_channel=c.ClusterReleaseChannelArgs(channel=gke.release_channel),
        maintenance_policy=_maintenance(gke.no_upgrades_since),
        network=network.network.id,
        subnetwork=network.subnet.id,
        networking_mode="VPC_NATIVE",
        default_max_pods_per_node=PODS_PER_NODE,
        ip_allocation_policy=c.ClusterIpAllocationPolicyArgs(
            cluster_secondary_range_name=PODS_RANGE, services_secondary_range_name=SERVICES_RANGE
        ),
        # Enforces NetworkPolicies without an add-on.
        datapath_provider="ADVANCED_DATAPATH",
        private_cluster_config=c.ClusterPrivateClusterConfigArgs(enable_private_nodes=True),
        # IAM decides who may connect (container.clusters.connect); there is no address to scan.
        control_plane_endpoints_config=c.ClusterControlPlaneEndpointsConfigArgs(
            dns_endpoint_config=c.ClusterControlPlaneEndpointsConfigDnsEndpointConfigArgs(allow_external_traffic=True),
            ip_endpoints_config=c.ClusterControlPlaneEndpointsConfigIpEndpointsConfigArgs(enabled=False),
        ),
        workload_identity_config=c.ClusterWorkloadIdentityConfigArgs(workload_pool=f"{scope.project}.svc.id.goog"),
        addons_config=c.ClusterAddonsConfigArgs(
            # Its load balancers and firewall rules outlive a cluster and then block the network's deletion.
            http_load_balancing=disabled,
            gce_persistent_disk_csi_driver_config=c.ClusterAddonsConfigGcePersistentDiskCsiDriverConfigArgs(
                enabled=True
            ),
        ),
        monitoring_config=c.ClusterMonitoringConfigArgs(
            enable_components=components,
            managed_prometheus=c.ClusterMonitoringConfigManagedPrometheusArgs(enabled=True),
        ),
        logging_config=c.ClusterLoggingConfigArgs(enable_components=["SYSTEM_COMPONENTS", "WORKLOADS"]),
        cost_management_config=c.ClusterCostManagementConfigArgs(enabled=True),
        cluster_autoscaling=c.ClusterClusterAutoscalingArgs(enabled=False, autoscaling_profile=profile),
        node_pool_defaults=c.ClusterNodePoolDefaultsArgs(
            node_config_defaults=c.ClusterNodePoolDefaultsNodeConfigDefaultsArgs(
                gcfs_config=c.ClusterNodePoolDefaultsNodeConfigDefaultsGcfsConfigArgs(enabled=True),
                insecure_kubelet_readonly_port_enabled="FALSE",
            )
        ),
        opts=scope.options(
            depends_on=after,
            timeouts=LONG,
            # They describe the default pool, which is gone: the API answers with another's, or none (sets.yaml), and
            # another number of nodes would replace the cluster.
            ignore_changes=["initialNodeCount", "nodeConfig"],
            # Pulumi's own protection too, which refuses in the preview of a destroy. The cloud would refuse only after
            # pools and objects, which are deleted with the cluster, have left the state, although they still exist.
            protect=config.cluster.deletion_protection,
        ),
    )


def _maintenance(no_upgrades_since: str | None) -> gcp.container.ClusterMaintenancePolicyArgs:
    c = gcp.container
    exclusion = c.ClusterMaintenancePolicyMaintenanceExclusionArgs(
        exclusion_name="training",
        start_time=no_upgrades_since or "",
        exclusion_options=c.ClusterMaintenancePolicyMaintenanceExclusionExclusionOptionsArgs(
            # The control plane still gets security patches; no upgrade restarts a node.
            scope="NO_MINOR_OR_NODE_UPGRADES",
            end_time_behavior="UNTIL_END_OF_SUPPORT",
        ),
    )
    return c.ClusterMaintenancePolicyArgs(
        daily_maintenance_window=c.ClusterMaintenancePolicyDailyMaintenanceWindowArgs(start_time="03:00"),
        maintenance_exclusions=[exclusion] if no_upgrades_since else None,
    )


def context_name(scope: Scope) -> str:
    """What gcloud calls the cluster in a kubeconfig."""
    return f"gke_{scope.project}_{scope.zone}_{scope.name}"


def kubeconfig(scope: Scope, cluster: gcp.container.Cluster) -> pulumi.Output[str]:
    """A kubeconfig that gets credentials at each use: neither it nor the state contains a token."""

    def of(endpoints: gcp.container.outputs.ClusterControlPlaneEndpointsConfig) -> str:
        dns = endpoints.dns_endpoint_config
        return written(context_name(scope), {"server": f"https://{(dns and dns.endpoint) or ''}"}, PLUGIN)

    return cluster.control_plane_endpoints_config.apply(of)
