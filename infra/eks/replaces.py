"""Which changed properties replace a resource of AWS: those that the provider's schemas mark ForceNew.

Read out of hashicorp/terraform-provider-aws, which pulumi-aws bridges, in Pulumi's spelling, each file at a commit of
its own: node groups at 012e0a32, clusters at 00555dc5, add-ons, pod identities, keys and lifecycle policies at
00a35305, access entries at 01f43111, subnets at 00cda125, NAT gateways at 04088eaa, endpoints at 008db85a, routes at
0128541e, rules at 00a32209, networks at 00081ce4, file systems at 0389f467, access points, groups and addresses at
01606926, mount targets at 0593466d, repositories at 0072eea2, log groups at 0073593e, roles at 0040ea69. The rest
(policies, launch templates, route tables) was not read: it is how the provider is known to behave.

A launch template makes a new version in place, and a node group follows it in place, node by node.
"""

from __future__ import annotations

#: `region`, which replaces every one, is left out: a stack has one.
FORCE_NEW: dict[str, str] = {
    "aws:ec2/vpc:Vpc": "cidrBlock ipv4IpamPoolId ipv4NetmaskLength",
    "aws:ec2/subnet:Subnet": "vpcId availabilityZone availabilityZoneId cidrBlock ipv4IpamPoolId ipv4NetmaskLength "
    "ipv6IpamPoolId ipv6Native ipv6NetmaskLength outpostArn",
    "aws:ec2/internetGateway:InternetGateway": "",
    "aws:ec2/eip:Eip": "domain address networkBorderGroup publicIpv4Pool ipamPoolId",
    "aws:ec2/natGateway:NatGateway": "subnetId allocationId connectivityType privateIp secondaryPrivateIpAddressCount",
    "aws:ec2/routeTable:RouteTable": "vpcId",
    "aws:ec2/route:Route": "routeTableId destinationCidrBlock destinationIpv6CidrBlock destinationPrefixListId",
    "aws:ec2/routeTableAssociation:RouteTableAssociation": "subnetId gatewayId",
    "aws:ec2/vpcEndpoint:VpcEndpoint": "vpcId serviceName vpcEndpointType serviceRegion resourceConfigurationArn "
    "serviceNetworkArn",
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": "vpcId",
    "aws:ec2/securityGroup:SecurityGroup": "name namePrefix description vpcId",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": "securityGroupId",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": "securityGroupId",
    "aws:ec2/launchTemplate:LaunchTemplate": "name namePrefix",
    "aws:ec2/placementGroup:PlacementGroup": "name strategy partitionCount spreadLevel",
    "aws:iam/role:Role": "name namePrefix path",
    "aws:iam/rolePolicy:RolePolicy": "name namePrefix role",
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": "role policyArn",
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": "url",
    "aws:kms/key:Key": "customerMasterKeySpec customKeyStoreId keyUsage multiRegion xksKeyId",
    "aws:kms/alias:Alias": "name namePrefix",
    "aws:cloudwatch/logGroup:LogGroup": "name namePrefix logGroupClass",
    "aws:eks/cluster:Cluster": "name roleArn bootstrapSelfManagedAddons remoteNetworkConfig "
    "accessConfig.bootstrapClusterCreatorAdminPermissions kubernetesNetworkConfig.ipFamily "
    "kubernetesNetworkConfig.serviceIpv4Cidr outpostConfig.controlPlaneInstanceType",
    "aws:eks/addon:Addon": "addonName clusterName",
    "aws:eks/accessEntry:AccessEntry": "clusterName principalArn type",
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": "clusterName principalArn policyArn accessScope",
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": "clusterName namespace serviceAccount",
    "aws:eks/nodeGroup:NodeGroup": "amiType capacityType clusterName diskSize instanceTypes nodeGroupName "
    "nodeGroupNamePrefix nodeRoleArn remoteAccess subnetIds launchTemplate.id launchTemplate.name",
    "aws:efs/fileSystem:FileSystem": "availabilityZoneName creationToken encrypted kmsKeyId performanceMode",
    "aws:efs/mountTarget:MountTarget": "fileSystemId subnetId ipAddress ipAddressType ipv6Address",
    "aws:efs/accessPoint:AccessPoint": "fileSystemId posixUser rootDirectory",
    "aws:efs/fileSystemPolicy:FileSystemPolicy": "fileSystemId",
    "aws:efs/backupPolicy:BackupPolicy": "fileSystemId",
    "aws:ecr/repository:Repository": "name encryptionConfigurations",
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": "repository policy",
}
