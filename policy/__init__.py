"""What no stack may declare: rules for declared resources, and the policy pack in which Pulumi's engine runs them."""

from policy import cloud, kubernetes

RULES = (*cloud.RULES, *kubernetes.RULES)
