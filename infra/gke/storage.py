"""The shared volume: a disk behind an NFS server in the cluster, or a Filestore instance.

A Filestore instance is made beside the cluster. The cluster depends on the disk, because a disk that a node has
attached cannot be deleted: on destroy it goes after the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp
import pulumi_kubernetes as k8s

from infra.cluster import ServedDisk, SharedStorage, static_volume
from infra.config import StackConfig
from infra.gke.keys import GkeStorage
from infra.gke.network import NODES, NODES_TO_OWN_PODS, Network
from infra.gke.scope import Scope
from infra.scope import LONG

#: Name of the file share of a Filestore instance, and so its path.
SHARE = "data"
#: hard: processes wait for a server that restarts, and do not fail. noatime: access times are writes.
MOUNT_OPTIONS = ["hard", "noatime", "nodiratime"]


@dataclass(frozen=True)
class Storage:
    shared: SharedStorage
    before_cluster: list[pulumi.Resource]
    """Disks that the nodes attach, and that must outlive them."""


def create_storage(config: StackConfig, scope: Scope, network: Network, after: list[pulumi.Resource]) -> Storage:
    if config.section(GkeStorage).kind == "filestore":
        return Storage(_filestore(config, scope, network, after), [])
    return _served_disk(config, scope, after)


def _served_disk(config: StackConfig, scope: Scope, after: list[pulumi.Resource]) -> Storage:
    storage = config.section(GkeStorage)
    made: list[pulumi.Resource] = []
    handle: pulumi.Input[str] = f"projects/{scope.project}/zones/{scope.zone}/disks/{storage.disk}"
    if not storage.disk:
        disk = gcp.compute.Disk(
            "data",
            name=f"{scope.name}-data",
            zone=scope.zone,
            type=storage.disk_type,
            size=storage.size_gib,
            opts=scope.options(
                depends_on=after,
                timeouts=LONG,
                retain_on_delete=storage.retain,
                # A disk grows in place. One that would have to be replaced (smaller, another type) must not be deleted
                # first: the new one cannot have its name while it is there, so `pulumi up` fails and the data stays.
                delete_before_replace=False,
            ),
        )
        made.append(disk)
        handle = disk.id
    source = k8s.core.v1.CSIPersistentVolumeSourceArgs(
        driver="pd.csi.storage.gke.io", volume_handle=handle, fs_type="ext4"
    )
    # The kubelet mounts on the node, from the node's address.
    served = ServedDisk(source=source, clients=(NODES, NODES_TO_OWN_PODS), image_ref=storage.server_image)
    shared = SharedStorage(size_gib=storage.size_gib, access_mode="ReadWriteMany", disk=served)
    return Storage(shared, made)


def _filestore(config: StackConfig, scope: Scope, network: Network, after: list[pulumi.Resource]) -> SharedStorage:
    storage = config.section(GkeStorage)
    instance = gcp.filestore.Instance(
        "data",
        name=f"{scope.name}-data",
        location=scope.zone,
        tier=storage.tier,
        # NFS 4.1 has leases: the locks of a lost node expire. The basic tiers have only NFS 3.
        protocol="NFS_V4_1" if storage.tier == "ZONAL" else "NFS_V3",
        file_shares=gcp.filestore.InstanceFileSharesArgs(
            name=SHARE,
            capacity_gb=storage.size_gib,
            nfs_export_options=[
                # Only for the nodes, which mount it for the pods. The share's root folder belongs to root at first.
                gcp.filestore.InstanceFileSharesNfsExportOptionArgs(
                    ip_ranges=[NODES], access_mode="READ_WRITE", squash_mode="NO_ROOT_SQUASH"
                )
            ],
        ),
        networks=[
            gcp.filestore.InstanceNetworkArgs(
                network=network.network.name, modes=["MODE_IPV4"], connect_mode="DIRECT_PEERING"
            )
        ],
        opts=scope.options(depends_on=after, timeouts=LONG, delete_before_replace=False),
    )
    address = instance.networks[0].ip_addresses[0]
    nfs = k8s.core.v1.NFSVolumeSourceArgs(server=address, path=f"/{SHARE}")
    version = ["nfsvers=4.1" if storage.tier == "ZONAL" else "nfsvers=3"]
    return static_volume(
        storage.size_gib,
        nfs=nfs,
        mount_options=[*version, *MOUNT_OPTIONS],
        address=pulumi.Output.concat(address, ":/", SHARE),
        root_owned=True,
    )
