"""All rules, and what of a stack breaks them. No Pulumi, no cloud: functions over declared resources.

docs/operations.md lists them. A rule is broken on purpose in tests/policy/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from policy import cloud, kubernetes
from policy.resource import Resource, Rule, Stack

RULES: tuple[Rule, ...] = (
    cloud.no_open_network,
    cloud.no_load_balancer,
    cloud.no_accelerator_at_rest,
    cloud.encrypted_storage,
    cloud.labels_for_cost,
    kubernetes.image_by_digest,
    kubernetes.restricted_pods,
    kubernetes.no_privileged_pod,
    kubernetes.secrets_by_reference,
    kubernetes.goes_with_cluster,
    kubernetes.job_without_ttl,
    kubernetes.labelled_pods,
)


@dataclass(frozen=True)
class Violation:
    rule: str
    resource: Resource
    problem: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.resource.type} {self.resource.name}: {self.problem}"


def name(rule: Rule) -> str:
    """As the pack calls it: no-open-network."""
    return rule.__name__.replace("_", "-")


def demand(rule: Rule) -> str:
    """What the rule asks for, one sentence."""
    return (rule.__doc__ or "").partition("\n")[0]


def violations(resources: Iterable[Resource]) -> list[Violation]:
    """Everything that breaks a rule, in the order of the resources."""
    stack: Stack = {resource.urn: resource for resource in resources}
    return [
        Violation(name(rule), resource, problem)
        for resource in stack.values()
        for rule in RULES
        for problem in rule(resource, stack)
    ]
