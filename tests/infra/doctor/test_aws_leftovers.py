"""What the proof finds of a stack in an emulated AWS, after its destroy, beside somebody else's."""

from __future__ import annotations

from infra.eks.doctor.aws_client import Amazon
from infra.eks.proof import Aws
from review.recording import record
from tests.infra.doctor.conftest import NAME, STACK, TRUST, client, config
from tests.infra.recorded import changed, recorded


def test_what_a_stack_whose_name_begins_alike_has_is_not_left_over(here: Amazon) -> None:
    """What is listed is deleted by hand: every role and template that a stack may make, by exact names."""
    placed = {"consumption": "on_demand", "fallback": "none", "alternatives": [], "compactPlacement": True}
    other = record(STACK, changed(STACK, dataset={"input": ["s3://texts/corpus"]}, nodes=placed))
    declared = [*recorded(STACK).all("aws:"), *other.all("aws:")]
    roles, templates = (
        {item.inputs["name"] for item in declared if item.kind == kind} for kind in ("Role", "LaunchTemplate")
    )
    assert f"{NAME}-reader" in roles
    assert f"{NAME}-workers-use2-az1" in templates
    for name in (NAME, f"{NAME}-smoke"):
        for template in templates:
            client("ec2").create_launch_template(LaunchTemplateName=template.replace(NAME, name), LaunchTemplateData={})
        for role in roles:
            client("iam").create_role(RoleName=role.replace(NAME, name), AssumeRolePolicyDocument=TRUST)
        client("ecr").create_repository(repositoryName=f"{name}/trainyard/trainer")
        client("logs").create_log_group(logGroupName=f"/aws/eks/{name}/cluster")
    _, left = Aws("", lambda _: here).leftovers(config(), STACK)
    assert sorted(left) == sorted(
        [
            f"log group /aws/eks/{NAME}/cluster",
            f"repository {NAME}/trainyard/trainer",
            *(f"launch template {template}" for template in templates),
            *(f"role {role}" for role in roles),
        ]
    )
