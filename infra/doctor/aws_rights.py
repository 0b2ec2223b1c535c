"""Whether the caller may do what `pulumi up` and `pulumi destroy` do: IAM is asked to simulate it."""

from __future__ import annotations

from collections.abc import Iterator

from infra.doctor.amazon import Amazon, NoAnswer
from infra.doctor.finding import Finding, ok, problem, unchecked

#: Type of resource -> the actions that make and delete it. Rights to delete are what is missing most often, and it is
#: found out when the bill goes on.
ACTIONS = {
    "aws:ec2/vpc:Vpc": ("ec2:CreateVpc", "ec2:DeleteVpc", "ec2:CreateTags"),
    "aws:ec2/subnet:Subnet": ("ec2:CreateSubnet", "ec2:DeleteSubnet"),
    "aws:ec2/internetGateway:InternetGateway": ("ec2:CreateInternetGateway", "ec2:DeleteInternetGateway"),
    "aws:ec2/eip:Eip": ("ec2:AllocateAddress", "ec2:ReleaseAddress"),
    "aws:ec2/natGateway:NatGateway": ("ec2:CreateNatGateway", "ec2:DeleteNatGateway"),
    "aws:ec2/routeTable:RouteTable": ("ec2:CreateRouteTable", "ec2:DeleteRouteTable"),
    "aws:ec2/route:Route": ("ec2:CreateRoute", "ec2:DeleteRoute"),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": (
        "ec2:AssociateRouteTable",
        "ec2:DisassociateRouteTable",
    ),
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": ("ec2:RevokeSecurityGroupIngress",),
    "aws:ec2/securityGroup:SecurityGroup": ("ec2:CreateSecurityGroup", "ec2:DeleteSecurityGroup"),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": ("ec2:AuthorizeSecurityGroupIngress",),
    "aws:ec2/vpcEndpoint:VpcEndpoint": ("ec2:CreateVpcEndpoint", "ec2:DeleteVpcEndpoints"),
    "aws:ec2/launchTemplate:LaunchTemplate": ("ec2:CreateLaunchTemplate", "ec2:DeleteLaunchTemplate"),
    "aws:ec2/placementGroup:PlacementGroup": ("ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"),
    "aws:iam/role:Role": ("iam:CreateRole", "iam:DeleteRole", "iam:PassRole", "iam:CreateServiceLinkedRole"),
    "aws:iam/rolePolicy:RolePolicy": ("iam:PutRolePolicy", "iam:DeleteRolePolicy"),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": ("iam:AttachRolePolicy", "iam:DetachRolePolicy"),
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": (
        "iam:CreateOpenIDConnectProvider",
        "iam:DeleteOpenIDConnectProvider",
    ),
    "aws:kms/key:Key": ("kms:CreateKey", "kms:ScheduleKeyDeletion", "kms:CreateGrant"),
    "aws:kms/alias:Alias": ("kms:CreateAlias", "kms:DeleteAlias"),
    "aws:cloudwatch/logGroup:LogGroup": ("logs:CreateLogGroup", "logs:DeleteLogGroup", "logs:PutRetentionPolicy"),
    "aws:eks/cluster:Cluster": ("eks:CreateCluster", "eks:DeleteCluster"),
    "aws:eks/accessEntry:AccessEntry": ("eks:CreateAccessEntry", "eks:DeleteAccessEntry"),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": ("eks:AssociateAccessPolicy",),
    "aws:eks/addon:Addon": ("eks:CreateAddon", "eks:DeleteAddon"),
    "aws:eks/nodeGroup:NodeGroup": ("eks:CreateNodegroup", "eks:DeleteNodegroup"),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": (
        "eks:CreatePodIdentityAssociation",
        "eks:DeletePodIdentityAssociation",
    ),
    "aws:autoscaling/tag:Tag": ("autoscaling:CreateOrUpdateTags", "autoscaling:DeleteTags"),
    "aws:efs/fileSystem:FileSystem": ("elasticfilesystem:CreateFileSystem", "elasticfilesystem:DeleteFileSystem"),
    "aws:efs/mountTarget:MountTarget": ("elasticfilesystem:CreateMountTarget", "elasticfilesystem:DeleteMountTarget"),
    "aws:efs/accessPoint:AccessPoint": ("elasticfilesystem:CreateAccessPoint", "elasticfilesystem:DeleteAccessPoint"),
    "aws:efs/fileSystemPolicy:FileSystemPolicy": ("elasticfilesystem:PutFileSystemPolicy",),
    "aws:ecr/repository:Repository": ("ecr:CreateRepository", "ecr:DeleteRepository", "ecr:PutImage"),
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": ("ecr:PutLifecyclePolicy",),
    "aws:ecr/getAuthorizationToken:getAuthorizationToken": ("ecr:GetAuthorizationToken",),
}


def checks(amazon: Amazon) -> Iterator[Finding]:
    if amazon.identity.endswith(":root"):
        yield ok("rights", "the root user has all")
        return
    actions = sorted({action for both in ACTIONS.values() for action in both})
    try:
        answer = amazon.ask(
            "iam", "simulate_principal_policy", home=True, PolicySourceArn=_principal(amazon), ActionNames=actions
        )
    except NoAnswer as reason:
        yield unchecked("rights", str(reason))
        return
    missing = [item["EvalActionName"] for item in answer["EvaluationResults"] if item["EvalDecision"] != "allowed"]
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        yield problem(
            "rights",
            f"{shown} missing for {amazon.identity}",
            "aws iam attach-role-policy --role-name ROLE --policy-arn POLICY   # by an administrator, see docs/aws.md",
        )
    else:
        yield ok(
            "rights", f"all {len(actions)} that were asked for; conditions and organisation policies are not simulated"
        )


def _principal(amazon: Amazon) -> str:
    """The user or role whose policies count; a session of a role has none of its own.

    Raises:
        NoAnswer: the role of a session is not to be seen.
    """
    # arn:aws:sts::123456789012:assumed-role/ROLE/SESSION; the role's own ARN may have a path, so IAM is asked for it.
    kind, _, rest = amazon.identity.rpartition(":")[2].partition("/")
    if kind != "assumed-role":
        return amazon.identity
    return amazon.ask("iam", "get_role", home=True, RoleName=rest.split("/")[0])["Role"]["Arn"]
