"""What no stack may declare: rules over declared resources, and the policy pack that Pulumi's engine runs them as."""

from policy import cloud, kubernetes

RULES = (*cloud.RULES, *kubernetes.RULES)
