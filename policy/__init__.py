"""What no stack may declare: rules over declared resources, and the policy pack that Pulumi's engine runs them as."""
