"""A stand-in for Pulumi's Kubernetes provider plugin, for machines where the real one cannot be downloaded.

`python -m local.plugin` speaks Pulumi's provider protocol. It handles the kinds, annotations and waits that this
repository's program uses as the real plugin (pulumi/pulumi-kubernetes v4) does, and must never replace that one.
"""
