"""Which changed properties replace a resource: those that the providers' schemas mark ForceNew.

Read out of hashicorp/terraform-provider-google at e03b762 (2026-08-21), which pulumi-gcp bridges, in Pulumi's spelling.
A node pool's machineType, diskType, diskSizeGb, taints and labels are not among them: GKE changes them in place, node
by node.
"""

from __future__ import annotations

from typing import Any

from infra.eks.replaces import FORCE_NEW as OF_AWS

#: A type that is not here is refused by the stand-in plugin of the tests (local/cloud_plugin), so that a new resource
#: cannot pass unseen.
FORCE_NEW: dict[str, str] = {
    "gcp:projects/service:Service": "project service",
    "gcp:projects/iAMMember:IAMMember": "project role member condition",
    "gcp:serviceaccount/iAMMember:IAMMember": "serviceAccountId role member condition",
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": "project location repository role member condition",
    "gcp:serviceaccount/account:Account": "project accountId",
    "gcp:compute/network:Network": "project name autoCreateSubnetworks description internalIpv6Range networkProfile",
    "gcp:compute/subnetwork:Subnetwork": "project name network region description externalIpv6Prefix",
    "gcp:compute/router:Router": "project name network region encryptedInterconnectRouter",
    "gcp:compute/routerNat:RouterNat": "project name router region type endpointTypes initialNatIps",
    "gcp:compute/firewall:Firewall": "project name direction",
    "gcp:compute/disk:Disk": "project name type zone description image snapshot architecture physicalBlockSizeBytes "
    "diskEncryptionKey storagePool",
    "gcp:compute/resourcePolicy:ResourcePolicy": "project name region groupPlacementPolicy",
    "gcp:container/cluster:Cluster": "project name location network subnetwork networkingMode datapathProvider "
    "clusterIpv4Cidr initialNodeCount ipAllocationPolicy enableAutopilot enableKubernetesAlpha enableTpu "
    "defaultMaxPodsPerNode description confidentialNodes nodePools privateClusterConfig.masterIpv4CidrBlock "
    "privateClusterConfig.privateEndpointSubnetwork masterAuth.clientCertificateConfig",
    "gcp:container/nodePool:NodePool": "project name namePrefix cluster location initialNodeCount maxPodsPerNode "
    "placementPolicy queuedProvisioning networkConfig.createPodRange networkConfig.podRange networkConfig.subnetwork "
    "networkConfig.podIpv4CidrBlock networkConfig.additionalNodeNetworkConfigs "
    "nodeConfig.advancedMachineFeatures nodeConfig.bootDiskKmsKey nodeConfig.ephemeralStorageLocalSsdConfig "
    "nodeConfig.flexStart nodeConfig.guestAccelerators nodeConfig.hostMaintenancePolicy "
    "nodeConfig.localNvmeSsdBlockConfig nodeConfig.localSsdCount nodeConfig.maxRunDuration nodeConfig.metadata "
    "nodeConfig.minCpuPlatform "
    "nodeConfig.nodeGroup nodeConfig.oauthScopes nodeConfig.preemptible nodeConfig.reservationAffinity "
    "nodeConfig.sandboxConfig nodeConfig.secondaryBootDisks nodeConfig.serviceAccount "
    "nodeConfig.shieldedInstanceConfig nodeConfig.soleTenantConfig nodeConfig.spot",
    "gcp:filestore/instance:Instance": "project name location zone tier networks protocol kmsKeyName "
    "fileShares.sourceBackup initialReplication",
    "gcp:artifactregistry/repository:Repository": "project location repositoryId format mode kmsKeyName "
    "remoteRepositoryConfig",
    "docker-build:index:Image": "",
    **OF_AWS,
}


def paths(type_: str) -> list[tuple[str, ...]]:
    """The replacing paths of a type.

    Raises:
        KeyError: the type is not in the table.
    """
    return [tuple(path.split(".")) for path in FORCE_NEW[type_].split()]


def shrinks(type_: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a disk gets smaller, which replaces it (customdiff.ForceNewIfChange("size", IsDiskShrinkage))."""
    before, after = old.get("size"), new.get("size")
    if type_ != "gcp:compute/disk:Disk" or not isinstance(before, int) or not isinstance(after, int):
        return False
    return after < before
