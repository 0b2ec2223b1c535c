"""What makes one Linux machine stand in for a cloud.

`trainyard local up` makes the Pulumi toolchain and a real one-node Kubernetes with an image registry. Nothing outside
local/ and tests/ imports this package: the Pulumi program sees a kubeconfig context and nothing else.
"""
