"""Whether the caller may do what `pulumi up` and `pulumi destroy` do: IAM is asked to simulate it."""

from __future__ import annotations

from collections.abc import Iterator

from infra.doctor.finding import Finding, ok, problem, unchecked
from infra.eks.doctor.aws_client import Amazon, NoAnswer
from infra.needs import features


def asked_for() -> dict[str, str]:
    """Action -> a policy of AWS's that allows it, for all that a stack may make and delete (infra/eks/needs.yaml).

    Rights to delete are what is missing most often, and it is found out when the bill goes on.
    """
    return {action: policy for feature in features("eks").values() for action, policy in feature.permissions.items()}


def checks(amazon: Amazon) -> Iterator[Finding]:
    if amazon.identity.endswith(":root"):
        yield ok("rights", "the root user has all")
        return
    policies = asked_for()
    actions = sorted(policies)
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
        allowing = " and ".join(sorted({policies[action] for action in missing}))
        yield problem(
            "rights",
            f"{shown} missing for {amazon.identity}",
            "aws iam attach-role-policy --role-name ROLE --policy-arn arn:aws:iam::aws:policy/"
            f"{allowing}   # by an administrator, see docs/aws.md",
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
