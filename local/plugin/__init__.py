"""A stand-in for Pulumi's Kubernetes provider plugin, for machines where the real one cannot be downloaded.

`python -m local.plugin` speaks Pulumi's provider protocol and is held to the behaviour of the real
plugin (pulumi/pulumi-kubernetes v4). It must never be used where the real one is available.
"""
