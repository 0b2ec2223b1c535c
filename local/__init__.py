"""One Linux machine as a Kubernetes node, in place of a cloud.

`trainyard local up` builds the Pulumi toolchain and a real one-node Kubernetes with an image registry. The Pulumi
program does not import this package: it sees a kubeconfig context and nothing else.
"""
