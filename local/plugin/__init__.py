"""A stand-in for Pulumi's Kubernetes provider plugin, for machines where the real one cannot be downloaded.

`python -m local.plugin` implements Pulumi's provider protocol. For the kinds, annotations and waits that this
repository's program uses, it behaves like the real plugin (pulumi/pulumi-kubernetes v4). It must never replace that.
"""
